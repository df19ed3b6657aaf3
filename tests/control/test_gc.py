"""Exactly the archives that no workspace needs are collected, also with concurrent changes."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.support.control_plane import control_plane
from tests.support.gc_stage import ARCHIVING, IN_ERROR, RETENTION, TERM, GcStage, deleted, gc_stage
from tests.support.waiting import until
from torpor import metrics
from torpor.archives.archives import HomeArchives
from torpor.control.gc import GarbageCollector
from torpor.domain.errors import Code, Deposed, Failed, Refused, Unavailable
from torpor.domain.retention import Retention, decide
from torpor.domain.states import Phase, Wish
from torpor.store.gc import GcStore, StoreComparison
from torpor.store.pack_gc import PackGcStore
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeArchives, FakeWorld

pytestmark = pytest.mark.anyio

AT_ONCE = Retention(keep=1, grace=timedelta(0), undelete_grace=timedelta(0), keep_daily=0, keep_weekly=0)


@pytest.fixture
async def here(database_url: str, tmp_path: Path) -> AsyncIterator[GcStage]:
    """With a real store in a directory."""
    async with gc_stage(database_url, HomeArchives(f"file://{tmp_path}")) as made:
        yield made


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
async def faked(database_url: str, world: FakeWorld) -> AsyncIterator[GcStage]:
    """With a fake store, in which the test can cause faults."""
    async with gc_stage(database_url, FakeArchives(world)) as made:
        yield made


# ── what is collected ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_secrets_go_when_their_workspace_can_no_longer_be_undeleted(here: GcStage) -> None:
    grace_s = RETENTION.undelete_grace.total_seconds()
    states = {"alive": {}, "deleted": deleted(seconds=grace_s - 60), "gone": deleted(seconds=grace_s + 60)}
    for name, columns in states.items():
        workspace_id = await here.workspace(name, **columns)
        await here.owner.execute(
            "INSERT INTO secrets (workspace_id, name, sealed, key_id, value_bytes) VALUES ($1, 'A', 'x', 'k', 1)",
            uuid.UUID(workspace_id),
        )
    await here.collect()
    kept = await here.owner.fetch("SELECT w.name FROM secrets JOIN workspaces AS w ON w.id = workspace_id ORDER BY 1")
    assert [row["name"] for row in kept] == ["alive", "deleted"]


async def test_an_orphan_is_marked_and_removed_after_the_grace_period(here: GcStage) -> None:
    demo = await here.workspace("demo")
    first, second, third, old = [await here.archive(demo, hours=hours) for hours in (1, 2, 3, 4)]
    await here.point(demo, third)

    report = await here.collect()
    assert await here.rows() == {first: (False, False), second: (False, False), third: (False, False), old: (True, False)}
    assert (report["kept"], report["orphans"], report["removed"], report["skipped"]) == (3, 1, 0, None)

    assert (await here.collect())["orphans"] == 1
    await here.grace_passes()
    before = metrics.gc_removed_total._value.get()
    report = await here.collect()
    assert (report["kept"], report["orphans"], report["removed"], report["freed_bytes"]) == (3, 0, 1, 1000)
    assert await here.objects() == set(await here.rows()) == {first, second, third}
    assert metrics.gc_removed_total._value.get() == before + 1
    assert 3 * 3600 <= metrics.archive_verified_age_seconds._value.get() < 3 * 3600 + 600


async def test_archives_of_deleted_workspaces_expire_and_those_of_purged_ones_at_once(here: GcStage) -> None:
    lately = await here.workspace("lately", **deleted(days=6))
    long_ago = await here.workspace("long-ago", **deleted(days=8))
    purged = await here.workspace("purged", **deleted(minutes=1), purge="true")
    keys = {}
    for workspace in (lately, long_ago, purged):
        keys[workspace] = await here.archive(workspace, hours=1)
        await here.point(workspace, keys[workspace])
    await here.collect()
    marked = {key for key, (is_marked, _) in (await here.rows()).items() if is_marked}
    assert marked == {keys[long_ago], keys[purged]}
    await here.grace_passes()
    await here.collect()
    assert await here.objects() == {keys[lately]}


async def test_an_archive_that_is_needed_again_within_the_grace_period_is_kept(here: GcStage) -> None:
    demo = await here.workspace("demo")
    keys = [await here.archive(demo, hours=hours) for hours in (1, 2, 3)]
    await here.collect()
    assert (await here.rows())[keys[2]] == (True, False)
    await here.change(demo, **IN_ERROR)
    await here.grace_passes()
    assert (await here.collect())["orphans"] == 0
    assert await here.objects() == set(await here.rows()) == set(keys)


async def test_a_collection_without_changes_writes_nothing(here: GcStage) -> None:
    demo = await here.workspace("demo")
    for hours in (1, 2, 3):
        await here.archive(demo, hours=hours)
    await here.collect()
    written = await here.owner.fetchval("SELECT xmin::text || xmax::text FROM workspaces")
    before = await here.everything()
    await here.collect()
    assert await here.owner.fetchval("SELECT xmin::text || xmax::text FROM workspaces") == written
    assert await here.everything() == before


# ── what is never collected ───────────────────────────────────────────────────────────────────────────────────────────


async def test_archives_that_are_not_in_the_database_are_reported_and_kept(here: GcStage) -> None:
    """A database from an older backup does not have the archives and changes since then."""
    demo = await here.workspace("demo", **deleted(days=30), purge="true")
    known = await here.archive(demo, hours=1, orphan_since="now() - interval '3 hours'")
    since = await here.archive(demo, hours=0, in_table=False)
    stranger = await here.archive(str(uuid.uuid4()), hours=0, in_table=False)
    other = await here.workspace("other", **deleted(days=30), purge="true")
    gone = await here.archive(other, hours=1, orphan_since="now() - interval '3 hours'")
    report = await here.collect()
    assert report["unknown"] == sorted([since, stranger])
    assert report["unknown_count"] == 2
    # A workspace whose row may be older than its archives keeps all of them; others are collected.
    assert await here.objects() == {since, stranger, known}
    assert await here.rows() == {known: (False, False)}
    assert gone not in await here.rows()


async def test_archives_missing_in_the_store_are_reported_and_do_not_count_as_kept(here: GcStage) -> None:
    demo = await here.workspace("demo")
    lost = [await here.archive(demo, hours=hours, in_store=False) for hours in (1, 2)]
    there = [await here.archive(demo, hours=hours) for hours in (3, 4)]
    report = await here.collect(replace(DEFAULTS.retention, keep=2, grace=timedelta(0)))
    assert report["missing"] == sorted(lost)
    assert report["orphans"] == 0
    assert await here.objects() == set(there)
    assert set(await here.rows()) == {*lost, *there}


async def test_an_archive_that_is_being_written_is_neither_unknown_nor_touched(here: GcStage) -> None:
    demo = await here.workspace("demo")
    in_the_making = await here.archive(demo, hours=0, in_table=False)
    await here.change(demo, **ARCHIVING, op_id=f"'{in_the_making.partition('/')[2]}'")
    old = [await here.archive(demo, hours=hours) for hours in (1, 2, 3)]
    report = await here.collect()
    assert report["unknown"] == []
    assert in_the_making in await here.objects()
    assert (await here.rows())[old[2]] == (True, False)


async def test_archives_of_an_operation_or_an_error_are_kept_after_the_deletion(here: GcStage) -> None:
    under_way = await here.workspace("under-way", **deleted(days=30), **ARCHIVING)
    in_error = await here.workspace("in-error", **{**deleted(days=30), **IN_ERROR, "phase": "'DELETING'"})
    keys = set()
    for workspace in (under_way, in_error):
        key = await here.archive(workspace, hours=1)
        await here.point(workspace, key)
        keys.add(key)
    assert (await here.collect())["orphans"] == 0
    assert await here.objects() == keys


@pytest.mark.parametrize(
    ("constraint", "is_pointed_at", "statement"),
    [
        ("only_what_was_marked_is_forgotten", False, "DELETE FROM archives"),
        ("only_orphans_are_removed", False, "UPDATE archives SET removing_since = now()"),
        ("what_is_pointed_at_is_not_removed", True, "UPDATE archives SET orphan_since = now(), removing_since = now()"),
    ],
)
async def test_the_database_refuses_to_lose_an_archive(
    here: GcStage, constraint: str, is_pointed_at: bool, statement: str
) -> None:
    demo = await here.workspace("demo")
    key = await here.archive(demo, hours=1, in_store=False)
    if is_pointed_at:
        await here.point(demo, key)
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await here.owner.execute(statement)
    assert refused.value.constraint_name == constraint


async def test_a_removal_that_has_begun_is_not_undone(here: GcStage) -> None:
    key = await here.archive(await here.workspace("demo"), hours=1, in_store=False, orphan_since="now()")
    await here.mark(key, removing_since="now()")
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await here.mark(key, orphan_since="NULL", removing_since="NULL")
    assert refused.value.constraint_name == "a_removal_is_not_taken_back"


# ── when something is out, or ends in the middle ──────────────────────────────────────────────────────────────────────


async def ripe(here: GcStage) -> tuple[str, str]:
    """One archive that is kept, and one whose grace period has passed."""
    demo = await here.workspace("demo")
    purged = await here.workspace("purged", **deleted(days=1), purge="true")
    kept = await here.archive(demo, hours=1)
    await here.archive(demo, hours=2)
    await here.archive(demo, hours=3)
    return kept, await here.archive(purged, hours=4, orphan_since="now() - interval '3 hours'")


async def test_an_unreachable_store_only_skips_the_collection(faked: GcStage, world: FakeWorld) -> None:
    await ripe(faked)
    before, objects = await faked.everything(), await faked.objects()
    world.archives_out = True
    with pytest.raises(Unavailable):
        await faked.collector().collect(TERM)
    world.archives_out = False
    assert await faked.everything() == before
    assert await faked.objects() == objects
    report = await faked.report()
    assert report["skipped"] == "the fake archive store is out"
    assert (await faked.seen.housekeeping()).ran_at is None


async def test_an_interrupted_listing_only_skips_the_collection(faked: GcStage, world: FakeWorld) -> None:
    await ripe(faked)
    before, objects, asked = await faked.everything(), await faked.objects(), 0

    async def break_off(verb: str, _workspace_id: str) -> None:
        nonlocal asked
        asked += verb == "listing"
        if asked == 3:
            raise Unavailable("the connection was lost")

    world.interfere = break_off
    with pytest.raises(Unavailable):
        await faked.collector().collect(TERM)
    world.interfere = FakeWorld().interfere
    assert await faked.everything() == before
    assert await faked.objects() == objects


async def test_a_removal_interrupted_by_an_outage_is_continued_later(faked: GcStage, world: FakeWorld) -> None:
    purged = await faked.workspace("purged", **deleted(days=1), purge="true")
    keys = [await faked.archive(purged, hours=1, orphan_since="now() - interval '3 hours'") for _ in range(4)]
    removals = 0

    async def fall_silent(verb: str, _workspace_id: str) -> None:
        nonlocal removals
        removals += verb == "remove"
        if removals > 1:
            raise Unavailable("silent")

    world.interfere = fall_silent
    with pytest.raises(Unavailable):
        await faked.collector().collect(TERM)
    world.interfere = FakeWorld().interfere
    assert (await faked.report())["removed"] == 1
    left = await faked.objects()
    assert len(left) == 3
    assert await faked.rows() == dict.fromkeys(left, (True, True))
    assert (await faked.collect())["removed"] == 3
    assert await faked.objects() == set() == set(await faked.rows()) & set(keys)


async def test_an_archive_that_cannot_be_removed_does_not_delay_others(faked: GcStage, world: FakeWorld) -> None:
    bad = await faked.workspace("bad", **deleted(days=1), purge="true")
    good = await faked.workspace("good", **deleted(days=1), purge="true")
    stuck = await faked.archive(bad, hours=1, orphan_since="now() - interval '3 hours'")
    await faked.archive(good, hours=1, orphan_since="now() - interval '3 hours'")

    async def refuse(verb: str, workspace_id: str) -> None:
        if (verb, workspace_id) == ("remove", bad):
            raise Failed(Code.S3_ACCESS_ERROR, "this object is locked")

    world.interfere = refuse
    report = await faked.collect()
    assert report["failed"] == {stuck: "this object is locked"}
    assert report["removed"] == 1
    assert await faked.rows() == {stuck: (True, True)}


@pytest.mark.parametrize("is_object_gone", [False, True])
async def test_a_collection_that_ended_in_the_middle_of_a_removal_is_continued(here: GcStage, is_object_gone: bool) -> None:
    demo = await here.workspace("demo")
    keys = [await here.archive(demo, hours=hours, in_store=hours < 3 or not is_object_gone) for hours in (1, 2, 3)]
    await here.mark(keys[2], orphan_since="now() - interval '9 hours'", removing_since="now() - interval '1 hour'")
    report = await here.collect()
    assert report["removed"] == 1
    assert report["missing"] == []
    assert await here.objects() == set(await here.rows()) == set(keys[:2])


async def test_a_deposed_leader_writes_nothing(here: GcStage) -> None:
    await ripe(here)
    before, objects = await here.everything(), await here.objects()
    await here.depose()
    with pytest.raises(Deposed):
        await here.collector().collect(TERM)
    assert await here.everything() == before
    assert await here.objects() == objects
    assert (await here.seen.housekeeping()).tried_at is None


async def test_a_leader_deposed_between_listing_and_marking_marks_nothing(faked: GcStage, world: FakeWorld) -> None:
    await ripe(faked)
    before = await faked.everything()

    async def depose(verb: str, workspace_id: str) -> None:
        if (verb, workspace_id) == ("listing", ""):
            await faked.depose()

    world.interfere = depose
    with pytest.raises(Deposed):
        await faked.collector().collect(TERM)
    assert await faked.everything() == before


async def test_a_late_removal_of_a_deposed_leader_removes_no_current_archive(faked: GcStage, world: FakeWorld) -> None:
    """A collector that was stopped during a removal continues hours later, after another leader finished the work."""
    kept, gone = await ripe(faked)
    stopped, goes_on = asyncio.Event(), asyncio.Event()

    async def stop(verb: str, _workspace_id: str) -> None:
        if verb == "remove" and not stopped.is_set():
            stopped.set()
            await goes_on.wait()

    world.interfere = stop
    late = asyncio.create_task(faked.collector().collect(TERM))
    await stopped.wait()
    await faked.depose()
    await faked.collector().collect(TERM + 1)
    assert gone not in await faked.objects()
    after, objects = await faked.everything(), await faked.objects()
    goes_on.set()
    with pytest.raises(Deposed):
        await late
    assert await faked.everything() == after
    assert await faked.objects() == objects
    assert kept in objects


# ── races ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_undelete_before_the_mark_keeps_the_archive(here: GcStage) -> None:
    demo = await here.workspace("demo", **deleted(days=8))
    key = await here.archive(demo, hours=1)
    await here.point(demo, key)
    async with here.service.writing() as writing:
        await writing.lock(demo)
        await writing.set_wish(demo, Wish.ARCHIVED)
        # Not committed yet: a collector skips the locked workspace and does not wait.
        await here.collect()
        assert await here.rows() == {key: (False, False)}
    await here.collect()
    assert await here.rows() == {key: (False, False)}


async def test_an_undelete_after_the_mark_is_refused(here: GcStage) -> None:
    demo = await here.workspace("demo", **deleted(days=8))
    await here.point(demo, await here.archive(demo, hours=1))
    async with here.store.holding(TERM, [demo], StoreComparison()) as holding:
        undelete = asyncio.create_task(here.wishes.undelete(here.user, "demo"))
        await until_somebody_waits(here)
        [held] = await holding.held()
        await holding.write(decide(held.holder, held.archives, RETENTION, held.at))
    with pytest.raises(Refused) as refused:
        await undelete
    assert refused.value.code == "archive_collected"


async def until_somebody_waits(here: GcStage) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: here.owner.fetchval(waiting), within_s=10)


async def test_undelete_of_a_collected_workspace_is_refused(here: GcStage) -> None:
    demo = await here.workspace("demo", **deleted(days=8))
    await here.point(demo, await here.archive(demo, hours=1))
    await here.collect()
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await here.wishes.undelete(here.user, "demo")
        assert refused.value.code == "archive_collected"
        await here.grace_passes()
        await here.collect()
    assert await here.rows() == {}


async def test_concurrent_undeletes_and_collections_lose_no_archive_in_use(here: GcStage) -> None:
    dice = random.Random(3)
    workspaces, codes = {}, set()
    for number in range(20):
        workspace = await here.workspace(f"demo-{number}", **deleted(days=8))
        workspaces[workspace] = await here.archive(workspace, hours=1)
        await here.point(workspace, workspaces[workspace])

    async def undelete(workspace: str) -> str | None:
        await asyncio.sleep(dice.random() / 5)
        try:
            await here.wishes.undelete(here.user, workspace)
        except Refused as refused:
            codes.add(refused.code)
            return None
        return workspace

    async def collect_without_end() -> None:
        while True:
            await here.collect(AT_ONCE)

    collecting = asyncio.create_task(collect_without_end())
    back = [one for one in await asyncio.gather(*map(undelete, workspaces)) if one is not None]
    assert not collecting.done()
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    for _ in range(3):
        await here.collect(AT_ONCE)
    assert codes <= {"archive_collected"}
    assert await here.objects() == set(await here.rows()) == {workspaces[workspace] for workspace in back}


async def test_recover_refuses_a_marked_archive(here: GcStage) -> None:
    demo = await here.workspace("demo", **IN_ERROR)
    key = await here.archive(demo, hours=1, orphan_since="now()")
    with pytest.raises(Refused) as refused:
        await here.wishes.recover(here.user, "demo", archive_key=key)
    assert refused.value.code == "archive_collected"
    # The workspace has an error: the next collection removes the mark.
    await here.collect()
    await here.wishes.recover(here.user, "demo", archive_key=key)
    assert (await here.wishes.find(here.user, "demo")).recover_request is not None


async def test_an_archive_requested_by_a_recovery_is_kept_after_the_error(here: GcStage) -> None:
    demo = await here.workspace("demo", **IN_ERROR)
    keys = [await here.archive(demo, hours=hours) for hours in (1, 2, 3, 4)]
    await here.wishes.recover(here.user, "demo", archive_key=keys[3])
    # Before and after the controller executes it.
    for row in ({"phase": "'PENDING'", "error_info": "NULL"}, {"phase": "'ARCHIVED'"}):
        await here.change(demo, **row)
        await here.collect()
        assert {key for key, (is_marked, _) in (await here.rows()).items() if is_marked} == {keys[2]}


async def test_an_archive_is_stored_while_archives_are_marked(here: GcStage) -> None:
    """The controller refers to an older archive in a transaction that is not committed yet."""
    demo = await here.workspace("demo")
    keys = [await here.archive(demo, hours=hours) for hours in (1, 2, 3)]
    transaction = here.owner.transaction()
    await transaction.start()
    await here.point(demo, keys[2])
    await here.collector().collect(TERM)
    await transaction.commit()
    assert await here.rows() == dict.fromkeys(keys, (False, False))
    await here.collect()
    assert await here.rows() == dict.fromkeys(keys, (False, False))


@pytest.mark.parametrize("archive_format", [1, 2])
async def test_a_home_that_is_archived_and_restored_during_collections_is_not_lost(
    database_url: str, archive_format: int
) -> None:
    """The whole loop with a collector that keeps one archive and has no grace period: the hardest case."""
    async with control_plane(database_url, archive_format=archive_format) as there:
        await there.controller_store._database.execute(
            "INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM
        )
        database = there.controller_store._database
        store, packs = GcStore(database), PackGcStore(database)
        collector = GarbageCollector(store, packs, FakeArchives(there.world), retention=AT_ONCE, every_s=3600)

        async def collect_without_end() -> None:
            while True:
                await collector.collect(TERM)

        collecting = asyncio.create_task(collect_without_end())
        await there.wishes.create(there.user, name="demo")
        for night in range(6):
            await there.until_phase("demo", Phase.RUNNING)
            [home] = there.world.volumes.values()
            assert home.files == {f"night-{past}": b"slept %d times" % past for past in range(night)}
            home.files[f"night-{night}"] = b"slept %d times" % night
            await there.wishes.wish(there.user, "demo", Wish.ARCHIVED)
            archived = await there.until_phase("demo", Phase.ARCHIVED)
            await there.wishes.wish(there.user, "demo", Wish.RUNNING)
        await there.until_phase("demo", Phase.RUNNING)
        assert not collecting.done()
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        for _ in range(3):
            await collector.collect(TERM)
        assert archived.archive is not None
        key = archived.archive.key
        assert set(there.world.archives) == {str(key)}
        assert {name for _, name in there.world.packs} == there.world.archive_packs.get(str(key), {}).keys()
        assert bool(there.world.packs) == (archive_format == 2)


async def test_a_removal_does_not_block_other_work(faked: GcStage, world: FakeWorld) -> None:
    demo = await faked.workspace("demo")
    for hours in (1, 2):
        await faked.archive(demo, hours=hours)
    await faked.archive(demo, hours=3, orphan_since="now() - interval '3 hours'")
    removing, goes_on = asyncio.Event(), asyncio.Event()

    async def take_for_ever(verb: str, _workspace_id: str) -> None:
        if verb == "remove":
            removing.set()
            await goes_on.wait()

    world.interfere = take_for_ever
    collecting = asyncio.create_task(faked.collector().collect(TERM))
    await removing.wait()
    async with asyncio.timeout(5):
        wished = await faked.wishes.wish(faked.user, "demo", Wish.RUNNING)
        await faked.wishes.delete(faked.user, "demo")
        # Another process may also become the leader.
        await faked.depose()
    assert wished.desired_state is Wish.RUNNING
    goes_on.set()
    with pytest.raises(Deposed):
        await collecting


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def collections(here: GcStage) -> int:
    """Count the collections that begin, by the change of the time."""
    begun: int = await here.owner.fetchval("SELECT (extract(epoch FROM gc_tried_at) * 1000000)::bigint FROM housekeeping")
    return begun


async def test_a_collection_is_due_at_first_then_by_interval_or_when_asked_for(here: GcStage) -> None:
    collector = here.collector(every_s=3600)
    await collector.do(TERM)
    first = await collections(here)
    await collector.do(TERM)
    assert await collections(here) == first

    requested_at = await here.seen.request()
    await collector.do(TERM)
    second = await collections(here)
    assert second > first
    ran_at = (await here.seen.housekeeping()).ran_at
    assert ran_at is not None
    assert ran_at > requested_at
    await collector.do(TERM)
    assert await collections(here) == second

    await here.owner.execute(
        "UPDATE housekeeping SET gc_ran_at = gc_ran_at - interval '2 hours', gc_tried_at = gc_tried_at - interval '2 hours'"
    )
    await collector.do(TERM)
    assert await collections(here) > second


async def test_a_skipped_collection_is_retried_later_or_at_a_new_request(faked: GcStage, world: FakeWorld) -> None:
    collector = faked.collector()
    await faked.seen.request()
    world.archives_out = True
    with pytest.raises(Unavailable):
        await collector.do(TERM)
    first = await collections(faked)
    await collector.do(TERM)
    assert await collections(faked) == first
    await faked.seen.request()
    with pytest.raises(Unavailable):
        await collector.do(TERM)
    second = await collections(faked)
    assert second > first
    world.archives_out = False
    await faked.owner.execute("UPDATE housekeeping SET gc_tried_at = gc_tried_at - interval '2 minutes'")
    await collector.do(TERM)
    assert (await faked.report())["skipped"] is None


async def test_a_request_during_a_collection_is_not_lost(faked: GcStage, world: FakeWorld) -> None:
    collector = faked.collector()

    async def request(verb: str, _workspace_id: str) -> None:
        if verb == "listing":
            await faked.seen.request()

    world.interfere = request
    await collector.do(TERM)
    world.interfere = FakeWorld().interfere
    first = await collections(faked)
    await collector.do(TERM)
    assert await collections(faked) > first
