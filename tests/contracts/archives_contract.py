"""The tests that every implementation of `torpor.ports.Archives` passes, including the fake.

A subclass provides an instance (`archives`), homes (`Homes`), a way to run jobs, and a way to write packs (`PackWriter`).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import pytest

from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.records import ArchiveKey, ProvenArchive
from torpor.ports import Archives, Home, HomeJob, ListedArchive, ListedPack

HOME = Home("0d1f8a3c-0000-4000-8000-000000000001", 3)
FIRST = ArchiveKey(HOME.workspace_id, "a0000000-0000-4000-8000-000000000001")
SECOND = ArchiveKey(HOME.workspace_id, "a0000000-0000-4000-8000-000000000002")
STRANGER = Home("0d1f8a3c-0000-4000-8000-000000000002", 1)


PACK = f"{FIRST.op_id}-{'0' * 64}"


class PackWriter(Protocol):
    """Writes archives of format 2 from outside, pack by pack."""

    async def write(self, key: ArchiveKey, content: bytes) -> str:
        """Write a pack as the operation of this key; return its name."""
        ...

    async def finish(self, key: ArchiveKey, home: Home, names: tuple[str, ...]) -> None:
        """Write the root of an archive that names these packs."""
        ...

    async def damage(self, workspace_id: str, name: str, content: bytes) -> None:
        """Replace the content of a pack."""
        ...


class Homes(Protocol):
    """Directories, or their equivalent in a fake."""

    def fill(self, name: str, files: Mapping[str, bytes]) -> None:
        """Create a home with this name and exactly these files."""
        ...

    def show(self, name: str) -> Mapping[str, bytes]: ...

    async def run(self, name: str, job: HomeJob) -> Mapping[str, object]:
        """Like `Runtime.run_at_home`: return the result or raise Failed."""
        ...


async def pack(archives: Archives, homes: Homes, name: str, key: ArchiveKey, home: Home, revision: int) -> ProvenArchive:
    return archives.proven(key, home, revision, await homes.run(name, archives.pack_job(key, home, revision)))


@pytest.mark.anyio
class ArchivesContract:
    @pytest.fixture
    def archives(self) -> Archives:
        raise NotImplementedError

    @pytest.fixture
    def unreachable(self) -> Archives:
        """The same implementation with a store that does not answer."""
        raise NotImplementedError

    @pytest.fixture
    def homes(self) -> Homes:
        raise NotImplementedError

    @pytest.fixture
    def packs(self) -> PackWriter:
        raise NotImplementedError

    async def test_a_home_is_archived_and_restored(self, archives: Archives, homes: Homes) -> None:
        files = {"a": b"content", "b": b""}
        homes.fill("home", files)
        packed = await pack(archives, homes, "home", FIRST, HOME, 1)
        assert (packed.archive.key, packed.archive.generation, packed.archive.revision) == (FIRST, HOME.generation, 1)
        assert packed.files == 2
        assert packed.home_bytes == 7
        assert packed.size_bytes > 0
        assert await archives.manifest_root(FIRST) == packed.archive.manifest_root
        homes.fill("again", {})
        restored = await homes.run("again", archives.unpack_job(FIRST))
        assert restored["manifest_root"] == packed.archive.manifest_root
        assert homes.show("again") == files
        assert homes.show("home") == files

    async def test_repeated_archiving_keeps_the_manifest_root(self, archives: Archives, homes: Homes) -> None:
        homes.fill("home 0", {"a": b"content"})
        roots = set()
        for night in range(3):
            key = ArchiveKey(HOME.workspace_id, f"a0000000-0000-4000-8000-00000000000{night}")
            home = Home(HOME.workspace_id, night + 1)
            roots.add((await pack(archives, homes, f"home {night}", key, home, night)).archive.manifest_root)
            homes.fill(f"home {night + 1}", {})
            await homes.run(f"home {night + 1}", archives.unpack_job(key))
        assert len(roots) == 1

    async def test_packing_again_finds_the_same_archive(self, archives: Archives, homes: Homes) -> None:
        homes.fill("home", {"a": b"content"})
        first = await homes.run("home", archives.pack_job(FIRST, HOME, 1))
        assert await homes.run("home", archives.pack_job(FIRST, HOME, 1)) == first

    async def test_another_content_has_another_root(self, archives: Archives, homes: Homes) -> None:
        homes.fill("home", {"a": b"content"})
        homes.fill("other", {"a": b"CONTENT"})
        first = await pack(archives, homes, "home", FIRST, HOME, 1)
        second = await pack(archives, homes, "other", SECOND, HOME, 2)
        assert first.archive.manifest_root != second.archive.manifest_root

    async def test_a_restore_replaces_the_content_of_the_home(self, archives: Archives, homes: Homes) -> None:
        homes.fill("home", {"a": b"content"})
        await homes.run("home", archives.pack_job(FIRST, HOME, 1))
        homes.fill("again", {"leftover": b"x", "a": b"half"})
        for _ in range(2):
            await homes.run("again", archives.unpack_job(FIRST))
            assert homes.show("again") == {"a": b"content"}

    async def test_an_empty_archive(self, archives: Archives, homes: Homes) -> None:
        empty = await archives.create_empty(FIRST, HOME, 0)
        assert (empty.archive.key, empty.files, empty.home_bytes) == (FIRST, 0, 0)
        assert await archives.create_empty(FIRST, HOME, 0) == empty
        assert await archives.manifest_root(FIRST) == empty.archive.manifest_root
        homes.fill("home", {"leftover": b"x"})
        await homes.run("home", archives.unpack_job(FIRST))
        assert homes.show("home") == {}
        asleep_again = await pack(archives, homes, "home", SECOND, HOME, 1)
        assert asleep_again.archive.manifest_root == empty.archive.manifest_root

    async def test_a_copy_has_the_content_and_needs_its_source_no_more(self, archives: Archives, homes: Homes) -> None:
        files = {"a": b"content", "b": b"more"}
        homes.fill("home", files)
        packed = await pack(archives, homes, "home", FIRST, HOME, 1)
        target = ArchiveKey(STRANGER.workspace_id, SECOND.op_id)
        copied = await archives.copy(FIRST, target, no_progress)
        assert copied.archive == replace(packed.archive, key=target, generation=0, revision=0)
        assert (copied.home_bytes, copied.files) == (packed.home_bytes, packed.files)
        assert await archives.manifest_root(FIRST) == packed.archive.manifest_root
        assert await archives.copy(FIRST, target, no_progress) == copied
        await archives.remove(FIRST)
        assert await archives.copy(FIRST, target, no_progress) == copied, "a finished copy does not need its source"
        homes.fill("again", {"leftover": b"x"})
        await homes.run("again", archives.unpack_job(target))
        assert homes.show("again") == files

    async def test_a_copy_of_a_missing_archive_is_not_found(self, archives: Archives) -> None:
        with pytest.raises(Failed) as caught:
            await archives.copy(FIRST, ArchiveKey(STRANGER.workspace_id, SECOND.op_id), no_progress)
        assert caught.value.code is Code.ARCHIVE_NOT_FOUND
        assert await listed(archives) == []

    async def test_a_missing_archive_is_not_found(self, archives: Archives, homes: Homes) -> None:
        with pytest.raises(Failed) as caught:
            await archives.manifest_root(FIRST)
        assert caught.value.code is Code.ARCHIVE_NOT_FOUND
        homes.fill("home", {})
        with pytest.raises(Failed) as caught:
            await homes.run("home", archives.unpack_job(FIRST))
        assert caught.value.code is Code.ARCHIVE_NOT_FOUND

    async def test_a_key_of_another_revision_is_refused(self, archives: Archives, homes: Homes) -> None:
        """A reused op_id for another state is an error that is detected."""
        homes.fill("home", {"a": b"content"})
        await homes.run("home", archives.pack_job(FIRST, HOME, 1))
        for home, revision in ((HOME, 2), (replace(HOME, generation=4), 1)):
            with pytest.raises(Failed) as caught:
                await homes.run("home", archives.pack_job(FIRST, home, revision))
            assert caught.value.code is Code.READBACK_MISMATCH

    async def test_a_key_of_another_workspace_is_refused(self, archives: Archives) -> None:
        with pytest.raises(Refused):
            archives.pack_job(FIRST, STRANGER, 1)
        with pytest.raises(Refused):
            await archives.create_empty(FIRST, STRANGER, 1)

    async def test_every_archive_is_listed(self, archives: Archives, homes: Homes) -> None:
        assert await listed(archives) == []
        homes.fill("home", {"a": b"content"})
        await homes.run("home", archives.pack_job(FIRST, HOME, 1))
        stranger = ArchiveKey(STRANGER.workspace_id, FIRST.op_id)
        await archives.create_empty(stranger, STRANGER, 0)
        assert await listed(archives) == [FIRST, stranger]

    async def test_removing_an_archive_keeps_the_others(self, archives: Archives, homes: Homes) -> None:
        homes.fill("home", {"a": b"content"})
        for key in (FIRST, SECOND):
            await homes.run("home", archives.pack_job(key, HOME, 1))
        for _ in range(2):
            await archives.remove(FIRST)
            assert await listed(archives) == [SECOND]
        with pytest.raises(Failed) as caught:
            await archives.manifest_root(FIRST)
        assert caught.value.code is Code.ARCHIVE_NOT_FOUND
        homes.fill("again", {})
        await homes.run("again", archives.unpack_job(SECOND))
        assert homes.show("again") == {"a": b"content"}
        await archives.remove(SECOND)
        assert await listed(archives) == []

    async def test_removing_a_missing_archive_succeeds(self, archives: Archives) -> None:
        await archives.remove(FIRST)
        assert await listed(archives) == []

    async def test_packs_that_do_not_exist(self, archives: Archives) -> None:
        await archives.remove_pack(HOME.workspace_id, PACK)
        assert await archives.pack_size(HOME.workspace_id, PACK) is None
        for asking in (archives.prove_pack(HOME.workspace_id, PACK, 1), archives.root_packs(FIRST)):
            with pytest.raises(Failed) as caught:
                await asking
            assert caught.value.code is Code.ARCHIVE_NOT_FOUND

    async def test_an_archive_of_format_1_has_no_root(self, archives: Archives) -> None:
        await archives.create_empty(FIRST, HOME, 0, format=1)
        with pytest.raises(Failed) as caught:
            await archives.root_packs(FIRST)
        assert caught.value.code is Code.ARCHIVE_NOT_FOUND
        assert await listed_packs(archives) == {}

    async def test_packs_are_listed_proven_and_removed_one_by_one(self, archives: Archives, packs: PackWriter) -> None:
        """Two archives share a pack. The removal of one archive removes only its root."""
        shared, own = await packs.write(FIRST, b"shared"), await packs.write(SECOND, b"own")
        await packs.finish(FIRST, HOME, (shared,))
        await packs.finish(SECOND, HOME, (shared, own))
        assert await listed(archives) == [FIRST, SECOND]
        assert await listed_packs(archives) == {shared: 6, own: 3}
        assert (await archives.root_packs(SECOND)).packs == {shared: 6, own: 3}
        assert (await archives.root_packs(SECOND)).manifest_root == await archives.manifest_root(SECOND)
        proven = await archives.prove_pack(HOME.workspace_id, shared, 6)
        assert (proven.name, proven.size_bytes, proven.is_read_back) == (shared, 6, True)
        assert await archives.prove_pack(HOME.workspace_id, shared, 6) == proven
        for _ in range(2):
            await archives.remove(SECOND)
            assert await listed(archives) == [FIRST]
            assert await listed_packs(archives) == {shared: 6, own: 3}
        for _ in range(2):
            await archives.remove_pack(HOME.workspace_id, own)
            assert await archives.pack_size(HOME.workspace_id, own) is None
            assert await archives.pack_size(HOME.workspace_id, shared) == 6
        assert await archives.manifest_root(FIRST)

    async def test_damaged_and_missing_packs_are_found(self, archives: Archives, packs: PackWriter) -> None:
        name = await packs.write(FIRST, b"content")
        await packs.finish(FIRST, HOME, (name,))
        await packs.damage(HOME.workspace_id, name, b"CONTENT")
        path = f"{HOME.workspace_id}/packs/{name}"
        with pytest.raises(Failed) as caught:
            await archives.prove_pack(HOME.workspace_id, name, 7)
        assert (caught.value.code, caught.value.context["object"]) == (Code.CHECKSUM_MISMATCH, path)
        await packs.damage(HOME.workspace_id, name, b"cont")
        for asking in (archives.prove_pack(HOME.workspace_id, name, 7), archives.manifest_root(FIRST)):
            with pytest.raises(Failed) as caught:
                await asking
            assert (caught.value.code, caught.value.context["object"]) == (Code.CHECKSUM_MISMATCH, path)
        await archives.remove_pack(HOME.workspace_id, name)
        for asking in (archives.prove_pack(HOME.workspace_id, name, 7), archives.manifest_root(FIRST)):
            with pytest.raises(Failed) as caught:
                await asking
            assert (caught.value.code, caught.value.context["object"]) == (Code.ARCHIVE_NOT_FOUND, path)

    async def test_jobs_declare_whether_they_write(self, archives: Archives) -> None:
        assert not archives.pack_job(FIRST, HOME, 1).writes
        assert archives.unpack_job(FIRST).writes

    async def test_the_identity_of_a_store_does_not_change(self, archives: Archives) -> None:
        first = await archives.world()
        await archives.create_empty(FIRST, HOME, 0)
        assert await archives.world() == first
        assert await listed(archives) == [FIRST]

    async def test_reachable(self, archives: Archives, unreachable: Archives) -> None:
        assert await archives.reachable()
        assert not await unreachable.reachable()

    async def test_every_call_to_an_unreachable_store_is_unavailable(self, unreachable: Archives) -> None:
        calls = (
            unreachable.manifest_root(FIRST),
            unreachable.create_empty(FIRST, HOME, 0),
            unreachable.copy(FIRST, SECOND, no_progress),
            listed(unreachable),
            unreachable.remove(FIRST),
            unreachable.remove_pack(HOME.workspace_id, PACK),
            unreachable.pack_size(HOME.workspace_id, PACK),
            unreachable.root_packs(FIRST),
            unreachable.prove_pack(HOME.workspace_id, PACK, 1),
            unreachable.world(),
        )
        # At the same time: each of them tries for seconds.
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable] * len(calls), answers


def no_progress(_done: int, _total: int | None) -> None:
    pass


async def listed(archives: Archives) -> list[ArchiveKey]:
    found = [one async for one in archives.listing() if isinstance(one, ListedArchive)]
    assert all(one.is_whole for one in found)
    return sorted((one.key for one in found), key=str)


async def listed_packs(archives: Archives) -> dict[str, int]:
    """The size of each pack of the workspace."""
    found = [one async for one in archives.listing() if isinstance(one, ListedPack)]
    assert {one.workspace_id for one in found} <= {HOME.workspace_id}
    return {one.name: one.size_bytes for one in found}
