"""Is an archive listed while it is whole, and is nothing left of one that was removed?"""

import re
from collections.abc import Iterator

import pytest
from tests.archives.s3 import S3
from tests.archives.world import DATA, HOME, KEY, MANIFEST, OTHER, World

from torpor.archives import HomeArchives
from torpor.archives.places import LISTED_AT_ONCE
from torpor.domain.errors import Failed, Unavailable
from torpor.domain.records import ArchiveKey

pytestmark = pytest.mark.anyio


async def listed(archives: HomeArchives) -> set[ArchiveKey]:
    return {key async for key in archives.keys()}  # noqa: SIM118 - no mapping


async def test_what_is_not_whole_is_no_archive(world: World) -> None:
    for key in (KEY, OTHER):
        await world.archives.create_empty(key, HOME, 0)
    world.object(MANIFEST).unlink()
    (world.store / "README").write_text("not ours")
    (world.store / "a" / "b" / "c").mkdir(parents=True)
    (world.store / "a" / "b" / "c" / MANIFEST).write_text("too deep")
    assert await listed(world.archives) == {OTHER}


async def test_what_is_half_removed_is_removed_to_its_end(world: World) -> None:
    for key in (KEY, OTHER):
        await world.archives.create_empty(key, HOME, 0)
    world.object(MANIFEST).unlink()
    world.object(DATA + "#1").write_bytes(b"left behind by a writer that was killed")
    await world.archives.remove(KEY)
    assert sorted(path.name for path in world.store.rglob("*")) == sorted([HOME.workspace_id, OTHER.op_id, DATA, MANIFEST])


async def test_the_folders_of_the_last_archive_go_with_it_and_the_store_stays(world: World) -> None:
    await world.archives.create_empty(KEY, HOME, 0)
    (world.store / "README").write_text("not ours")
    await world.archives.remove(KEY)
    assert [path.name for path in world.store.iterdir()] == ["README"]
    await world.archives.create_empty(KEY, HOME, 0)
    assert await listed(world.archives) == {KEY}


async def test_more_than_one_page(world: World) -> None:
    keys = {ArchiveKey("ws-1", f"op-{number}") for number in range(LISTED_AT_ONCE + 1)}
    for key in keys:
        world.object(MANIFEST, key).parent.mkdir(parents=True)
        world.object(MANIFEST, key).touch()
    assert await listed(world.archives) == keys


class Bucket(S3):
    """A bucket that says what it holds two objects at a time, all of it whatever it is asked for."""

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


async def test_a_bucket_is_listed_to_its_end_or_not_at_all(bucket: Bucket) -> None:
    archives = HomeArchives("s3://bucket/prefix", bucket.options)
    assert await listed(archives) == {KEY, OTHER}
    bucket.breaks_off = True
    with pytest.raises(Unavailable, match="cannot be listed"):
        await listed(archives)


async def test_the_manifest_goes_first_and_nothing_that_was_not_meant(bucket: Bucket) -> None:
    archives = HomeArchives("s3://bucket/prefix", bucket.options)
    await archives.remove(OTHER)
    assert bucket.removed == [f"prefix/{OTHER}/{MANIFEST}", f"prefix/{OTHER}/{DATA}"]
    assert await listed(archives) == {KEY}


async def test_removed_means_seen_to_be_gone(bucket: Bucket) -> None:
    bucket.keeps = True
    with pytest.raises(Failed, match="and yet it is there"):
        await HomeArchives("s3://bucket/prefix", bucket.options).remove(OTHER)
