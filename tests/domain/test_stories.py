"""Run workspaces through whole scenarios: start, stop, archive, delete, failures and takeovers."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.domain.world import EMPTY, KNOBS, Fate, World, asleep, in_torpor, running
from tests.support.builders import container, look, seen, whole, workspace
from torpor.domain.effects import BeforeSleep, MakeHome, Pack, Restore, Start, Stop
from torpor.domain.errors import Reason
from torpor.domain.explain import explain
from torpor.domain.planner import Adopt, Begin, Cancel, Finish, GiveUp, Rest, Run, Store, Turn
from torpor.domain.reconcile import reconcile
from torpor.domain.records import EffectDone, EffectFailed, FileCount, ObservedContainer, ProviderOutage, Report
from torpor.domain.settle import Progress
from torpor.domain.states import (
    HealthStatus,
    ObservedStatus,
    Operation,
    Outage,
    Outcome,
    Phase,
    Stage,
    Wish,
    WishOrigin,
)

FAILS = EffectFailed(Reason.ACTION_FAILED, "it did not work")
OUT = ProviderOutage(Outage.ARCHIVE_STORE, "no answer")
UNREACHABLE = EffectFailed(Reason.UNREACHABLE, "connection refused")


def place(world: World) -> tuple[int, int]:
    return world.row.generation, world.row.revision


# ── up and down ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_workspace_created_as_running_gets_a_home_and_a_container() -> None:
    world = World()
    assert isinstance(world.tick(), Begin)
    assert world.effects == [], "the step that begins an operation runs no effect"
    assert isinstance(world.tick(), Run)
    world.run()
    assert world.history() == ["PROVISIONING DONE", "STARTING DONE"]
    assert world.row.phase is Phase.RUNNING
    assert world.row.observed_status is ObservedStatus.RUNNING
    assert world.row.health_status is HealthStatus.OK
    assert (place(world), world.home) == ((1, 1), EMPTY)


def test_at_the_requested_state_no_pass_writes() -> None:
    world = running()
    writes = world.writes
    for _ in range(5):
        world.pass_time(10)
        assert world.tick() == Rest()
    assert world.writes == writes


def test_a_workspace_created_as_archived_has_an_empty_archive_and_no_home() -> None:
    world = World(desired_state=Wish.ARCHIVED)
    world.run()
    assert world.history() == ["CREATE_EMPTY_ARCHIVE DONE"]
    assert (world.row.phase, world.homes, list(world.archives.values())) == (Phase.ARCHIVED, {}, [EMPTY])
    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["RESTORING DONE", "STARTING DONE"]
    assert world.home == EMPTY


def test_archiving_and_restoring_keeps_the_content() -> None:
    world = running()
    world.work("a day's work")
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.history() == ["STOPPING DONE", "ARCHIVING DONE"]
    assert (world.row.phase, world.homes, world.container) == (Phase.ARCHIVED, {}, None)
    assert world.row.archive is not None
    assert (world.row.archive.generation, world.row.archive.revision) == place(world) == (1, 1)

    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["RESTORING DONE", "STARTING DONE"]
    assert world.home == "a day's work"
    assert place(world) == (2, 2), "every restore makes its own generation, every start its own revision"


def test_the_archive_is_stored_before_the_volume_is_dropped() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    steps = []
    while not isinstance(step := world.tick(), Rest):
        steps.append((type(step).__name__, world.home is not None, world.row.is_archived))
    assert steps == [
        ("Begin", True, False),
        ("Run", True, False),
        ("Store", True, True),
        ("Run", False, True),
        ("Finish", False, True),
    ]


# ── cancellation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_archiving_is_cancelled_before_its_key_is_stored() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(Fate.HANGS)
    world.run()
    assert (world.row.operation, world.in_flight) == (Operation.ARCHIVING, True)
    world.wish(Wish.RUNNING)
    assert isinstance(world.tick(), Cancel)
    assert world.row.operation is Operation.ARCHIVING, "it waits for the end of the running effect"
    assert isinstance(world.tick(), Turn)
    world.run()
    assert world.history() == ["ARCHIVING TURNED", "STARTING DONE"]
    assert (world.row.phase, world.home, place(world)) == (Phase.RUNNING, "a day's work", (1, 2))


def test_archiving_finishes_after_its_key_is_stored() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    while not isinstance(world.tick(), Store):
        pass
    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["ARCHIVING DONE", "RESTORING DONE", "STARTING DONE"]
    assert (world.row.phase, world.home) == (Phase.RUNNING, "a day's work")


@pytest.mark.parametrize("wish", [Wish.STANDBY, Wish.ARCHIVED, Wish.DELETED])
def test_starting_is_cancelled_at_any_time_and_its_container_is_removed(wish: Wish) -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.starts_ready = False
    world.run()
    assert (world.row.operation, world.row.stage) == (Operation.STARTING, Stage.SEE)
    world.wish(wish)
    world.run()
    assert world.history()[:2] == ["STARTING TURNED", "STOPPING DONE"]
    assert (world.row.phase.value, world.container) == (wish.value, None)


def test_restoring_finishes_for_a_lower_requested_state_and_is_cancelled_by_delete() -> None:
    world = in_torpor()
    world.wish(Wish.RUNNING)
    world.befall(Fate.HANGS_HALF_WAY)
    world.run()
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.in_flight
    world.wish(Wish.DELETED)
    world.run()
    assert world.history() == ["RESTORING TURNED", "DELETING DONE"]
    assert (world.row.phase, world.half_made) == (Phase.DELETED, set())


# ── restoring ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_restoring_times_out_and_its_incomplete_home_is_never_started() -> None:
    world = in_torpor()
    world.wish(Wish.RUNNING)
    world.befall(Fate.HANGS_HALF_WAY)
    world.run()
    world.pass_time(1799)
    world.run()
    assert world.row.operation is Operation.RESTORING
    world.pass_time(1)
    world.run()
    assert world.history() == ["RESTORING FAILED Timeout"]
    assert (world.row.phase, world.reason, world.half_made) == (Phase.ERROR, Reason.TIMEOUT, {2})
    assert world.row.previous_phase is Phase.ARCHIVED
    writes = world.writes
    world.pass_time(10_000)
    world.run()
    assert world.writes == writes, "an error stays until a new wish"

    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["RESTORING DONE", "STARTING DONE"]
    assert (world.row.phase, world.home, place(world)) == (Phase.RUNNING, "a day's work", (3, 2))
    assert world.half_made == set(), "the half home went when RESTORING began again"


def test_progress_moves_the_deadline_and_only_a_new_maximum_is_progress() -> None:
    world = in_torpor()
    world.wish(Wish.STANDBY)
    world.befall(Fate.HANGS)
    world.run()
    world.pass_time(1700)
    world.tick(Progress(100, 1000))
    world.pass_time(1700)
    assert isinstance(world.tick(Progress(100, 1000)), Rest)
    world.pass_time(100)
    assert isinstance(world.tick(Progress(100, 1000)), Cancel)
    world.run()
    assert world.reason is Reason.TIMEOUT


def test_files_are_progress_too() -> None:
    """A home of a million empty files has no bytes."""
    world = in_torpor()
    world.wish(Wish.STANDBY)
    world.befall(Fate.HANGS)
    world.run()
    for done in (1, 2, 3):
        world.pass_time(1700)
        assert isinstance(world.tick(Progress(0, 0, FileCount(done * 1000, 4000))), Rest)
    assert (world.row.progress_files, world.row.progress) == (FileCount(3000, 4000), 75)
    # Fewer files with more bytes, as after a retry, are progress; the same again is none.
    assert isinstance(world.tick(Progress(5, 10, FileCount(1, 4000))), Rest)
    assert (world.row.progress_done, world.row.progress_files) == (5, FileCount(3000, 4000))
    world.pass_time(1801)
    assert isinstance(world.tick(Progress(5, 10, FileCount(3000, 4000))), Cancel)


def test_packages_that_a_start_installs_are_not_counted_as_bytes() -> None:
    starting = workspace(
        operation=Operation.STARTING,
        stage=Stage.SEE,
        phase=Phase.STANDBY,
        generation=1,
        revision=1,
        home_seen=True,
        progress_done=91,
        progress_total=91,
    )
    change = reconcile(starting, seen(whole(1), container=container(1, 1)), look(), new_op_id="next").change
    assert change is not None
    assert change.closed is not None
    assert (change.closed.outcome, change.closed.done_bytes) == (Outcome.DONE, 0)


def test_a_lost_archive_is_data_lost_until_a_recovery() -> None:
    world = in_torpor()
    kept = world.row.archive
    assert kept is not None
    content = world.archives.pop(kept)
    world.wish(Wish.RUNNING)
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.DATA_LOST)
    assert world.row.conditions.archive_ready.status is False
    world.wish(Wish.RUNNING)
    world.run()
    assert world.reason is Reason.DATA_LOST, "a new wish is not a recovery"
    world.archives[kept] = content
    world.recover(archive=kept)
    world.run()
    assert (world.row.phase, world.home) == (Phase.RUNNING, "a day's work")


# ── a volume vanishes ─────────────────────────────────────────────────────────────────────────────────────────────────


def lost() -> World:
    """Its volume is missing, and there is an older archive."""
    world = in_torpor()
    world.wish(Wish.RUNNING)
    world.run()
    world.work("two days' work")
    world.wish(Wish.STANDBY)
    world.run()
    world.history()
    world.homes.clear()
    return world


def test_a_missing_volume_is_data_lost_when_confirmed_and_not_rolled_back() -> None:
    world = lost()
    world.wish(Wish.RUNNING)
    assert isinstance(world.tick(), Rest)
    assert (world.row.phase, world.row.error) == (Phase.STANDBY, None), "one observation is a doubt"
    assert world.row.conditions.volume_ready.status is False
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.DATA_LOST)
    assert world.row.observed_status is ObservedStatus.PENDING
    for wish in (Wish.RUNNING, Wish.ARCHIVED, Wish.STANDBY):
        world.wish(wish)
        world.run()
    assert (world.history(), world.homes, world.reason) == ([], {}, Reason.DATA_LOST)


def test_data_lost_ends_when_the_volume_is_observed_again() -> None:
    world = lost()
    generation = world.row.generation
    world.run()
    assert world.reason is Reason.DATA_LOST
    world.homes[generation] = "two days' work"
    world.run()
    assert (world.row.phase, world.row.error, world.row.error_count) == (Phase.STANDBY, None, 0)
    world.wish(Wish.RUNNING)
    world.run()
    assert (world.row.phase, world.home) == (Phase.RUNNING, "two days' work")


def test_a_volume_that_is_back_at_the_second_observation_is_not_lost() -> None:
    world = lost()
    world.tick()
    world.homes[world.row.generation] = "two days' work"
    world.run()
    assert (world.row.phase, world.row.error, world.history()) == (Phase.STANDBY, None, [])


def test_a_volume_lost_during_a_retry_is_data_lost() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(FAILS)
    world.run()
    assert world.row.stage is Stage.BACKOFF
    world.homes.clear()
    world.run()
    assert world.reason is Reason.DATA_LOST


def test_recovered_to_the_older_archive() -> None:
    world = lost()
    world.run()
    before = place(world)
    world.recover(archive=next(iter(world.archives)))
    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["RESTORING DONE", "STARTING DONE"]
    assert (world.row.phase, world.home) == (Phase.RUNNING, "a day's work")
    assert world.row.generation > before[0]


def test_recovered_to_an_empty_home() -> None:
    world = lost()
    world.run()
    world.recover(empty=True)
    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["PROVISIONING DONE", "STARTING DONE"]
    assert (world.row.phase, world.home) == (Phase.RUNNING, EMPTY)
    # After a second loss the old recovery request does not count.
    world.wish(Wish.STANDBY)
    world.run()
    world.homes.clear()
    world.run()
    assert world.reason is Reason.DATA_LOST


# ── a marker cannot be read ───────────────────────────────────────────────────────────────────────────────────────────


def unmarked() -> World:
    """Its home exists, its marker cannot be read, and there is an older archive."""
    world = in_torpor()
    world.wish(Wish.RUNNING)
    world.run()
    world.work("two days' work")
    world.wish(Wish.STANDBY)
    world.run()
    world.marker_is_lost()
    world.history()
    return world


def test_an_unreadable_marker_is_reported_and_no_operation_begins() -> None:
    world = unmarked()
    assert isinstance(world.tick(), Rest)
    assert (world.row.phase, world.row.error) == (Phase.STANDBY, None), "one observation is a doubt"
    for wish in (Wish.RUNNING, Wish.ARCHIVED, Wish.STANDBY):
        world.wish(wish)
        world.run()
        assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.MARKER_UNREADABLE)
    assert world.row.error is not None
    generation = world.row.generation
    assert f"the home exists, but its marker cannot be read: /volumes/{generation}/marker.json" in world.row.error.message
    assert world.row.error.context["home"] == f"/volumes/{generation}/home"
    assert (world.history(), world.homes) == ([], {})
    assert world.unmarked == {generation: "two days' work"}


@pytest.mark.parametrize("wish", [Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED])
def test_a_home_is_accepted_as_it_is(wish: Wish) -> None:
    world = unmarked()
    world.run()
    before = place(world)
    world.recover(accept=True)
    world.row = replace(world.row, desired_state=wish)
    world.run()
    assert (world.row.phase.value, world.row.error) == (wish.value, None)
    assert world.history()[0] == "ACCEPTING DONE"
    assert world.row.generation == before[0]
    assert "two days' work" in (world.archives.values() if wish is Wish.ARCHIVED else [world.home])


def test_a_request_to_accept_is_used_once() -> None:
    world = unmarked()
    world.run()
    world.recover(accept=True)
    world.run()
    world.marker_is_lost()
    world.run()
    assert world.reason is Reason.MARKER_UNREADABLE, "the old recovery request does not count again"


def test_a_failed_acceptance_keeps_the_home() -> None:
    world = unmarked()
    world.run()
    world.recover(accept=True)
    world.befall(*[FAILS] * 4)
    world.run_until_rest()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.RETRY_EXCEEDED)
    world.wish(Wish.RUNNING)
    world.run()
    assert world.reason is Reason.MARKER_UNREADABLE
    assert list(world.unmarked.values()) == ["two days' work"]
    world.recover(accept=True)
    world.run()
    assert (world.row.phase, world.home) == (Phase.RUNNING, "two days' work")


def test_another_controller_continues_accepting_the_same_home() -> None:
    world = unmarked()
    world.run()
    world.recover(accept=True)
    world.befall(Fate.HANGS)
    world.run()
    assert world.row.operation is Operation.ACCEPTING
    generation = world.row.generation
    world.another_controller()
    world.run()
    assert (world.row.phase, world.row.generation, world.home) == (Phase.STANDBY, generation, "two days' work")


def test_an_unmarked_home_that_disappears_is_lost_until_it_returns() -> None:
    world = unmarked()
    world.run()
    gone = dict(world.unmarked)
    world.unmarked.clear()
    world.run()
    assert (world.reason, world.history()) == (Reason.DATA_LOST, [])
    world.recover(accept=True)
    world.run()
    assert (world.reason, world.history()) == (Reason.DATA_LOST, []), "there is no home to accept"
    world.unmarked.update(gone)
    world.run()
    assert (world.reason, world.history()) == (Reason.MARKER_UNREADABLE, [])
    world.homes[world.row.generation] = world.unmarked.pop(world.row.generation)
    world.run()
    assert (world.row.phase, world.row.error) == (Phase.STANDBY, None), "its marker was put back by hand"


def test_a_recovery_from_an_archive_keeps_the_unmarked_home() -> None:
    world = unmarked()
    world.run()
    left = dict(world.unmarked)
    world.recover(archive=next(iter(world.archives)))
    world.wish(Wish.RUNNING)
    world.run()
    assert (world.row.phase, world.home, world.unmarked) == (Phase.RUNNING, "a day's work", left)


def test_a_home_of_another_workspace_is_data_lost_while_it_is_accepted() -> None:
    world = unmarked()
    world.run()
    world.recover(accept=True)
    world.befall(Fate.HANGS)
    world.run()
    assert world.row.operation is Operation.ACCEPTING
    world.foreign.add(world.row.generation)
    world.unmarked.clear()
    world.run()
    assert (world.row.phase, world.reason, world.home) == (Phase.ERROR, Reason.DATA_LOST, None)
    world.recover(accept=True)
    world.run()
    assert (world.row.phase, world.reason, world.home) == (Phase.ERROR, Reason.DATA_LOST, None)


def test_unmarked_homes_of_earlier_generations_are_kept() -> None:
    world = unmarked()
    for day in range(2):
        world.run()
        left = dict(world.unmarked)
        world.recover(empty=True)
        world.wish(Wish.RUNNING)
        world.befall(Fate.HANGS_HALF_WAY)
        world.run()
        world.another_controller()
        world.run()
        assert (world.row.phase, world.home, world.unmarked, world.half_made) == (Phase.RUNNING, EMPTY, left, set())
        world.work(f"day {day}")
        world.wish(Wish.STANDBY)
        world.run()
        world.marker_is_lost()
    assert list(world.unmarked.values()) == ["two days' work", "day 0", "day 1"]


def test_an_unmarked_home_survives_a_delete_and_not_a_purge() -> None:
    world = unmarked()
    world.run()
    world.wish(Wish.DELETED)
    world.run()
    assert (world.row.phase, world.reason) == (Phase.DELETING, Reason.MARKER_UNREADABLE)
    assert list(world.unmarked.values()) == ["two days' work"]
    world.wish(Wish.DELETED, purge=True)
    world.run()
    assert (world.row.phase, world.unmarked, world.reason) == (Phase.DELETED, {}, None)


@pytest.mark.parametrize("purge", [False, True])
def test_a_delete_while_a_home_is_accepted_archives_it_unless_purged(purge: bool) -> None:
    world = unmarked()
    world.run()
    world.recover(accept=True)
    world.befall(Fate.HANGS)
    world.run()
    world.wish(Wish.DELETED, purge=purge)
    world.tick()
    if not purge:
        world.another_controller()
    world.run()
    assert world.row.phase is Phase.DELETED
    assert ("two days' work" in world.archives.values()) is not purge


# ── a volume is removed in every phase ────────────────────────────────────────────────────────────────────────────────


def at_work() -> World:
    world = running()
    world.work("a day's work")
    return world


def accepting() -> World:
    world = unmarked()
    world.run()
    world.recover(accept=True)
    return world


REMOVED_IN: dict[str, tuple[Callable[[], World], Wish]] = {
    "RUNNING": (at_work, Wish.RUNNING),
    "STOPPING": (at_work, Wish.STANDBY),
    "STANDBY": (asleep, Wish.STANDBY),
    "STARTING": (asleep, Wish.RUNNING),
    "ARCHIVING": (asleep, Wish.ARCHIVED),
    "ACCEPTING": (accepting, Wish.STANDBY),
}


@pytest.mark.parametrize("moment", REMOVED_IN)
def test_a_volume_removed_in_any_phase_never_becomes_another_home(moment: str) -> None:
    make, wish = REMOVED_IN[moment]
    world = make()
    world.befall(Fate.HANGS)
    if wish is not world.row.desired_state:
        world.wish(wish)
    world.run()
    assert moment in (world.row.phase.value, world.row.operation.value)
    world.homes.clear()
    world.unmarked.clear()
    made = len(world.effects)
    world.another_controller()
    for _ in range(3):
        world.run_until_rest()
        world.wish(Wish.RUNNING)
    world.run_until_rest()
    assert world.reason is Reason.DATA_LOST
    assert world.homes == {}
    assert not [effect for effect in world.effects[made:] if isinstance(effect, MakeHome | Restore)]


# ── a container without volume ────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_without_volume_is_an_error_when_seen_twice_and_a_request_stops_it() -> None:
    world = running()
    volume = world.homes.pop(world.row.generation)
    world.tick()
    assert world.row.phase is Phase.RUNNING
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.CONTAINER_WITHOUT_VOLUME)
    assert (world.row.observed_status, world.row.health_status) == (ObservedStatus.RUNNING, HealthStatus.ERROR)
    world.wish(Wish.RUNNING)
    world.run()
    assert world.history() == ["STOPPING DONE"]
    assert (world.container, world.reason) == (None, Reason.DATA_LOST), "then the loss of the home is reported"
    world.homes[world.row.generation] = volume
    world.run()
    assert world.row.phase is Phase.RUNNING


def test_one_new_request_stops_a_container_whose_stop_failed_before() -> None:
    world = running()
    world.homes.clear()
    world.run()
    world.wish(Wish.STANDBY)
    world.befall(EffectFailed(Reason.IMAGE_PULL_FAILED, "an odd thing to say of a stop"))
    world.run()
    assert world.reason is Reason.IMAGE_PULL_FAILED
    world.wish(Wish.STANDBY)
    world.run()
    assert world.container is None


# ── archiving ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_changes_after_archiving_timed_out_with_its_key_stored_are_archived_again() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    while not isinstance(world.tick(), Store):
        pass
    first = world.row.archive
    world.befall(Fate.HANGS)
    world.run()
    world.pass_time(1800)
    world.run()
    assert (world.reason, world.row.is_archived, world.home) == (Reason.TIMEOUT, True, "a day's work")

    world.wish(Wish.RUNNING)
    world.run()
    world.work("two days' work")
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.row.phase is Phase.ARCHIVED
    assert world.row.archive is not None
    assert world.row.archive != first
    assert world.archives[world.row.archive] == "two days' work"
    assert (world.row.archive.generation, world.row.archive.revision) == (1, 2)


def test_a_read_back_mismatch_takes_a_new_op_id_and_resets_attempts_and_progress() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(EffectFailed(Reason.ACTION_FAILED, "not what was written", wants_new_op_id=True))
    world.tick()
    first = world.row.op_id
    world.tick(Progress(50, 100))
    world.run()
    assert (world.row.stage, world.row.progress_done) == (Stage.BACKOFF, 0)
    world.run_until_rest()
    assert world.history() == ["ARCHIVING FAILED ActionFailed", "ARCHIVING DONE"]
    keys = [effect.key.op_id for effect in world.effects if isinstance(effect, Pack)]
    assert keys[0] == first
    assert keys[1] == world.row.op_id != first
    assert (world.row.op_attempt, world.row.error_count, world.row.error) == (1, 0, None)


def test_a_container_that_appears_while_archiving_is_stopped_and_its_changes_archived() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    while not isinstance(world.tick(), Store):
        pass
    # A late start by a controller that was deposed.
    world.container = ObservedContainer(1, 1, ready=True)
    world.work("written after the archive was made")
    world.run()
    assert world.history() == ["ARCHIVING TURNED", "STOPPING DONE", "ARCHIVING DONE"]
    assert world.row.archive is not None
    assert world.archives[world.row.archive] == "written after the archive was made"


# ── deleting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deleting_keeps_a_last_archive_and_undelete_restores_the_home() -> None:
    world = running()
    world.work("a day's work")
    world.wish(Wish.DELETED)
    world.run()
    assert world.history() == ["STOPPING DONE", "ARCHIVING DONE"]
    assert (world.row.phase, world.homes, world.container) == (Phase.DELETED, {}, None)
    assert world.row.observed_status is ObservedStatus.DELETED
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.row.phase is Phase.ARCHIVED
    world.wish(Wish.RUNNING)
    world.run()
    assert (world.row.phase, world.home) == (Phase.RUNNING, "a day's work")


def test_purge_keeps_nothing() -> None:
    world = running()
    world.wish(Wish.DELETED, purge=True)
    world.run()
    assert world.history() == ["STOPPING DONE", "DELETING DONE"]
    assert (world.row.phase, world.homes, world.archives) == (Phase.DELETED, {}, {})


def test_deleting_a_workspace_without_a_home_is_done_at_once() -> None:
    world = World(desired_state=Wish.DELETED, deleted_at=World().now)
    world.run()
    assert (world.row.phase, world.history()) == (Phase.DELETED, [])


def undeletable() -> World:
    world = asleep()
    world.wish(Wish.DELETED)
    world.befall(*[FAILS] * 4)
    world.run_until_rest()
    assert world.history() == ["ARCHIVING FAILED ActionFailed"] * 3 + ["ARCHIVING FAILED RetryExceeded"]
    assert (world.row.phase, world.row.operation) == (Phase.DELETING, Operation.NONE)
    assert (world.reason, world.row.health_status) == (Reason.RETRY_EXCEEDED, HealthStatus.ERROR)
    writes = world.writes
    world.pass_time(100_000)
    world.run()
    assert (world.writes, world.home) == (writes, "a day's work")
    return world


def test_a_delete_whose_archive_fails_keeps_its_error_until_delete_is_repeated() -> None:
    world = undeletable()
    world.wish(Wish.DELETED)
    world.run()
    assert world.history() == ["ARCHIVING DONE"]
    assert (world.row.phase, world.row.error) == (Phase.DELETED, None)


def test_a_delete_whose_archive_fails_is_finished_by_purge() -> None:
    world = undeletable()
    world.wish(Wish.DELETED, purge=True)
    world.run()
    assert world.history() == ["DELETING DONE"]
    assert world.row.phase is Phase.DELETED


def test_a_delete_whose_archive_fails_is_undone_by_undelete() -> None:
    world = undeletable()
    world.wish(Wish.STANDBY)
    world.run()
    assert (world.row.phase, world.row.error, world.home) == (Phase.STANDBY, None, "a day's work")


def test_purge_cancels_the_last_archive() -> None:
    world = asleep()
    world.wish(Wish.DELETED)
    world.befall(Fate.HANGS)
    world.run()
    world.wish(Wish.DELETED, purge=True)
    world.run()
    assert world.history() == ["ARCHIVING TURNED", "DELETING DONE"]
    assert (world.row.phase, world.archives) == (Phase.DELETED, {})


def test_a_home_that_appears_while_deleting_is_archived_first() -> None:
    world = asleep()
    work = world.homes.pop(1)
    world.half_made.add(0)
    world.wish(Wish.DELETED)
    assert world.tick() == Begin(Operation.DELETING)
    world.homes[1] = work
    world.run()
    assert world.history() == ["DELETING TURNED", "ARCHIVING DONE", "DELETING DONE"]
    assert (world.row.phase, list(world.archives.values())) == (Phase.DELETED, ["a day's work"])


def test_undelete_while_deleting_removes_nothing_more() -> None:
    world = in_torpor()
    world.half_made.add(0)
    world.wish(Wish.DELETED)
    assert world.tick() == Begin(Operation.DELETING)
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.history() == ["DELETING TURNED"]
    assert (world.row.phase, world.half_made) == (Phase.ARCHIVED, {0})


def test_data_lost_does_not_prevent_a_delete() -> None:
    world = lost()
    world.run()
    world.wish(Wish.DELETED)
    world.run()
    assert (world.row.phase, world.row.error) == (Phase.DELETED, None)
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.reason is Reason.DATA_LOST, "undelete does not roll back silently either"


# ── programs that end ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_three_quick_exits_are_an_error_and_a_new_request_tries_again() -> None:
    world = running()
    waits, phases = [], []
    for _ in range(2):
        world.pass_time(5)
        world.program_ends()
        until = world.run().until
        assert until is not None
        waits.append((until - world.now).total_seconds())
        phases.append(world.row.phase)
        world.now = until
        world.run()
        phases.append(world.row.phase)
    assert phases == [Phase.STANDBY, Phase.RUNNING] * 2
    assert waits == [2, 4], "with backoff"
    world.pass_time(5)
    world.program_ends(exit_code=7)
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.ACTION_FAILED)
    assert world.row.error is not None
    assert world.row.error.context["exit_code"] == 7
    assert world.row.error.context["last_lines"] == "its last words"
    world.wish(Wish.RUNNING)
    world.run()
    assert (world.row.phase, world.row.quick_ends) == (Phase.RUNNING, 0)


def test_a_program_that_never_gets_ready_is_an_error_after_three_exits() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.starts_ready = False
    for _ in range(3):
        world.run()
        world.program_ends()
        until = world.run().until
        world.now = until or world.now
    assert (world.row.phase, world.reason, world.row.quick_ends) == (Phase.ERROR, Reason.ACTION_FAILED, 3)
    assert world.history() == ["STARTING FAILED ActionFailed"] * 3


def test_a_program_killed_after_running_long_is_restarted_at_once() -> None:
    world = running()
    world.pass_time(3600)
    world.program_ends(exit_code=137)
    world.run()
    assert world.history() == ["STARTING DONE"]
    assert (world.row.phase, world.row.quick_ends, place(world)) == (Phase.RUNNING, 0, (1, 2))


def test_a_container_that_is_stopped_outside_again_and_again_is_restarted_and_never_an_error() -> None:
    world = running()
    for _ in range(5):
        world.pass_time(5)
        world.stopped_outside()
        until = world.run().until
        assert until is not None
        assert (until - world.now).total_seconds() == 2, "the wait does not grow"
        why = explain(world.row, ()).why
        assert why is not None
        assert "stopped from outside" in why
        world.now = until
        world.run()
        assert (world.row.phase, world.row.quick_ends, world.row.error) == (Phase.RUNNING, 0, None)
    assert world.history() == ["STARTING DONE"] * 5
    assert "stopped from outside" in world.begun[-1]


def test_a_container_that_is_stopped_outside_after_running_long_is_restarted_at_once() -> None:
    world = running()
    world.pass_time(3600)
    world.stopped_outside()
    world.run()
    assert (world.row.phase, world.row.quick_ends, place(world)) == (Phase.RUNNING, 0, (1, 2))


def test_a_stop_outside_between_quick_exits_counts_neither_way() -> None:
    world = running()
    for end in (world.program_ends, world.stopped_outside, world.program_ends):
        end()
        world.now = world.run().until or world.now
        world.run()
    assert (world.row.phase, world.row.quick_ends) == (Phase.RUNNING, 2)


def test_a_container_that_is_stopped_outside_during_its_start_is_started_again() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.starts_ready = False
    for _ in range(5):
        world.run()
        world.stopped_outside()
        world.now = world.run().until or world.now
    assert (world.row.operation, world.row.error, world.row.error_count) == (Operation.STARTING, None, 0)
    assert world.history() == ["STARTING ABANDONED"] * 5
    world.starts_ready = True
    world.run()
    assert world.row.phase is Phase.RUNNING


def test_quick_exits_before_and_after_a_long_run_are_not_consecutive() -> None:
    world = running()
    for _ in range(2):
        world.program_ends()
        world.now = world.run().until or world.now
        world.run()
    assert world.row.quick_ends == 2
    world.pass_time(3600)
    world.wish(Wish.STANDBY)
    world.run()
    world.wish(Wish.RUNNING)
    world.run()
    world.program_ends()
    world.run()
    assert (world.row.error, world.row.quick_ends) == (None, 1)


def test_a_slow_program_is_waited_for_until_the_deadline() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.starts_ready = False
    world.run()
    world.pass_time(299)
    world.run()
    assert (world.row.operation, world.row.error) == (Operation.STARTING, None)
    assert world.container is not None
    world.container = replace(world.container, ready=True)
    world.run()
    assert world.row.phase is Phase.RUNNING
    assert sum(isinstance(effect, Start) for effect in world.effects) == 2, "once for each revision"


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_is_retried_with_backoff_and_then_exceeded() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(*[FAILS] * 4)
    waits = []
    while (until := world.run().until) is not None:
        waits.append((until - world.now).total_seconds())
        world.now = until
    assert waits == [30, 60, 120]
    assert world.history() == ["ARCHIVING FAILED ActionFailed"] * 3 + ["ARCHIVING FAILED RetryExceeded"]
    assert (world.row.phase, world.reason, world.row.error_count) == (Phase.ERROR, Reason.RETRY_EXCEEDED, 4)
    assert world.row.error is not None
    assert world.row.error.context["last_reason"] == "ActionFailed"
    assert {effect.key.op_id for effect in world.effects if isinstance(effect, Pack)} == {world.row.op_id}, "same op_id"
    world.wish(Wish.ARCHIVED)
    world.run()
    assert (world.row.phase, world.row.error_count) == (Phase.ARCHIVED, 0)


def test_a_successful_retry_clears_the_failure() -> None:
    world = World()
    world.befall(FAILS)
    world.run_until_rest()
    assert world.history() == ["PROVISIONING FAILED ActionFailed", "PROVISIONING DONE", "STARTING DONE"]
    assert (world.row.phase, world.row.error, world.row.error_count) == (Phase.RUNNING, None, 0)
    assert world.row.generation == 2, "each attempt fills a new volume"


def test_an_effect_that_reports_success_without_a_result_is_a_mismatch() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    while not isinstance(world.tick(), Store):
        pass
    world.befall(Fate.LIES)
    until = world.run().until
    assert until == world.now + timedelta(seconds=KNOBS.retry_base_s)
    world.now = until
    world.run()
    assert world.history() == ["ARCHIVING FAILED Mismatch"]
    assert (world.row.stage, world.row.error_count) == (Stage.BACKOFF, 1)
    world.run_until_rest()
    assert world.row.phase is Phase.ARCHIVED


def test_repeated_mismatches_exceed_the_retries() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    while not isinstance(world.tick(), Store):
        pass
    world.befall(*[Fate.LIES] * 4)
    world.run_until_rest()
    assert world.history() == ["ARCHIVING FAILED Mismatch"] * 3 + ["ARCHIVING FAILED RetryExceeded"]
    assert (world.reason, world.home) == (Reason.RETRY_EXCEEDED, "a day's work")


def test_a_terminal_failure_is_not_retried() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.befall(EffectFailed(Reason.IMAGE_PULL_FAILED, "no such image"))
    world.run_until_rest()
    assert (world.history(), world.reason) == (["STARTING FAILED ImagePullFailed"], Reason.IMAGE_PULL_FAILED)


def test_an_interrupted_pull_is_retried_and_the_last_answer_is_told() -> None:
    interrupted = EffectFailed(Reason.ACTION_FAILED, "cannot pull the image 'a': 500", wants_new_op_id=True)
    world = asleep()
    world.wish(Wish.RUNNING)
    world.befall(interrupted)
    world.run_until_rest()
    assert (world.history(), world.row.phase) == (["STARTING FAILED ActionFailed", "STARTING DONE"], Phase.RUNNING)
    world = asleep()
    world.wish(Wish.RUNNING)
    world.befall(*[interrupted] * 4)
    world.run_until_rest()
    assert world.history() == ["STARTING FAILED ActionFailed"] * 3 + ["STARTING FAILED RetryExceeded"]
    assert world.row.error is not None
    assert "cannot pull the image 'a': 500" in world.row.error.message


def test_a_call_that_is_unreachable_is_no_outage_but_is_counted_and_ends_in_error() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(*[UNREACHABLE] * 4)
    for failures in (1, 2, 3):
        until = world.run().until
        assert until is not None
        assert world.row.error is not None
        assert (world.row.error.reason, world.row.error_count) == (Reason.UNREACHABLE, failures)
        world.run()
        assert world.row.outage is None, "the provider answers, so only this workspace is affected"
        world.pass_time((until - world.now).total_seconds())
    world.run()
    assert world.history() == ["ARCHIVING FAILED Unreachable"] * 3 + ["ARCHIVING FAILED RetryExceeded"]
    assert (world.row.phase, world.row.health_status, world.row.outage) == (Phase.ERROR, HealthStatus.ERROR, None)


def test_an_outage_of_the_provider_counts_as_no_failure_and_moves_the_deadline() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.befall(*[OUT] * 30)
    deadlines = []
    for _ in range(30):
        until = world.run().until
        assert until is not None
        assert world.row.deadline_at is not None
        deadlines.append(world.row.deadline_at)
        world.now = until
    assert (world.now - deadlines[0]).total_seconds() > 300, "out for longer than the deadline"
    assert deadlines == sorted(set(deadlines))
    world.run()
    assert world.history() == ["STARTING ABANDONED"] * 30 + ["STARTING DONE"]
    assert (world.row.phase, world.row.error_count, world.row.error) == (Phase.RUNNING, 0, None)


def test_no_deadline_runs_while_the_provider_cannot_be_observed() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.befall(Fate.HANGS)
    world.run()
    world.pass_time(1000)
    assert isinstance(world.tick(paused_s=900), Rest)
    world.pass_time(199)
    world.run()
    assert world.row.operation is Operation.STARTING
    world.pass_time(1)
    world.run()
    assert world.reason is Reason.TIMEOUT


def test_a_new_request_during_backoff_retries_at_once_and_resets_the_count() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(FAILS, FAILS, FAILS)
    for _ in range(2):
        until = world.run().until
        assert until is not None
        world.now = until
    world.run()
    assert (world.row.stage, world.row.error_count) == (Stage.BACKOFF, 3)
    world.befall(FAILS)
    world.wish(Wish.ARCHIVED)
    world.run()
    assert (world.row.stage, world.row.error_count) == (Stage.BACKOFF, 1), "tried at once, and that was the first failure"
    world.run_until_rest()
    assert world.row.phase is Phase.ARCHIVED


def test_a_new_request_during_an_attempt_clears_the_failures_before_it() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(FAILS, FAILS, FAILS, Fate.HANGS)
    for _ in range(3):
        until = world.run().until
        assert until is not None
        world.now = until
    world.run()
    assert (world.in_flight, world.row.error_count) == (True, 3)
    world.wish(Wish.ARCHIVED)
    world.in_flight, world.report = False, FAILS
    world.run()
    assert (world.row.phase, world.row.stage, world.row.error_count) == (Phase.STANDBY, Stage.BACKOFF, 1)


# ── another controller ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_takeover_continues_with_the_same_op_id_and_a_new_attempt() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(Fate.HANGS)
    world.run()
    op_id, deadline = world.row.op_id, world.row.deadline_at
    world.pass_time(100)
    world.another_controller()
    assert isinstance(world.tick(), Adopt)
    assert (world.row.op_id, world.row.op_attempt, world.row.op_epoch) == (op_id, 2, 2)
    assert deadline is not None
    assert world.row.deadline_at == deadline + timedelta(seconds=100)
    world.run()
    assert world.history() == ["ARCHIVING ABANDONED", "ARCHIVING DONE"]


def test_a_takeover_of_restoring_takes_a_new_generation() -> None:
    world = in_torpor()
    world.wish(Wish.STANDBY)
    world.befall(Fate.HANGS_HALF_WAY)
    world.run()
    world.another_controller()
    world.run()
    assert world.history() == ["RESTORING ABANDONED", "RESTORING DONE"]
    assert (world.row.generation, world.half_made, world.home) == (3, set(), "a day's work")
    # The late writer of the first attempt finishes: the current home is not touched.
    world.homes[2] = "late"
    world.run()
    assert (world.row.phase, world.home, place(world)) == (Phase.STANDBY, "a day's work", (3, 1))


def test_takeovers_renew_the_deadline_a_limited_number_of_times() -> None:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.befall(*[Fate.HANGS] * 10)
    world.run()
    deadlines = [world.row.deadline_at]
    while world.reason is None:
        world.pass_time(600)
        world.another_controller()
        world.run()
        deadlines.append(world.row.deadline_at)
        assert len(deadlines) < 20
    renewed = [after for before, after in itertools.pairwise(deadlines) if after and before != after]
    assert len(renewed) == KNOBS.max_retries
    assert world.reason is Reason.TIMEOUT


def test_an_operation_that_finished_unobserved_is_finished_by_the_next_controller() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.tick()
    world.tick()
    world.another_controller()
    assert isinstance(world.tick(), Finish)
    assert world.row.phase is Phase.RUNNING
    assert world.history() == ["STARTING DONE"]


def test_a_running_effect_is_cancelled_at_the_deadline() -> None:
    world = asleep()
    world.wish(Wish.RUNNING)
    world.befall(Fate.HANGS)
    world.run()
    world.pass_time(300)
    assert isinstance(world.tick(), Cancel)
    assert isinstance(world.tick(), GiveUp)
    assert world.reason is Reason.TIMEOUT


# ── before an automatic stop ──────────────────────────────────────────────────────────────────────────────────────────

STASH = ("git", "stash")
STASHED = BeforeSleep(STASH, KNOBS.before_sleep_s)


def about_to_sleep(command: tuple[str, ...] = STASH) -> World:
    """A workspace with a `before_sleep` command whose automatic stop is requested."""
    world = running()
    world.work("a day's work")
    world.before_sleep = command
    world.wish(Wish.STANDBY, origin=WishOrigin.IDLE)
    world.effects.clear()
    return world


def test_before_sleep_runs_before_an_automatic_stop() -> None:
    world = about_to_sleep()
    world.run()
    assert world.effects == [STASHED, Stop()]
    assert world.row.phase is Phase.STANDBY
    assert world.history() == ["STOPPING DONE"]


@pytest.mark.parametrize("wish", [Wish.STANDBY, Wish.ARCHIVED, Wish.DELETED])
def test_before_sleep_does_not_run_before_a_stop_that_a_user_asked_for(wish: Wish) -> None:
    world = about_to_sleep()
    world.wish(wish)
    world.run()
    assert not any(isinstance(effect, BeforeSleep) for effect in world.effects)
    assert world.container is None


def test_without_before_sleep_an_automatic_stop_is_like_any_other() -> None:
    world = about_to_sleep(())
    writes = world.writes
    world.run()
    asked = running()
    asked.work("a day's work")
    asked.wish(Wish.STANDBY)
    asked_writes = asked.writes
    asked.run()
    assert world.effects == [Stop()]
    assert world.writes - writes == asked.writes - asked_writes


@pytest.mark.parametrize(
    "report",
    [
        EffectFailed(Reason.ACTION_FAILED, "oh"),
        EffectFailed(Reason.UNREACHABLE, "oh"),
        EffectFailed(Reason.DATA_LOST, "oh"),
        ProviderOutage(Outage.RUNTIME, ""),
    ],
)
def test_any_result_of_before_sleep_continues_the_stop_and_counts_no_failure(report: Report) -> None:
    world = about_to_sleep()
    world.befall(report)
    world.run()
    assert world.effects == [STASHED, Stop()]
    assert world.row.phase is Phase.STANDBY
    assert (world.row.error, world.row.error_count) == (None, 0)
    assert world.history() == ["STOPPING DONE"]


def test_the_deadline_of_a_stop_starts_after_before_sleep() -> None:
    world = about_to_sleep()
    world.befall(Fate.HANGS, Fate.HANGS)
    world.run()
    assert world.row.stage == "BEFORE_SLEEP"
    whole_s = KNOBS.before_sleep_s + KNOBS.timeouts_s[Operation.STOPPING]
    world.pass_time(whole_s - 1)
    assert isinstance(world.tick(), Rest), "the effect has its own deadline"
    world.pass_time(1)
    assert isinstance(world.tick(), Cancel)
    world.run()
    assert world.row.stage == "CALL"
    world.pass_time(KNOBS.timeouts_s[Operation.STOPPING] - 1)
    assert world.run().until is not None
    assert world.row.operation is Operation.STOPPING, "a command that hung does not shorten the deadline of the stop"
    world.pass_time(1)
    world.run()
    assert world.reason is Reason.TIMEOUT


def test_a_wake_during_before_sleep_prevents_the_stop() -> None:
    world = about_to_sleep()
    world.befall(Fate.HANGS)
    world.run()
    container = world.container
    world.wish(Wish.RUNNING, origin=WishOrigin.WAKE)
    assert isinstance(world.tick(), Cancel), "the command is ended"
    world.run()
    assert (world.row.phase, world.row.operation) == (Phase.RUNNING, Operation.NONE)
    assert world.container is container
    assert world.history() == ["STOPPING TURNED"]


def test_a_stop_that_has_begun_finishes() -> None:
    world = about_to_sleep()
    world.befall(EffectDone(), Fate.HANGS)
    world.run()
    assert world.row.stage is Stage.CALL
    world.wish(Wish.RUNNING, origin=WishOrigin.WAKE)
    assert isinstance(world.tick(), Rest)


@pytest.mark.parametrize("wish", [Wish.STANDBY, Wish.ARCHIVED, Wish.DELETED])
def test_a_stop_by_a_user_waits_for_a_running_before_sleep(wish: Wish) -> None:
    world = about_to_sleep()
    world.befall(Fate.HANGS)
    world.run()
    world.wish(wish)
    assert isinstance(world.tick(), Rest), "a command that is ended in the middle may leave a mess"
    world.in_flight, world.report = False, EffectDone()
    world.run()
    assert world.container is None
    assert world.effects[:2] == [STASHED, Stop()]


def test_another_controller_runs_before_sleep_again_once() -> None:
    world = about_to_sleep()
    world.befall(Fate.HANGS)
    world.run()
    world.another_controller()
    world.run()
    assert world.effects == [STASHED, STASHED, Stop()]
    assert world.row.phase is Phase.STANDBY
    assert world.history() == ["STOPPING ABANDONED", "STOPPING DONE"]


def test_a_retried_stop_does_not_run_before_sleep_again() -> None:
    world = about_to_sleep()
    world.befall(EffectDone(), EffectFailed(Reason.ACTION_FAILED, "oh"))
    world.run_until_rest()
    assert world.effects == [STASHED, Stop(), Stop()]
    assert world.row.phase is Phase.STANDBY


def test_a_container_that_does_not_answer_is_stopped_at_once() -> None:
    world = about_to_sleep()
    assert world.container is not None
    world.container = replace(world.container, ready=False)
    world.run()
    assert world.effects == [Stop()]


def test_a_program_that_ends_during_before_sleep_needs_no_stop() -> None:
    world = about_to_sleep()
    world.befall(Fate.HANGS)
    world.run()
    world.program_ends(0)
    world.in_flight, world.report = False, EffectDone()
    world.run()
    assert (world.row.phase, world.row.operation) == (Phase.STANDBY, Operation.NONE)
    assert world.effects == [STASHED]
