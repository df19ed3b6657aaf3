"""What the worlds of the contract have in common on all engines that run images."""

import asyncio
import contextlib

from tests.contracts.runtime_contract import LIMITS, ProgramWorld, program
from tests.contracts.test_runtime_contract import SERVE
from torpor.domain.errors import Refused
from torpor.inside.proven_connection import connect_with_proof
from torpor.kit import layout
from torpor.ports import Container, Home, HomeJob


class EngineWorld(ProgramWorld):
    """Programs of the image of tests, jobs with the kit, and connections to an agent."""

    tells_its_size = ("sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done")

    def running(self, home: Home, command: tuple[str, ...], revision: int = 1, **environment: str) -> Container:
        return Container(home, revision, program(*command, **environment), LIMITS)

    def serving(self, home: Home, revision: int = 1) -> Container:
        return self.running(home, ("{python}", "-S", "-c", SERVE), revision)

    def serving_on(self, home: Home, port: int) -> Container:
        return self.running(home, ("{python}", "-S", "-c", SERVE), ALSO=str(port))

    def silent(self, home: Home, revision: int = 1) -> Container:
        return self.running(home, ("sleep", "60"), revision)

    def python_job(self, code: str, *, writes: bool) -> HomeJob:
        words = "import json, os, sys\nhome = sys.argv[1]\ndef say(**what): print(json.dumps(what), flush=True)\n"
        return HomeJob((*layout.python_argv(), "-c", words + code), b"secrets", writes=writes)

    def filling(self) -> HomeJob:
        return self.python_job("open(home + '/file', 'w').write('x'); say(progress=[1, 1]); say(result={'ok': 1})", writes=True)

    def reading(self) -> HomeJob:
        return self.python_job("say(result={'files': os.listdir(home)})", writes=False)

    async def end_program(self, workspace_id: str, exit_code: int, said: str) -> None:
        ask = f"echo '{exit_code} {said}' > .end && mv .end end && sleep 10"
        with contextlib.suppress(Refused):  # the container ends with the command, so an exit code is optional
            await self.runtime.execute(workspace_id, ["sh", "-c", ask], b"")

    async def ask(self, workspace_id: str, sent: bytes, port: int | None = None) -> bytes:
        address = self.runtime.address(workspace_id, port)
        assert address is not None
        assert address.host is not None
        assert address.port is not None
        connection = await connect_with_proof(address.host, address.port, address.key)
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            writer.write(address.preamble + sent)
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:  # it closed the connection before it read all data
            return b""
        finally:
            writer.close()
