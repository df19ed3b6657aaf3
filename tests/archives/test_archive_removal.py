"""Complete archives are listed, and a removed archive leaves no objects."""

import os
import re
import uuid
from collections.abc import Iterator

import pytest

from tests.archives.s3 import S3
from tests.support.archive_jobs import DATA, HOME, KEY, MANIFEST, OTHER, ArchiveWorld, as_nobody
from tests.support.stored_packs import StoredPacks
from torpor.archives.archives import HomeArchives
from torpor.archives.packs.layout import pack_path, root_path
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ArchiveKey
from torpor.ports import ListedArchive, ListedPack

pytestmark = pytest.mark.anyio


async def listed(archives: HomeArchives) -> dict[ArchiveKey, bool]:
    """Every key, with whether the archive is complete."""
    return {found.key: found.is_whole async for found in archives.listing() if isinstance(found, ListedArchive)}


async def test_archives_are_complete_with_a_manifest_and_foreign_files_are_ignored(world: ArchiveWorld) -> None:
    for key in (KEY, OTHER):
        await world.archives.create_empty(key, HOME, 0)
    world.object(MANIFEST).unlink()
    empty = ArchiveKey(HOME.workspace_id, str(uuid.uuid4()))
    (world.store / str(empty)).mkdir()
    (world.store / "README").write_text("not ours")
    (world.store / HOME.workspace_id / "README").write_text("not ours")
    too_deep = world.store / "a" / str(OTHER)
    too_deep.mkdir(parents=True)
    (too_deep / MANIFEST).write_text("too deep")
    (world.store / str(uuid.uuid4())).symlink_to(world.store / HOME.workspace_id)
    assert await listed(world.archives) == {KEY: False, OTHER: True, empty: False}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can close a directory to another user")
def test_an_unreadable_system_folder_is_skipped(reachable_for_all: ArchiveWorld) -> None:
    """An ext4 disk has a lost+found that belongs to root."""
    world = reachable_for_all
    (world.store / "lost+found").mkdir(mode=0o700)
    script = (
        "import asyncio\n"
        "from torpor.archives.archives import HomeArchives\n"
        "async def main():\n"
        "    print([str(found.key) async for found in HomeArchives(sys.argv[1]).listing()])\n"
        "asyncio.run(main())\n"
    )
    (world.store / str(KEY)).mkdir(parents=True)
    for path in (world.store / HOME.workspace_id, world.store / str(KEY)):
        os.chown(path, 65534, 65534)
    assert as_nobody(script, f"file://{world.store}").stdout.decode().strip() == str([str(KEY)])


async def test_a_partly_removed_archive_is_removed_completely(world: ArchiveWorld) -> None:
    for key in (KEY, OTHER):
        await world.archives.create_empty(key, HOME, 0)
    world.object(MANIFEST).unlink()
    world.object(DATA + "#1").write_bytes(b"left behind by a writer that was killed")
    await world.archives.remove(KEY)
    assert sorted(path.name for path in world.store.rglob("*")) == sorted([HOME.workspace_id, OTHER.op_id, DATA, MANIFEST])


async def test_removing_the_last_archive_removes_its_folders_and_keeps_the_store(world: ArchiveWorld) -> None:
    await world.archives.create_empty(KEY, HOME, 0)
    (world.store / "README").write_text("not ours")
    await world.archives.remove(KEY)
    assert [path.name for path in world.store.iterdir()] == ["README"]
    await world.archives.create_empty(KEY, HOME, 0)
    assert await listed(world.archives) == {KEY: True}


async def test_a_folder_that_cannot_be_removed_is_an_error(world: ArchiveWorld) -> None:
    await world.archives.create_empty(KEY, HOME, 0)
    (world.store / str(KEY) / "odd").mkdir()
    with pytest.raises(Failed, match="not empty"):
        await world.archives.remove(KEY)


class Bucket(S3):
    """A bucket that lists all its objects for any prefix, two per page."""

    def __init__(self, *keys: ArchiveKey) -> None:
        super().__init__()
        self.held = [f"prefix/{key}/{name}" for key in keys for name in (DATA, MANIFEST)]
        self.removed: list[str] = []
        self.breaks_off = self.keeps = False

    def answer(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, bytes]:
        if method == "POST" and "delete" in query:
            meant = re.findall("<Key>(.*?)</Key>", self.received.decode())
            self.removed += meant
            if not self.keeps:
                self.held = [one for one in self.held if one not in meant]
            deleted = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in meant)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode()
        if method == "GET" and "list-type" in query:
            return self.page(int(query.get("continuation-token", ["0"])[0]))
        return super().answer(method, path, query)

    def page(self, start: int) -> tuple[int, bytes]:
        if start and self.breaks_off:
            return 403, b"<Error><Code>AccessDenied</Code></Error>"
        rest = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{start + 2}</NextContinuationToken>"
        objects = "".join(
            f"<Contents><Key>{one}</Key><Size>1</Size><ETag>e</ETag>"
            "<LastModified>2026-03-01T12:00:00.000Z</LastModified></Contents>"
            for one in self.held[start : start + 2]
        )
        return 200, f"<ListBucketResult>{rest if start + 2 < len(self.held) else ''}{objects}</ListBucketResult>".encode()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket(KEY, OTHER)
    with bucket:
        yield bucket


async def test_a_bucket_is_listed_completely_or_not_at_all(bucket: Bucket) -> None:
    archives = HomeArchives("s3://bucket/prefix", bucket.options)
    assert await listed(archives) == {KEY: True, OTHER: True}
    bucket.breaks_off = True
    with pytest.raises(Unavailable, match="cannot be listed"):
        await listed(archives)


async def test_the_manifest_is_removed_first_and_other_archives_stay(bucket: Bucket) -> None:
    archives = HomeArchives("s3://bucket/prefix", bucket.options)
    await archives.remove(OTHER)
    assert bucket.removed == [f"prefix/{OTHER}/{MANIFEST}", f"prefix/{OTHER}/{DATA}"]
    assert await listed(archives) == {KEY: True}


async def test_a_bucket_may_contain_foreign_and_incomplete_objects(bucket: Bucket) -> None:
    bucket.held.remove(f"prefix/{KEY}/{MANIFEST}")
    bucket.held += ["prefix/README", f"prefix/odd/{OTHER}/{MANIFEST}", f"prefix/{HOME.workspace_id}/README"]
    assert await listed(HomeArchives("s3://bucket/prefix", bucket.options)) == {KEY: False, OTHER: True}


PACK = f"{KEY.op_id}-{'0' * 64}"


async def listed_packs(archives: HomeArchives) -> list[ListedPack]:
    return [found async for found in archives.listing() if isinstance(found, ListedPack)]


async def test_a_bucket_has_packs_and_roots_beside_archives_of_format_1(bucket: Bucket) -> None:
    root = ArchiveKey(HOME.workspace_id, str(uuid.uuid4()))
    packs, roots = f"prefix/{HOME.workspace_id}/packs", f"prefix/{HOME.workspace_id}/archives"
    bucket.held += [f"{packs}/{PACK}", f"{packs}/README", f"{roots}/{root.op_id}.json.zst", f"{roots}/{root.op_id}.json"]
    archives = HomeArchives("s3://bucket/prefix", bucket.options)
    assert await listed(archives) == {KEY: True, OTHER: True, root: True}
    assert await listed_packs(archives) == [ListedPack(HOME.workspace_id, PACK, 1)]
    await archives.remove_pack(HOME.workspace_id, PACK)
    assert bucket.removed == [f"{packs}/{PACK}"]


async def test_a_directory_has_packs_and_roots_beside_archives_of_format_1(world: ArchiveWorld) -> None:
    await world.archives.create_empty(KEY, HOME, 0)
    packs = StoredPacks(world.store)
    name = await packs.write(OTHER, b"content")
    await packs.finish(OTHER, HOME, (name,))
    folder = world.store / HOME.workspace_id
    (folder / "packs" / f"{name}#1").write_bytes(b"left behind by a writer that was killed")
    (folder / "packs" / "README").write_bytes(b"not ours")
    (folder / "archives" / "README").write_bytes(b"not ours")
    assert await listed(world.archives) == {KEY: True, OTHER: True}
    assert await listed_packs(world.archives) == [ListedPack(HOME.workspace_id, name, 7)]
    await world.archives.remove_pack(HOME.workspace_id, name)
    assert sorted(path.name for path in (folder / "packs").iterdir()) == ["README"]
    await world.archives.remove(OTHER)
    assert await listed(world.archives) == {KEY: True}


async def test_what_a_killed_writer_left_in_a_directory_is_listed_and_removed(world: ArchiveWorld) -> None:
    await world.archives.create_empty(OTHER, HOME, 0, format=2)
    root, pack = world.store / root_path(KEY), world.store / pack_path(HOME.workspace_id, PACK)
    part = pack.with_name(f"{PACK}#1")
    part.write_bytes(b"half of it")
    root.with_name(f"{root.name}#12").write_bytes(b"half of it")
    assert await listed(world.archives) == {OTHER: True, KEY: False}
    assert ListedPack(HOME.workspace_id, PACK, 10, is_whole=False) in await listed_packs(world.archives)
    pack.write_bytes(b"x")
    assert ListedPack(HOME.workspace_id, PACK, 1) in await listed_packs(world.archives), "the next attempt wrote it"
    pack.unlink()
    await world.archives.remove_pack(HOME.workspace_id, PACK)
    await world.archives.remove(KEY)
    assert not [path for path in world.store.rglob("*") if "#" in path.name]
    await world.archives.manifest_root(OTHER)


async def test_a_version_changes_when_a_pack_is_written_again(world: ArchiveWorld) -> None:
    packs = StoredPacks(world.store)
    name = await packs.write(KEY, b"content")
    first = await world.archives.prove_pack(HOME.workspace_id, name, 7)
    (world.store / HOME.workspace_id / "packs" / name).unlink()
    await packs.write(KEY, b"content")
    second = await world.archives.prove_pack(HOME.workspace_id, name, 7)
    assert first.store_version != second.store_version


async def test_an_error_names_the_damaged_root(world: ArchiveWorld) -> None:
    packs = StoredPacks(world.store)
    await packs.finish(KEY, HOME, (await packs.write(KEY, b"content"),))
    path = f"{HOME.workspace_id}/archives/{KEY.op_id}.json.zst"
    (world.store / path).write_bytes(b"damaged")
    for asking in (world.archives.manifest_root(KEY), world.archives.root_packs(KEY)):
        with pytest.raises(Failed) as caught:
            await asking
        assert (caught.value.code, caught.value.context["object"]) == (Code.CHECKSUM_MISMATCH, path)


def test_the_result_of_a_job_names_lost_packs(world: ArchiveWorld) -> None:
    said = {"format": 2, "manifest_root": "root", "size_bytes": 1, "home_bytes": 1, "files": 1, "packs": []}
    assert world.archives.proven(KEY, HOME, 0, said).lost == ()
    assert world.archives.proven(KEY, HOME, 0, {**said, "lost": ["a", "b"]}).lost == ("a", "b")


async def test_a_removal_fails_if_the_object_still_exists(bucket: Bucket) -> None:
    bucket.keeps = True
    with pytest.raises(Failed, match="but still exists"):
        await HomeArchives("s3://bucket/prefix", bucket.options).remove(OTHER)
