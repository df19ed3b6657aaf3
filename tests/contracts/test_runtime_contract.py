"""Every runtime passes the contract."""

# ruff: noqa: ASYNC240 - a test may block its event loop

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import LIMITS, ProgramContract, ProgramWorld, RuntimeContract, World, program
from tests.support.engine_process import EngineProcess, engine_process
from torpor.domain.errors import Refused
from torpor.domain.records import ArchiveKey, ProgramExit
from torpor.ports import Container, Home, HomeJob, Runtime
from torpor.runtimes.process import ProcessOptions, ProcessRuntime
from torpor.testing.defaults import process_options
from torpor.testing.fake_engine import EngineControl, RemoteFakeArchives, RemoteFakeRuntime
from torpor.testing.fake_runtime import SILENT, FakeArchives, FakeRuntime, FakeWorld

# ── the fake ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class InMemory(World):
    tells_its_size = ("sleep",)

    def __init__(self) -> None:
        self.fake = FakeWorld()
        self.fake.archives["somebody/op"] = ({"file": b"content"}, "root")
        self.runtime: Runtime = FakeRuntime(self.fake)
        self._archives = FakeArchives(self.fake)

    def serving(self, home: Home, revision: int = 1) -> Container:
        return Container(home, revision, program("serve"), LIMITS)

    def silent(self, home: Home, revision: int = 1) -> Container:
        return Container(home, revision, program(*SILENT), LIMITS)

    def filling(self) -> HomeJob:
        return self._archives.unpack_job(ArchiveKey("somebody", "op"))

    def reading(self) -> HomeJob:
        return self._archives.pack_job(ArchiveKey("somebody", "other"), Home("somebody", 1), 1)

    async def end_program(self, workspace_id: str, exit_code: int, said: str) -> None:
        self.fake.containers[workspace_id].ended = ProgramExit(exit_code, said)

    async def stop_outside(self, workspace_id: str) -> None:
        self.fake.containers[workspace_id].ended = ProgramExit(137, "", is_stopped_outside=True)

    async def destroy_volume(self, home: Home) -> None:
        del self.fake.volumes[home]

    async def spoil_marker(self, home: Home) -> None:
        self.fake.volumes[home].is_illegible = True

    async def lose_marker(self, home: Home) -> None:
        self.fake.volumes[home].marker = None

    async def lose_small_files(self, home: Home) -> None:
        self.fake.volumes[home].lose_small_files()

    async def lose_provider(self) -> None:
        self.fake.runtime_out = True

    async def find_provider_again(self) -> None:
        self.fake.runtime_out = False


class TestFake(RuntimeContract):
    @pytest.fixture
    async def world(self) -> World:
        return InMemory()


class InAnotherProcess(World):
    """The same, in an engine that is a separate process."""

    tells_its_size = ("sleep",)

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.remote = RemoteFakeRuntime(engine.socket)
        self.runtime: Runtime = self.remote
        self.archives = RemoteFakeArchives(engine.socket)
        self.fate = EngineControl(engine.socket)

    def serving(self, home: Home, revision: int = 1) -> Container:
        return Container(home, revision, program("serve"), LIMITS)

    def silent(self, home: Home, revision: int = 1) -> Container:
        return Container(home, revision, program(*SILENT), LIMITS)

    def filling(self) -> HomeJob:
        return self.archives.unpack_job(ArchiveKey("somebody", "op"))

    def reading(self) -> HomeJob:
        return self.archives.pack_job(ArchiveKey("somebody", "other"), Home("somebody", 1), 1)

    async def end_program(self, workspace_id: str, exit_code: int, said: str) -> None:
        await self.fate.end_program(workspace_id, exit_code, said)

    async def stop_outside(self, workspace_id: str) -> None:
        await self.fate.stop_outside(workspace_id)

    async def destroy_volume(self, home: Home) -> None:
        await self.fate.destroy_volume(home)

    async def spoil_marker(self, home: Home) -> None:
        await self.fate.spoil_marker(home)

    async def lose_marker(self, home: Home) -> None:
        await self.fate.lose_marker(home)

    async def lose_small_files(self, home: Home) -> None:
        await self.fate.lose_small_files(home)

    async def lose_provider(self) -> None:
        await self.fate.set(runtime_out=True)

    async def find_provider_again(self) -> None:
        await self.fate.set(runtime_out=False)


class TestRemoteFake(RuntimeContract):
    @pytest.fixture
    async def world(self) -> AsyncIterator[World]:
        with engine_process() as engine:
            world = InAnotherProcess(engine)
            await world.remote.start()
            await world.archives.create_empty(ArchiveKey("somebody", "op"), Home("somebody", 1), 1)
            yield world
            for client in (world.remote, world.archives, world.fate):
                await client.close()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# The system's Python if there is one: every workspace's user can run it, confined or not.
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "{python}"

SERVE = """
import os, socket, sys, threading
def answer(connection):
    with connection:
        connection.sendall(b"you said " + connection.recv(100))
def end():
    while not os.path.exists("end"): import time; time.sleep(0.01)
    code, said = open("end").read().split(" ", 1)
    os.remove("end")
    print(said, flush=True)
    os._exit(int(code))
threading.Thread(target=end, daemon=True).start()
def serve(port):
    server = socket.create_server(("127.0.0.1", int(port)))
    while True:
        threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
for port in os.environ.get("ALSO", "").split():
    threading.Thread(target=serve, args=[port], daemon=True).start()
serve(os.environ["PORT"])
"""


class OnThisMachine(ProgramWorld):
    python = PYTHON
    tells_its_size = ("sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done")

    def __init__(self, data: Path, options: ProcessOptions) -> None:
        self.data = data
        self.process = ProcessRuntime(data, options=options)
        self.runtime: Runtime = self.process

    def running(self, home: Home, command: tuple[str, ...], revision: int = 1, **environment: str) -> Container:
        return Container(home, revision, program(*command, **environment), LIMITS)

    def serving(self, home: Home, revision: int = 1) -> Container:
        return self.running(home, (self.python, "-S", "-c", SERVE), revision)

    def serving_on(self, home: Home, port: int) -> Container:
        return self.running(home, (self.python, "-S", "-c", SERVE), ALSO=str(port))

    def silent(self, home: Home, revision: int = 1) -> Container:
        return self.running(home, ("sleep", "60"), revision)

    def python_job(self, code: str, *, writes: bool) -> HomeJob:
        words = "import json, os, sys\nhome = sys.argv[1]\ndef say(**what): print(json.dumps(what), flush=True)\n"
        return HomeJob((sys.executable, "-S", "-c", words + code), b"secrets", writes=writes)

    def filling(self) -> HomeJob:
        return self.python_job("open(home + '/file', 'w').write('x'); say(progress=[1, 1]); say(result={'ok': 1})", writes=True)

    def reading(self) -> HomeJob:
        return self.python_job("say(result={'files': os.listdir(home)})", writes=False)

    async def end_program(self, workspace_id: str, exit_code: int, said: str) -> None:
        ask = f"echo '{exit_code} {said}' > .end && mv .end end && sleep 10"
        with contextlib.suppress(Refused):  # the container ends with the command, so an exit code is optional
            await self.runtime.execute(workspace_id, ["sh", "-c", ask], b"")

    async def stop_outside(self, workspace_id: str) -> None:
        spawned = self.process._running(workspace_id)._spawned
        assert spawned is not None
        os.kill(spawned.pid, signal.SIGKILL)

    async def destroy_volume(self, home: Home) -> None:
        shutil.rmtree(self.process.paths.volume(home))

    async def spoil_marker(self, home: Home) -> None:
        (self.process.paths.volume(home) / "marker.json").write_text("{")

    async def lose_marker(self, home: Home) -> None:
        (self.process.paths.volume(home) / "marker.json").unlink()

    async def lose_small_files(self, home: Home) -> None:
        for path in self.process.paths.volume(home).iterdir():
            if path.name != "home":
                path.unlink()

    async def lose_provider(self) -> None:
        self.process.paths.volumes.rename(self.data / "elsewhere")
        self.process.paths.volumes.mkdir()

    async def find_provider_again(self) -> None:
        self.process.paths.volumes.rmdir()
        (self.data / "elsewhere").rename(self.process.paths.volumes)

    async def ask(self, workspace_id: str, sent: bytes, port: int | None = None) -> bytes:
        address = self.runtime.address(workspace_id, port)
        assert address is not None
        reader, writer = await asyncio.open_unix_connection(address.unix_path)
        try:
            writer.write(address.preamble + sent)
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:  # it closed the connection before it read all data
            return b""
        finally:
            writer.close()


class InAPrivateFolder(OnThisMachine):
    """Data below a folder that only Torpor's user can enter, and Torpor's interpreter, which may be in such a folder."""

    python = "{python}"


async def on_this_machine(
    options: ProcessOptions, kind: type[OnThisMachine] = OnThisMachine, folder_mode: int = 0o711
) -> AsyncIterator[OnThisMachine]:
    data = Path(tempfile.mkdtemp(prefix="torpor-test-"))
    data.chmod(folder_mode)
    world = kind(data, options)
    try:
        await world.process.start()
        yield world
    finally:
        await world.process.close()
        await asyncio.to_thread(shutil.rmtree, data)


class TestProcess(RuntimeContract, ProgramContract):
    """With the best confinement of this machine."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[ProgramWorld]:
        async for world in on_this_machine(process_options(grace_s=2.0)):
            yield world


UNCONFINED = process_options(grace_s=2.0, bubblewrap=False, own_network=False, cgroups=False)


class TestBareProcess(RuntimeContract, ProgramContract):
    """Without any confinement."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[ProgramWorld]:
        async for world in on_this_machine(UNCONFINED):
            yield world


@pytest.mark.long
class TestBareProcessInAPrivateFolder(RuntimeContract, ProgramContract):
    """The same, with a data directory that only Torpor's user can enter."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[ProgramWorld]:
        async for world in on_this_machine(UNCONFINED, InAPrivateFolder, 0o700):
            yield world
