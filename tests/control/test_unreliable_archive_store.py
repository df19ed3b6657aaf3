"""Garbage collection and the drill with a real S3 server behind a relay: its faults neither remove nor mark a good pack."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faulty_store import Fault, FaultyStore, cut, faulty_store, flip, shorten, status, without
from tests.support.gc_stage import TERM, gc_stage
from tests.support.pack_stage import PackStage
from tests.support.s3_server import S3Server, s3_server
from tests.support.stored_packs import PacksInBucket
from torpor.archives.archives import HomeArchives
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.control.pack_drill import PackDrill
from torpor.domain.errors import Unavailable

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def relay(server: S3Server) -> Iterator[FaultyStore]:
    with faulty_store(server) as relay:
        yield relay


@pytest.fixture
def honest(server: S3Server) -> ArchiveStore:
    """The store without the relay."""
    return ArchiveStore(StoreAddress.parse(server.new_url()), server.options)


@pytest.fixture
async def here(database_url: str, relay: FaultyStore, honest: ArchiveStore) -> AsyncIterator[PackStage]:
    archives = HomeArchives(honest.address.url, {**relay.server.options, "timeout": "2s"})
    await archives.world()
    async with gc_stage(database_url, archives) as made:
        yield PackStage(made, PacksInBucket(honest))
    await archives.close()


def drill(here: PackStage) -> PackDrill:
    return PackDrill(here.gc.packs._database, here.gc.archives, proof_age_s=7 * 86_400.0, bytes_per_s=1e9)


async def aged(here: PackStage, *names: str) -> None:
    await here.change_packs(*names, proven_at="now() - interval '6 days'")


async def standing(here: PackStage) -> dict[str, tuple[bool, bool]]:
    """(was proven again, is damaged) of each pack."""
    rows = await here.gc.owner.fetch(
        "SELECT name, proven_at > now() - interval '1 day', damaged_at IS NOT NULL FROM packs ORDER BY name"
    )
    return {row[0]: (row[1], row[2]) for row in rows}


# ── the drill ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault", [status(503), cut, shorten, flip, status(404)], ids=["503", "cut", "shortened", "flipped", "404"]
)
async def test_a_single_bad_answer_marks_no_pack(here: PackStage, relay: FaultyStore, fault: Fault) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"some content")
    await aged(here, *archive.packs)
    relay.break_first(fault, lambda request: "/packs/" in request.path)
    await drill(here).do(TERM)
    assert await standing(here) == {archive.packs[0]: (True, False)}


async def test_a_store_in_an_outage_marks_no_pack(here: PackStage, relay: FaultyStore) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"some content")
    await aged(here, *archive.packs)
    relay.break_with(status(503))
    with pytest.raises(Unavailable):
        await drill(here).do(TERM)
    assert await standing(here) == {archive.packs[0]: (False, False)}
    relay.mend()
    await drill(here).do(TERM)
    assert await standing(here) == {archive.packs[0]: (True, False)}


async def test_a_pack_that_cannot_be_read_is_not_damaged(here: PackStage, relay: FaultyStore) -> None:
    archive = await here.archive(await here.gc.workspace("demo"), b"some content")
    await aged(here, *archive.packs)
    relay.break_with(status(503), lambda request: "/packs/" in request.path)
    await drill(here).do(TERM)
    assert await standing(here) == {archive.packs[0]: (False, False)}


async def test_lost_and_damaged_packs_are_marked(here: PackStage, honest: ArchiveStore) -> None:
    workspace_id = await here.gc.workspace("demo")
    archive = await here.archive(workspace_id, b"lost", b"damaged", b"good")
    lost, damaged, good = archive.packs
    honest.remove_one(pack_path(workspace_id, lost))
    honest.replace(pack_path(workspace_id, damaged), b"DAMAGED")
    await aged(here, *archive.packs)
    duty = drill(here)
    while await duty.do(TERM) is not None:
        pass
    assert await standing(here) == {lost: (False, True), damaged: (False, True), good: (True, False)}


# ── garbage collection ────────────────────────────────────────────────────────────────────────────────────────────────


async def ripe(here: PackStage) -> tuple[str, set[str]]:
    """A workspace with a pack that the next collection removes; its archives that stay, and their packs."""
    workspace_id, _, kept = await here.superseded("demo")
    for _ in range(2):
        await here.collect()
        await here.grace_passes()
    needed = {name for archive in kept for name in archive.packs}
    assert len(await here.stored()) == len(needed) + 1
    return workspace_id, needed


async def test_a_collection_during_an_outage_removes_nothing(here: PackStage, relay: FaultyStore) -> None:
    _, needed = await ripe(here)
    relay.break_with(status(503))
    with pytest.raises(Unavailable):
        await here.gc.collector().collect(TERM)
    relay.mend()
    assert len(await here.stored()) == len(needed) + 1
    assert (await here.collect())["removed"] == 1
    assert await here.stored() == needed


async def test_a_removal_that_the_store_refuses_is_repeated(here: PackStage, relay: FaultyStore) -> None:
    _, needed = await ripe(here)
    relay.break_with(status(503), lambda request: request.method in ("DELETE", "POST"))
    report = await here.collect()
    assert report["removed"] == 0
    relay.mend()
    assert (await here.collect())["removed"] == 1
    assert await here.stored() == needed


async def test_a_root_that_is_lost_or_damaged_keeps_all_packs(here: PackStage, honest: ArchiveStore) -> None:
    workspace_id, needed = await ripe(here)
    key = next(root.key for root in await here.gc.packs.roots(workspace_id))
    intact = honest.content(root_path(key))
    for damage in (None, intact[:-4]):
        if damage is None:
            honest.remove_one(root_path(key))
        else:
            honest.replace(root_path(key), damage)
        await here.gc.collect()
        assert len(await here.stored()) == len(needed) + 1
    honest.replace(root_path(key), intact)
    assert (await here.collect())["removed"] == 1
    assert await here.stored() == needed


async def test_a_late_listing_removes_no_needed_pack(here: PackStage, relay: FaultyStore) -> None:
    _, needed = await ripe(here)
    relay.break_with(without(*needed), lambda request: request.is_listing)
    await here.collect()
    relay.mend()
    assert needed <= await here.stored()
    assert {name for name, (is_marked, _) in (await here.rows()).items() if is_marked}.isdisjoint(needed)


async def test_a_listing_that_still_has_removed_packs(here: PackStage, relay: FaultyStore) -> None:
    """They are removed once more, or reported; nothing else is touched."""
    _, needed = await ripe(here)
    relay.list_as_now()
    assert (await here.collect())["removed"] == 1
    for _ in range(2):
        await here.collect()
        await here.grace_passes()
    relay.mend()
    assert await here.stored() == needed
    assert set(await here.rows()) == needed
