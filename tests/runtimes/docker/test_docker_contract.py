"""The Docker runtime passes the contract, on Docker and on Podman."""

import asyncio
import contextlib

import pytest

from tests.contracts.runtime_contract import LIMITS, ProgramContract, ProgramWorld, RuntimeContract, program
from tests.contracts.test_runtime_contract import SERVE
from tests.runtimes.docker.conftest import MakeRuntime
from tests.support.container_engine import ContainerEngine
from torpor.domain.errors import Refused
from torpor.inside.proof import connect_with_proof
from torpor.kit import layout
from torpor.ports import Container, Home, HomeJob, Runtime
from torpor.runtimes.object_labels import home_name


class OnDocker(ProgramWorld):
    tells_its_size = ("sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done")

    def __init__(self, engine: ContainerEngine, runtime: Runtime, installation: str) -> None:
        self.engine = engine
        self.runtime = runtime
        self.identity = f"{installation}-identity"
        self._lost: dict[str, str] = {}

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

    def _containers(self, home: Home) -> list[str]:
        return self.engine.docker("ps", "--all", "--quiet", "--filter", f"name={home_name(home)}").split()

    def _records(self, home: Home) -> list[str]:
        return self.engine.docker("volume", "ls", "--quiet", "--filter", f"name={home_name(home)}-r").split()

    def _labelled(self, name: str, labels: dict[str, str]) -> None:
        given = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        self.engine.docker("volume", "create", *given, name)

    async def destroy_volume(self, home: Home) -> None:
        self.engine.docker("rm", "--force", *self._containers(home))
        self.engine.docker("volume", "rm", home_name(home))

    async def spoil_marker(self, home: Home) -> None:
        (record,) = self._records(home)
        labels = self.engine.labels_of(record)
        await self.lose_small_files(home)
        self._labelled(record, {**labels, "torpor.state": "{"})

    async def lose_marker(self, home: Home) -> None:
        """The record goes, and a container still refers to the home."""
        await self.lose_small_files(home)
        labels = [f"torpor.{word}" for word in ("workspace", "generation", "installation")]
        found = self.engine.labels_of(home_name(home))
        given = [word for label in labels for word in ("--label", f"{label}={found[label]}")]
        given += ["--label", "torpor.kind=holder", "--label", "torpor.number=0"]
        name = f"{home_name(home)}-r0-holder"
        self.engine.docker("create", "--name", name, *given, "--volume", f"{home_name(home)}:/volume", "torpor-empty:1", "x")

    async def lose_small_files(self, home: Home) -> None:
        self.engine.docker("rm", "--force", *self._containers(home))
        self.engine.docker("volume", "rm", *self._records(home))

    async def lose_provider(self) -> None:
        """Another data directory: the engine answers, and its identity is another one."""
        self._lost = self.engine.labels_of(self.identity)
        self.engine.docker("rm", "--force", f"{self.identity}-holder")
        self.engine.docker("volume", "rm", self.identity)

    async def find_provider_again(self) -> None:
        self._labelled(self.identity, self._lost)

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


@pytest.mark.both_engines
class TestDocker(RuntimeContract, ProgramContract):
    @pytest.fixture
    async def world(self, engine: ContainerEngine, make_runtime: MakeRuntime, installation: str) -> ProgramWorld:
        runtime = make_runtime()
        await runtime.start()
        return OnDocker(engine, runtime, installation)
