"""The archives and the fake archives pass the contract."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contracts.archives_contract import (
    FIRST,
    HOME,
    SECOND,
    STRANGER,
    ArchivesContract,
    Homes,
    PackWriter,
    no_progress,
)
from tests.support.packed_archives import PackedArchives
from tests.support.stored_packs import FakePacks, StoredPacks
from torpor.archives.archives import HomeArchives
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey, Marker
from torpor.ports import ArchiveBase, Archives, Fence, Home, HomeJob
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

    @pytest.fixture
    def packs(self, tmp_path: Path) -> PackWriter:
        return StoredPacks(tmp_path / "store")


class TestPackedArchives(TestHomeArchives):
    """The same with archives of format 2."""

    @pytest.fixture
    def archives(self, tmp_path: Path) -> Archives:
        (tmp_path / "store").mkdir()
        return PackedArchives(f"file://{tmp_path}/store")


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
        return await FakeRuntime(self.world).run_at_home(home, job, Fence("op", 1), lambda _done, _total, _files=None: None)


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

    @pytest.fixture
    def packs(self, world: FakeWorld) -> PackWriter:
        return FakePacks(world)

    async def test_a_home_of_format_2_shares_packs_with_its_base(
        self, archives: Archives, homes: Homes, world: FakeWorld
    ) -> None:
        homes.fill("home", {"a": b"same", "b": b"first"})
        result = await homes.run("home", archives.pack_job(FIRST, HOME, 1, format=2))
        first = archives.proven(FIRST, HOME, 1, result)
        assert (first.format, first.new_bytes, len(first.packs)) == (2, first.size_bytes, 3)
        assert all(pack.is_read_back for pack in first.packs)
        trusted = {pack.name: pack.store_version for pack in first.packs}
        unusable = next(name for name in trusted if world.packs[HOME.workspace_id, name] == b"same")
        homes.fill("home", {"a": b"same", "b": b"second"})
        for spoiled, shared in ((frozenset[str](), 2), (frozenset({unusable}), 1)):
            base = ArchiveBase(FIRST, first.archive.manifest_root, trusted, spoiled)
            await archives.remove(SECOND)
            result = await homes.run("home", archives.pack_job(SECOND, HOME, 2, format=2, base=base))
            second = archives.proven(SECOND, HOME, 2, result)
            assert sum(not pack.is_read_back for pack in second.packs) == shared
            assert (await archives.root_packs(SECOND)).packs == {pack.name: pack.size_bytes for pack in second.packs}
        homes.fill("again", {})
        await homes.run("again", archives.unpack_job(SECOND, second.archive.manifest_root))
        assert homes.show("again") == {"a": b"same", "b": b"second"}

    async def test_a_fork_has_packs_of_its_own(self, archives: Archives, homes: Homes) -> None:
        homes.fill("home", {"a": b"content"})
        await homes.run("home", archives.pack_job(FIRST, HOME, 1, format=2))
        target = ArchiveKey(STRANGER.workspace_id, SECOND.op_id)
        copied = await archives.copy(FIRST, target, no_progress)
        assert (copied.format, copied.archive.key) == (2, target)
        for name in (await archives.root_packs(FIRST)).packs:
            await archives.remove_pack(HOME.workspace_id, name)
        homes.fill("again", {})
        await homes.run("again", archives.unpack_job(target, copied.archive.manifest_root))
        assert homes.show("again") == {"a": b"content"}
