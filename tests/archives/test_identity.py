"""A store that was replaced is distinguished from an empty one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.archives.s3 import S3
from tests.support.archive_jobs import HOME, KEY, MANIFEST, OTHER, ArchiveWorld
from torpor.archives import archives
from torpor.archives.archives import HomeArchives
from torpor.archives.store import IDENTITY, ArchiveStore
from torpor.domain.errors import Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "REMEMBERED_S", 0.0)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def another(world: ArchiveWorld) -> HomeArchives:
    """The same store, as another process sees it."""
    return HomeArchives(f"file://{world.store}")


async def test_a_store_gets_its_identity_once_and_keeps_it_when_moved(world: ArchiveWorld) -> None:
    first = await world.archives.world()
    assert await another(world).world() == first
    moved = world.path / "moved"
    world.store.rename(moved)
    assert await HomeArchives(f"file://{moved}").world() == first
    world.store.mkdir()
    assert await another(world).world() != first


async def test_concurrent_first_clients_get_the_same_identity(world: ArchiveWorld) -> None:
    crowd = [another(world) for _ in range(12)]
    assert len(set(await asyncio.gather(*(one.world() for one in crowd)))) == 1


async def test_in_a_bucket_too(s3: S3) -> None:
    first = await HomeArchives("s3://bucket/prefix", s3.options).world()
    assert await HomeArchives("s3://bucket/prefix", s3.options).world() == first
    assert [path.rpartition("/")[2] for path in s3.contents] == [IDENTITY]


async def test_reading_does_not_create_a_store(tmp_path: Path) -> None:
    nowhere = HomeArchives(f"file://{tmp_path}/store")
    assert not await nowhere.reachable()
    for asking in (nowhere.world(), nowhere.create_empty(KEY, HOME, 0), nowhere.manifest_root(KEY), nowhere.remove(KEY)):
        with pytest.raises(Unavailable, match="does not exist; mount or create it"):
            await asking
    assert names_in(tmp_path) == []
    (tmp_path / "store").mkdir()
    assert await nowhere.reachable()
    assert names_in(tmp_path / "store") == []


@pytest.mark.parametrize("is_asked_for_first", [True, False])
async def test_an_unmounted_disk_does_not_count_as_an_empty_store(world: ArchiveWorld, is_asked_for_first: bool) -> None:
    """Only the mount point is left: an empty directory, or one with another identity."""
    await another(world).world()
    await world.archives.create_empty(KEY, HOME, 0)
    if is_asked_for_first:
        await world.archives.world()
    disk = world.path / "disk"
    world.store.rename(disk)
    world.store.mkdir()
    for _ in range(2):
        for asking in (
            world.archives.world(),
            world.archives.create_empty(OTHER, HOME, 0),
            world.archives.manifest_root(KEY),
            world.archives.remove(KEY),
            anext(world.archives.listing()),
        ):
            with pytest.raises(Unavailable, match="is not the same archive store as before"):
                await asking
        assert not await world.archives.reachable()
        assert names_in(world.store) in ([], [IDENTITY])
        await another(world).world()
    for path in world.store.iterdir():
        path.unlink()
    world.store.rmdir()
    disk.rename(world.store)
    assert await world.archives.manifest_root(KEY)
    assert await world.archives.reachable()
    assert world.object(MANIFEST).exists()


async def test_a_disk_that_disappears_during_a_listing_fails_it(world: ArchiveWorld) -> None:
    await world.archives.world()
    await world.archives.create_empty(KEY, HOME, 0)
    ask, asked = world.archives._ask, 0

    async def ask_until_it_goes(question: Callable[[ArchiveStore], object]) -> object:
        nonlocal asked
        asked += 1
        answer = await ask(question)
        if asked == 2:
            world.store.rename(world.path / "gone")
            world.store.mkdir()
        return answer

    world.archives._ask = ask_until_it_goes  # type: ignore[method-assign,assignment]
    with pytest.raises(Unavailable, match="is not the same archive store as before"):
        await anext(world.archives.listing())
    assert asked == 3
