"""The archives and the fake archives pass the contract."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contracts.archives_contract import ArchivesContract, Homes
from torpor.archives.archives import HomeArchives
from torpor.domain.errors import Code, Failed
from torpor.domain.records import Marker
from torpor.ports import Archives, Fence, Home, HomeJob
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeVolume, FakeWorld


class Directories:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, name: str, files: Mapping[str, bytes]) -> None:
        home = self.path / name
        home.mkdir()
        for file, content in files.items():
            (home / file).write_bytes(content)

    def show(self, name: str) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.path / name).iterdir()}

    async def run(self, name: str, job: HomeJob) -> Mapping[str, object]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*job.argv, str(self.path / name), stdin=pipe, stdout=pipe)
        stdout, _ = await process.communicate(job.stdin)
        last = json.loads(stdout.splitlines()[-1])
        if "error" in last:
            raise Failed(Code(last["error"]["code"]), last["error"]["message"])
        result: Mapping[str, object] = last["result"]
        return result


class TestHomeArchives(ArchivesContract):
    @pytest.fixture
    def archives(self, tmp_path: Path) -> Archives:
        (tmp_path / "store").mkdir()
        return HomeArchives(f"file://{tmp_path}/store")

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Archives:
        (tmp_path / "file").touch()
        return HomeArchives(f"file://{tmp_path}/file/store")

    @pytest.fixture
    def homes(self, tmp_path: Path) -> Homes:
        return Directories(tmp_path)


class InMemory:
    def __init__(self, world: FakeWorld) -> None:
        self.world = world

    def fill(self, name: str, files: Mapping[str, bytes]) -> None:
        self.world.volumes[Home(name, 1)] = FakeVolume(dict(files))

    def show(self, name: str) -> Mapping[str, bytes]:
        return self.world.volumes[Home(name, 1)].files

    async def run(self, name: str, job: HomeJob) -> Mapping[str, object]:
        home = Home(name, 1)
        volume = self.world.volumes[home]
        volume.marker, volume.is_half_made = (None, True) if job.writes else (Marker(name, 1, ""), False)
        return await FakeRuntime(self.world).run_at_home(home, job, Fence("op", 1), lambda _done, _total: None)


class TestFakeArchives(ArchivesContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()

    @pytest.fixture
    def archives(self, world: FakeWorld) -> Archives:
        return FakeArchives(world)

    @pytest.fixture
    def unreachable(self) -> Archives:
        return FakeArchives(FakeWorld(archives_out=True))

    @pytest.fixture
    def homes(self, world: FakeWorld) -> Homes:
        return InMemory(world)
