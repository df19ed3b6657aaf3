"""Go back to older archives, and copy archives of other workspaces, also with a crash between any two steps."""

from collections.abc import Callable

import pytest

from tests.domain.world import Fate, World, asleep, in_torpor, running
from tests.support.builders import SOURCE
from torpor.domain.effects import Pack
from torpor.domain.errors import Reason
from torpor.domain.explain import ActionVerb, explain
from torpor.domain.planner import Cancel, Rest, Rewind, Store, Turn
from torpor.domain.records import Archive, EffectFailed, ProviderOutage
from torpor.domain.states import Operation, Outage, Phase, Wish

FAILS = EffectFailed(Reason.ACTION_FAILED, "it did not work")


def with_history(world: World, *, then: Wish) -> tuple[World, Archive]:
    """A workspace with the archive of "first", whose home has "second" by now and no archive of that."""
    world.wish(Wish.RUNNING)
    world.run()
    world.work("first")
    world.wish(Wish.ARCHIVED)
    world.run()
    first = world.row.archive
    assert first is not None
    world.wish(Wish.RUNNING)
    world.run()
    world.work("second")
    world.wish(then)
    world.run()
    world.history()
    return world, first


def latest(world: World) -> str:
    """The content of the latest archive."""
    return list(world.archives.values())[-1]


# ── restore ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_running_workspace_is_archived_restored_and_started_again() -> None:
    world, first = with_history(running(), then=Wish.RUNNING)
    world.restore(first)
    world.run()
    assert world.history() == ["STOPPING DONE", "ARCHIVING DONE", "RESTORING DONE", "STARTING DONE"]
    assert (world.row.phase, world.home, latest(world)) == (Phase.RUNNING, "first", "second")
    assert (world.row.archive, world.row.restore) == (first, None)
    assert world.begun[-4:] == [
        f"the archive {first.key} was requested in place of the present home",
        f"the archive {first.key} was requested in place of the present home",
        f"the archive {first.key}, as requested",
        "",
    ]


def test_a_stopped_workspace_is_stopped_again_and_an_archived_one_needs_no_operation() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.restore(first)
    world.run()
    assert world.history() == ["ARCHIVING DONE", "RESTORING DONE"]
    assert (world.row.phase, world.home, latest(world)) == (Phase.STANDBY, "first", "second")

    world, first = with_history(running(), then=Wish.ARCHIVED)
    generation = world.row.generation
    world.restore(first)
    assert isinstance(world.tick(), Rewind)
    world.run()
    assert world.history() == []
    assert (world.row.phase, world.row.archive, world.row.generation) == (Phase.ARCHIVED, first, generation + 1)
    world.wish(Wish.RUNNING)
    world.run()
    assert world.home == "first"


def test_a_restored_home_is_archived_before_the_next_restore() -> None:
    """Back and forth: no state is lost, and none counts as archived because an older archive has its numbers."""
    world, first = with_history(running(), then=Wish.RUNNING)
    world.restore(first)
    world.run()
    second = next(archive for archive, content in world.archives.items() if content == "second")
    world.work("third")
    world.restore(second)
    world.run()
    assert (world.home, latest(world)) == ("second", "third")
    assert sorted(world.archives.values()) == ["first", "second", "third"]


def test_the_home_is_archived_before_the_older_archive_replaces_it() -> None:
    world, first = with_history(running(), then=Wish.RUNNING)
    world.restore(first)
    while not isinstance(world.tick(), Rewind):
        assert world.row.restore is not None
        assert world.row.archive is not None
        # Until the last moment the row refers to an archive of the present home, or expects that home.
        assert world.row.expects_volume or world.archives[world.row.archive] == "second"
    assert "second" in world.archives.values()


@pytest.mark.parametrize("wish", [Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED])
@pytest.mark.parametrize("crash_at", range(24))
def test_a_crash_between_any_two_steps_loses_no_home(wish: Wish, crash_at: int) -> None:
    world, first = with_history(running(), then=wish)
    world.restore(first)
    for _ in range(crash_at):
        world.tick()
    # The effect in flight ends with its controller, before or after it did its work.
    for is_lost in (True, False):
        if is_lost:
            world.befall(Fate.HANGS)
        world.tick()
        world.another_controller()
        world.fates.clear()
    world.run_until_rest()
    assert (world.row.phase.value, world.row.restore, world.row.error) == (wish.value, None, None)
    assert world.row.archive == first
    assert "second" in world.archives.values()
    if wish is not Wish.ARCHIVED:
        assert world.home == "first"


@pytest.mark.parametrize("crash_at", range(24))
def test_a_cancel_between_any_two_steps_keeps_the_present_home_or_comes_too_late(crash_at: int) -> None:
    world, first = with_history(running(), then=Wish.RUNNING)
    world.restore(first)
    for _ in range(crash_at):
        world.tick()
    is_too_late = world.row.restore is None
    if not is_too_late:
        world.cancel_restore()
    world.run_until_rest()
    assert (world.row.phase, world.home) == (Phase.RUNNING, "first" if is_too_late else "second")


def test_a_cancelled_restore_stops_the_archiving() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.restore(first)
    world.befall(Fate.HANGS)
    world.run()
    assert (world.row.operation, world.in_flight) == (Operation.ARCHIVING, True)
    world.cancel_restore()
    assert isinstance(world.tick(), Cancel)
    assert isinstance(world.tick(), Turn)
    world.run()
    assert (world.row.phase, world.home, world.row.is_archived) == (Phase.STANDBY, "second", False)


def test_a_cancel_after_the_archive_is_stored_restores_the_present_home() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.restore(first)
    while not isinstance(world.tick(), Store):
        pass
    world.cancel_restore()
    world.run()
    assert (world.row.phase, world.home) == (Phase.STANDBY, "second")


def test_a_failed_archiving_keeps_the_home_and_the_restore_continues_after_a_new_wish() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.restore(first)
    world.befall(*[FAILS] * 4)
    world.run_until_rest()
    assert (world.row.phase, world.reason, world.home) == (Phase.ERROR, Reason.RETRY_EXCEEDED, "second")
    world.wish(Wish.STANDBY)
    world.run()
    assert (world.row.phase, world.home, latest(world)) == (Phase.STANDBY, "first", "second")


def test_an_outage_of_the_archive_store_only_delays_a_restore() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.restore(first)
    world.befall(*[ProviderOutage(Outage.ARCHIVE_STORE, "no answer")] * 5)
    world.run_until_rest()
    assert (world.row.phase, world.home, latest(world)) == (Phase.STANDBY, "first", "second")


def test_an_older_archive_that_is_lost_leaves_the_present_home_in_an_archive() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    del world.archives[first]
    world.restore(first)
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.DATA_LOST)
    world.recover(archive=next(iter(world.archives)))
    world.run()
    assert (world.row.phase, world.home) == (Phase.STANDBY, "second")


def test_a_lost_home_is_not_replaced_without_a_recovery() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.homes.clear()
    world.restore(first)
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.DATA_LOST)
    assert world.row.restore is not None


def test_a_restore_is_requested_during_a_start_and_during_an_archiving() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.wish(Wish.RUNNING)
    world.befall(Fate.HANGS)
    world.run()
    assert (world.row.operation, world.in_flight) == (Operation.STARTING, True)
    world.restore(first)
    world.run()
    assert world.history() == ["STARTING TURNED", "ARCHIVING DONE", "RESTORING DONE", "STARTING DONE"]
    assert (world.home, latest(world)) == ("first", "second")

    world, first = with_history(running(), then=Wish.STANDBY)
    world.wish(Wish.ARCHIVED)
    world.befall(Fate.HANGS)
    world.run()
    world.restore(first)
    assert isinstance(world.tick(), Rest), "the archiving serves the restore"
    assert world.row.operation is Operation.ARCHIVING


def test_a_program_that_ends_during_a_restore_is_not_restarted() -> None:
    world, first = with_history(running(), then=Wish.RUNNING)
    world.program_ends()
    world.restore(first)
    world.run()
    assert "STARTING FAILED" not in world.history()
    assert (world.row.phase, world.home, latest(world)) == (Phase.RUNNING, "first", "second")


@pytest.mark.parametrize("purge", [False, True])
def test_a_deletion_ends_a_restore(purge: bool) -> None:
    world, first = with_history(running(), then=Wish.RUNNING)
    world.restore(first)
    world.tick()
    world.wish(Wish.DELETED, purge=purge)
    world.run()
    assert (world.row.phase, world.row.restore) == (Phase.DELETED, None)
    assert ("second" in world.archives.values()) is not purge


def test_a_home_that_was_given_up_can_be_replaced() -> None:
    world, first = with_history(running(), then=Wish.STANDBY)
    world.homes.clear()
    world.run()
    world.recover(empty=True)
    world.tick()
    assert world.row.phase is Phase.PENDING
    world.restore(first)
    world.run()
    assert (world.row.phase, world.home) == (Phase.STANDBY, "first")


def test_an_open_restore_is_explained() -> None:
    world, first = with_history(running(), then=Wish.RUNNING)
    world.restore(first)
    told = explain(world.row, (str(first.key),))
    assert any(line.startswith(f"Restore: its home is being replaced by the archive {first.key}") for line in told.lines)
    assert told.next_step == "archive the present home, continue with the requested archive, then Running"
    assert ActionVerb.CANCEL_RESTORE in [action.verb for action in told.actions]
    world.run()
    told = explain(world.row, (str(first.key),))
    assert not any(line.startswith("Restore") for line in told.lines)
    assert ActionVerb.CANCEL_RESTORE not in [action.verb for action in told.actions]


# ── fork ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fork(wish: Wish = Wish.RUNNING) -> World:
    world = World(desired_state=wish, fork_source=SOURCE)
    world.archives[SOURCE] = "the source's work"
    return world


def test_a_fork_copies_the_archive_and_starts_with_it() -> None:
    world = fork()
    world.run()
    assert world.history() == ["COPYING DONE", "RESTORING DONE", "STARTING DONE"]
    assert (world.row.phase, world.home) == (Phase.RUNNING, "the source's work")
    assert world.row.archive is not None
    assert world.row.archive.key.workspace_id == world.row.id
    del world.archives[SOURCE]
    world.work("the fork's own work")
    world.wish(Wish.ARCHIVED)
    world.run()
    world.wish(Wish.RUNNING)
    world.run()
    assert world.home == "the fork's own work"


def test_a_fork_that_stays_archived_is_copied_too() -> None:
    world = fork(Wish.ARCHIVED)
    world.run()
    assert world.history() == ["COPYING DONE"]
    assert (world.row.phase, world.row.is_archived, world.homes) == (Phase.ARCHIVED, True, {})


@pytest.mark.parametrize("wish", [Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED])
@pytest.mark.parametrize("crash_at", range(12))
def test_a_crash_between_any_two_steps_of_a_fork_loses_nothing(wish: Wish, crash_at: int) -> None:
    world = fork(wish)
    for _ in range(crash_at):
        world.tick()
    for is_lost in (True, False):
        if is_lost:
            world.befall(Fate.HANGS)
        world.tick()
        world.another_controller()
        world.fates.clear()
    world.run_until_rest()
    assert (world.row.phase.value, world.row.error) == (wish.value, None)
    assert world.row.archive is not None
    assert world.archives[world.row.archive] == "the source's work"
    assert wish is Wish.ARCHIVED or world.home == "the source's work"


def test_a_fork_whose_source_is_lost_says_so_and_can_begin_empty() -> None:
    world = fork()
    world.archives.clear()
    world.run()
    assert (world.row.phase, world.reason) == (Phase.ERROR, Reason.DATA_LOST)
    world.recover(empty=True)
    world.run()
    assert world.history() == ["COPYING FAILED DataLost", "PROVISIONING DONE", "STARTING DONE"]


def test_a_fork_is_deleted_during_its_copy() -> None:
    world = fork()
    world.befall(Fate.HANGS)
    world.run()
    assert world.row.operation is Operation.COPYING
    world.wish(Wish.DELETED)
    assert isinstance(world.tick(), Cancel)
    world.run()
    assert (world.row.phase, world.row.archive) == (Phase.DELETED, None)


def test_a_copy_that_fails_is_retried_with_the_same_key() -> None:
    world = fork()
    world.befall(FAILS)
    world.run_until_rest()
    assert world.history() == ["COPYING FAILED ActionFailed", "COPYING DONE", "RESTORING DONE", "STARTING DONE"]


@pytest.mark.parametrize("stage", [running, asleep, in_torpor])
def test_without_a_request_no_rule_differs(stage: Callable[[], World]) -> None:
    world = stage()
    assert not any(isinstance(effect, Pack) for effect in world.effects) or world.row.phase is Phase.ARCHIVED
    assert world.row.heads_for is world.row.desired_state
    assert not world.row.awaits_copy
