"""Archives in another process pass the contract."""

from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from tests.contracts.archives_contract import ArchivesContract, PackWriter
from tests.support.engine_process import EngineProcess, engine_process
from tests.support.stored_packs import pack_name
from torpor.domain.records import ArchiveKey, Marker
from torpor.ports import Archives, Fence, Home, HomeJob
from torpor.testing.fake_engine import EngineControl, RemoteFakeArchives, RemoteFakeRuntime


class InAnotherProcess:
    """A home is copied to the engine before a job, and copied back after it."""

    def __init__(self, runtime: RemoteFakeRuntime, fate: EngineControl) -> None:
        self._runtime = runtime
        self._fate = fate
        self._files: dict[str, Mapping[str, bytes]] = {}

    def fill(self, name: str, files: Mapping[str, bytes]) -> None:
        self._files[name] = files

    def show(self, name: str) -> Mapping[str, bytes]:
        return self._files[name]

    async def run(self, name: str, job: HomeJob) -> Mapping[str, object]:
        home = Home(name, 1)
        await self._fate.put_volume(home, self._files[name], None if job.writes else Marker(name, 1, ""))
        try:
            return await self._runtime.run_at_home(home, job, Fence("op", 1), lambda *_: None)
        finally:
            self._files[name] = (await self._fate.inspect()).volumes[home]


class PacksInAnotherProcess:
    def __init__(self, fate: EngineControl) -> None:
        self._fate = fate

    async def write(self, key: ArchiveKey, content: bytes) -> str:
        name = pack_name(key, content)
        await self.damage(key.workspace_id, name, content)
        return name

    async def finish(self, key: ArchiveKey, home: Home, names: tuple[str, ...]) -> None:
        await self._fate.put_root(key, home, names)

    async def damage(self, workspace_id: str, name: str, content: bytes) -> None:
        await self._fate.put_pack(workspace_id, name, content)


class TestRemoteFakeArchives(ArchivesContract):
    @pytest.fixture
    def engine(self) -> Iterator[EngineProcess]:
        with engine_process() as engine:
            yield engine

    @pytest.fixture
    async def archives(self, engine: EngineProcess) -> AsyncIterator[Archives]:
        archives = RemoteFakeArchives(engine.socket)
        yield archives
        await archives.close()

    @pytest.fixture
    async def unreachable(self) -> AsyncIterator[Archives]:
        with engine_process() as engine:
            fate, archives = EngineControl(engine.socket), RemoteFakeArchives(engine.socket)
            await fate.set(archives_out=True)
            yield archives
            await fate.close()
            await archives.close()

    @pytest.fixture
    async def homes(self, engine: EngineProcess) -> AsyncIterator[InAnotherProcess]:
        runtime, fate = RemoteFakeRuntime(engine.socket), EngineControl(engine.socket)
        yield InAnotherProcess(runtime, fate)
        await runtime.close()
        await fate.close()

    @pytest.fixture
    async def packs(self, engine: EngineProcess) -> AsyncIterator[PackWriter]:
        fate = EngineControl(engine.socket)
        yield PacksInAnotherProcess(fate)
        await fate.close()
