"""No archive is lost if the listing is wrong, the database is old, or one archive is damaged."""

import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.support.gc_stage import ARCHIVING, IN_ERROR, TERM, GcStage, deleted, gc_stage
from torpor import metrics
from torpor.archives.archives import HomeArchives
from torpor.control.gc import HANDFUL
from torpor.domain.errors import Unavailable
from torpor.domain.records import ArchiveKey
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeArchives, FakeWorld

pytestmark = pytest.mark.anyio

RIPE = "now() - interval '3 hours'"


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
    async with gc_stage(database_url, FakeArchives(world)) as made:
        yield made


async def skipped(here: GcStage, why: str) -> None:
    """A collection that is skipped with a reason."""
    before, objects = await here.everything(), await here.objects()
    with pytest.raises(Unavailable, match=why):
        await here.collector().collect(TERM)
    assert await here.everything() == before
    assert await here.objects() == objects
    assert why in (await here.report())["skipped"]


async def purged(here: GcStage, name: str, archives: int = 1) -> list[str]:
    """Archives that may be removed now."""
    workspace = await here.workspace(name, **deleted(days=1), purge="true")
    return [await here.archive(workspace, hours=number, orphan_since=RIPE) for number in range(archives)]


def unmounted(store: Path) -> Path:
    """The disk, without its mount point."""
    disk = store.rename(store.with_name("disk"))
    store.mkdir()
    return disk


# ── the view is wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_store_of_which_too_much_is_missing_is_not_touched(here: GcStage) -> None:
    await purged(here, "purged")
    demo = await here.workspace("demo")
    there = [await here.archive(demo, hours=hours) for hours in range(6)]
    lost = [await here.archive(demo, hours=hours, in_store=False) for hours in range(2)]
    assert (await here.collect(replace(DEFAULTS.retention, keep=99)))["missing"] == sorted(lost)
    for key in there[:3]:
        await here.archives.remove(ArchiveKey.parse(key))
    await purged(here, "another")
    await skipped(here, "5 of 9 archives are missing in the store")


async def test_nothing_is_removed_while_the_latch_is_set(here: GcStage) -> None:
    [gone] = await purged(here, "purged")
    await here.owner.execute("INSERT INTO latches (provider, expected, missing) VALUES ('process', 9, 5)")
    await skipped(here, "too many homes are missing at process")
    await here.owner.execute("UPDATE latches SET released_at = now()")
    assert (await here.collect())["removed"] == 1
    assert gone not in await here.objects()


async def test_a_store_that_does_not_belong_to_the_database_is_not_touched(here: GcStage, tmp_path: Path) -> None:
    await purged(here, "purged")
    first = await here.archives.world()
    assert await here.store.remember_store(first) == first
    assert await here.store.remember_store("another") == first
    await here.owner.execute("UPDATE housekeeping SET archive_store = 'another'")
    await skipped(here, "this database belongs to another")


async def test_an_unmounted_disk_only_skips_the_collection(here: GcStage, tmp_path: Path) -> None:
    keys = await purged(here, "purged")
    await here.collector(replace(DEFAULTS.retention, grace=timedelta(days=9))).collect(TERM)
    disk = unmounted(tmp_path)
    before = await here.everything()
    with pytest.raises(Unavailable, match="its identity is missing"):
        await here.collector().collect(TERM)
    assert await here.everything() == before
    disk.replace(tmp_path)
    assert (await here.collect())["removed"] == len(keys)


# ── the database is old ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ended", ["NULL", "now() - interval '4 hours'", "now() + interval '1 hour'"])
async def test_marks_are_reset_when_collections_were_not_regular(here: GcStage, ended: str) -> None:
    [gone] = await purged(here, "purged")
    wanted = await here.archive(await here.workspace("demo"), hours=1, orphan_since=RIPE)
    await here.owner.execute(f"UPDATE housekeeping SET gc_ended_at = {ended}")
    report = await here.collect()
    assert (report["removed"], report["orphans"], report["kept"]) == (0, 1, 1)
    assert await here.rows() == {gone: (True, False), wanted: (False, False)}
    assert await here.owner.fetchval("SELECT now() - orphan_since < interval '1 minute' FROM archives WHERE key = $1", gone)
    await here.grace_passes()
    assert (await here.collect())["removed"] == 1


async def test_a_removal_in_progress_continues_when_marks_are_reset(here: GcStage) -> None:
    [gone] = await purged(here, "purged")
    await here.mark(gone, removing_since="now()")
    await here.owner.execute("UPDATE housekeeping SET gc_ended_at = NULL")
    assert (await here.collect())["removed"] == 1


async def test_the_time_to_undelete_counts_from_the_end_of_the_deletion(here: GcStage) -> None:
    """A workspace that had an error for a week has written its last archive only now."""
    late = await here.workspace("late", **{**deleted(days=8), "phase_changed_at": "now() - interval '6 days'"})
    key = await here.archive(late, hours=1)
    await here.point(late, key)
    assert (await here.collect())["orphans"] == 0
    await here.change(late, phase_changed_at="now() - interval '8 days'")
    assert (await here.collect())["orphans"] == 1


@pytest.mark.parametrize("column", ["gc_ran_at", "gc_tried_at", "gc_requested_at"])
async def test_a_time_in_the_future_does_not_change_when_a_collection_is_due(here: GcStage, column: str) -> None:
    past = "now() - interval '2 hours'"
    await here.owner.execute(f"UPDATE housekeeping SET gc_ran_at = {past}, gc_tried_at = {past}")
    await here.owner.execute(f"UPDATE housekeeping SET {column} = now() + interval '1 year'")
    assert await here.store.is_due(every_s=3600, retry_s=60)
    await here.collect()
    assert not await here.store.is_due(every_s=3600, retry_s=60)


# ── what operations left behind ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["ARCHIVING", "CREATE_EMPTY_ARCHIVE"])
@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_archive_left_by_an_operation_is_removed_after_the_grace_period(
    here: GcStage, tmp_path: Path, kind: str, is_whole: bool
) -> None:
    demo = await here.workspace("demo")
    kept = await here.archive(demo, hours=9)
    await here.point(demo, kept)
    left = await here.archive(demo, hours=0, in_table=False)
    if not is_whole:
        (tmp_path / left / "manifest.json.zst").unlink()
    await here.operation(left, kind)
    report = await here.collect()
    assert (report["left_over"], report["unknown"], report["orphans"], report["kept"]) == ([left], [], 1, 1)
    assert await here.rows() == {kept: (False, False), left: (True, False)}
    listing = await here.wishes.time_machine.archives(here.user, "demo")
    assert [str(one.archive.key) for one in listing.items] == [kept]
    assert (await here.collect())["left_over"] == []
    await here.grace_passes()
    assert (await here.collect())["removed"] == 1
    assert await here.objects() == set(await here.rows()) == {kept}
    # A late writer writes it again.
    await here.archives.create_empty(ArchiveKey.parse(left), here.home(demo), 0)
    assert (await here.collect())["left_over"] == [left]


async def test_an_archive_that_may_be_needed_does_not_count_as_left_over(here: GcStage) -> None:
    under_way = await here.workspace("under-way")
    present = await here.archive(under_way, hours=0, in_table=False)
    await here.operation(present, outcome=None)
    await here.change(under_way, **ARCHIVING, op_id=f"'{ArchiveKey.parse(present).op_id}'")
    ended = await here.workspace("ended")
    made_last = await here.archive(ended, hours=0, in_table=False)
    await here.operation(made_last)
    await here.change(ended, op_id=f"'{ArchiveKey.parse(made_last).op_id}'")
    pointing = await here.workspace("pointing")
    pointed_at = await here.archive(pointing, hours=0, in_table=False)
    await here.operation(pointed_at, outcome="DONE")
    await here.point(pointing, pointed_at)
    other = await here.archive(await here.workspace("other"), hours=0, in_table=False)
    await here.operation(other, "RESTORING", "DONE")
    report = await here.collect()
    assert report["left_over"] == []
    assert report["unknown"] == sorted([pointed_at, other])
    assert await here.rows() == {}


async def test_left_over_archives_are_kept_while_the_workspace_has_an_error(here: GcStage) -> None:
    """It may be the only copy of a lost home."""
    demo = await here.workspace("demo", **IN_ERROR)
    left = await here.archive(demo, hours=0, in_table=False)
    await here.operation(left)
    await here.collect()
    await here.grace_passes()
    assert (await here.collect())["removed"] == 0
    assert await here.rows() == {left: (True, False)}
    await here.change(demo, phase="'ARCHIVED'", error_info="NULL")
    assert (await here.collect())["removed"] == 1


async def test_the_database_keeps_an_unproven_archive_marked_as_orphan(here: GcStage) -> None:
    demo = await here.workspace("demo")
    left = await here.archive(demo, hours=0, in_table=False)
    await here.operation(left)
    await here.collect()
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await here.mark(left, orphan_since="NULL")
    assert refused.value.constraint_name == "what_is_left_over_is_an_orphan"
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await here.mark(left, proven_at="now()")
    assert refused.value.constraint_name == "proven_or_left_over"


# ── one of many ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def refuse_to_write(here: GcStage, workspace_id: str) -> None:
    """The database refuses writes for the archives of this workspace."""
    await here.owner.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$;"
        " CREATE TRIGGER refuse BEFORE UPDATE ON archives FOR EACH ROW"
        f" WHEN (NEW.workspace_id = '{workspace_id}') EXECUTE FUNCTION refuse()"
    )


async def test_one_failing_workspace_does_not_stop_the_collection(here: GcStage) -> None:
    workspaces = [await here.workspace(f"demo-{number}", **deleted(days=1), purge="true") for number in range(3)]
    marked = [await here.archive(workspace, hours=1) for workspace in workspaces]
    bad = sorted(workspaces)[0]
    await refuse_to_write(here, bad)
    report = await here.collect()
    assert report["failed"].keys() == {bad}
    assert "broken" in report["failed"][bad]
    assert sorted((await here.rows()).values()) == [(False, False), (True, False), (True, False)]
    await here.owner.execute("DROP TRIGGER refuse ON archives; DROP FUNCTION refuse")
    await here.mark(*marked, orphan_since=RIPE)
    await refuse_to_write(here, bad)
    report = await here.collect()
    assert report["removed"] == 2
    [key] = report["failed"]
    assert key.startswith(bad)
    assert await here.rows() == {key: (True, False)}


async def test_one_failing_removal_does_not_stop_the_collection(faked: GcStage, world: FakeWorld) -> None:
    [bad] = await purged(faked, "bad")
    await purged(faked, "good")

    async def break_down(verb: str, workspace_id: str) -> None:
        if (verb, workspace_id) == ("remove", ArchiveKey.parse(bad).workspace_id):
            raise RuntimeError("a bug")

    world.interfere = break_down
    report = await faked.collect()
    assert report["failed"] == {bad: "RuntimeError: a bug"}
    assert (report["removed"], report["skipped"]) == (1, None)
    world.interfere = FakeWorld().interfere
    assert (await faked.collect())["removed"] == 1


async def test_a_failed_collection_is_reported_and_the_last_good_report_stays(faked: GcStage, world: FakeWorld) -> None:
    await purged(faked, "purged")
    good = await faked.collect()

    async def break_down(verb: str, _workspace_id: str) -> None:
        if verb == "listing":
            raise RuntimeError("a bug")

    world.interfere = break_down
    with pytest.raises(RuntimeError):
        await faked.collector().collect(TERM)
    standing = await faked.seen.housekeeping()
    assert standing.report == good
    assert standing.skipped is not None
    assert standing.skipped["skipped"] == "RuntimeError: a bug"
    world.interfere = FakeWorld().interfere
    await faked.collect()
    assert (await faked.seen.housekeeping()).skipped is None


async def test_an_unreachable_store_is_tried_less_and_less_often(faked: GcStage, world: FakeWorld) -> None:
    made = faked.collector(every_s=3600)

    async def is_tried(after_s: float) -> bool:
        await faked.owner.execute(f"UPDATE housekeeping SET gc_tried_at = now() - interval '{after_s} seconds'")
        before = (await faked.seen.housekeeping()).tried_at
        with contextlib.suppress(Unavailable):
            await made.do(TERM)
        return (await faked.seen.housekeeping()).tried_at != before

    world.archives_out = True
    for wait_s in (60, 60, 120, 240, 480, 960, 1920, 3600, 3600):
        assert not await is_tried(wait_s - 5)
        assert await is_tried(wait_s + 1)
    await faked.seen.request()
    world.archives_out = False
    assert await is_tried(1)
    await faked.owner.execute("UPDATE housekeeping SET gc_ran_at = NULL")
    assert await is_tried(61)


# ── the point of no return ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_that_gets_an_error_keeps_archives_not_removed_yet(faked: GcStage, world: FakeWorld) -> None:
    demo = await faked.workspace("demo")
    for number in range(HANDFUL + 5):
        await faked.archive(demo, hours=number + 1, orphan_since=RIPE)

    is_in_error = False

    async def go_into_error(verb: str, _workspace_id: str) -> None:
        nonlocal is_in_error
        if verb == "remove" and not is_in_error:
            is_in_error = True
            await faked.change(demo, **IN_ERROR)

    world.interfere = go_into_error
    report = await faked.collect()
    world.interfere = FakeWorld().interfere
    assert report["removed"] == HANDFUL
    # The two that every workspace keeps, and those of the second batch.
    assert len(await faked.objects()) == len(await faked.rows()) == 5
    assert not any(is_going for _, is_going in (await faked.rows()).values())


async def test_a_removal_that_began_before_the_error_is_finished(here: GcStage) -> None:
    """Its object may be partly removed: it cannot be restored."""
    demo = await here.workspace("demo", **IN_ERROR)
    key = await here.archive(demo, hours=1, orphan_since=RIPE)
    await here.mark(key, removing_since="now()")
    assert (await here.collect())["removed"] == 1


async def test_the_database_refuses_to_point_at_an_archive_that_is_being_removed(here: GcStage) -> None:
    gone, living = await here.workspace("gone", **deleted(days=8)), await here.workspace("living")
    keys = [await here.archive(workspace, hours=1, orphan_since="now()") for workspace in (gone, living)]
    await here.point(gone, keys[0])
    await here.mark(*keys, removing_since="now()")
    for coming in (here.change(gone, desired_state="'ARCHIVED'", deleted_at="NULL"), here.point(living, keys[1])):
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await coming
        assert refused.value.constraint_name == "what_is_going_is_not_pointed_at"


async def test_a_former_leader_reports_no_age(here: GcStage) -> None:
    await here.archive(await here.workspace("demo"), hours=1)
    made = here.collector()
    await made.collect(TERM)
    assert metrics.archive_verified_age_seconds._value.get() >= 3600
    made.rest()
    assert math.isnan(metrics.archive_verified_age_seconds._value.get())


async def test_the_age_of_the_oldest_proof_is_updated_between_collections(here: GcStage) -> None:
    made = here.collector()
    await made.do(TERM)  # not due
    assert math.isnan(metrics.archive_verified_age_seconds._value.get()), "there is none yet"
    await here.archive(await here.workspace("demo"), hours=1)
    await made.do(TERM)
    first = metrics.archive_verified_age_seconds._value.get()
    assert first >= 3600
    await made.do(TERM)
    assert metrics.archive_verified_age_seconds._value.get() > first
