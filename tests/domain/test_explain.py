"""Every workspace gets an explanation with actions that its user can take."""

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.builders import NOW, error, workspace
from torpor.domain.errors import Reason
from torpor.domain.explain import (
    DONE_BY_REQUEST,
    OPERATION_MEANS,
    PHASE_MEANS,
    PHASE_OF_WISH,
    STAYS,
    STEP_DOWN_VERB,
    VERB_OF_WISH,
    WAITS_FOR,
    ActionVerb,
    PossibleAction,
    explain,
)
from torpor.domain.idle import STEP_DOWN, AwakeReason, StayAwake
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin
from torpor.domain.status import STATUS_OF_PHASE


def verbs(row: Workspace, *archive_keys: str) -> list[ActionVerb]:
    return [action.verb for action in explain(row, archive_keys).actions]


def test_the_tables_of_explanations_are_total() -> None:
    assert PHASE_MEANS.keys() == set(Phase)
    assert OPERATION_MEANS.keys() == WAITS_FOR.keys() == set(Operation)
    assert PHASE_OF_WISH.keys() == DONE_BY_REQUEST.keys() == VERB_OF_WISH.keys() == set(Wish)
    assert STAYS.keys() == STEP_DOWN_VERB.keys() == STEP_DOWN.keys()


@pytest.mark.parametrize(("phase", "operation"), list(itertools.product(Phase, Operation)))
def test_every_state_is_explained_and_offers_an_action(phase: Phase, operation: Operation) -> None:
    under_way = operation is not Operation.NONE
    row = workspace(
        phase=phase,
        operation=operation,
        stage=Stage.CALL if under_way else Stage.REST,
        op_id="op" if under_way else None,
        deadline_at=NOW + timedelta(minutes=5) if under_way else None,
    )
    told = explain(row, ())
    assert told.summary.startswith(f"{row.name} {PHASE_MEANS[phase]}")
    assert (told.waiting_for is not None) is under_way
    assert told.actions, "there is an action in every state"


def test_a_lost_home_is_offered_every_archive_and_an_empty_one() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.DATA_LOST))
    assert explain(row, ("w/1", "w/2")).actions == (
        PossibleAction(ActionVerb.RESTORE_ARCHIVE, "w/1"),
        PossibleAction(ActionVerb.RESTORE_ARCHIVE, "w/2"),
        PossibleAction(ActionVerb.CREATE_EMPTY_HOME),
        PossibleAction(ActionVerb.DELETE),
    )


def test_a_lost_archive_is_not_offered() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.DATA_LOST, context={"archive_key": "w/2"}))
    offered = [action.archive_key for action in explain(row, ("w/2", "w/1")).actions]
    assert offered == ["w/1", None, None]


def test_a_home_with_an_unreadable_marker_can_be_inspected_and_accepted() -> None:
    unreadable = error(Reason.MARKER_UNREADABLE, context={"home": "/data/volumes/ws 1/home"})
    row = workspace(phase=Phase.ERROR, error=unreadable)
    told = explain(row, ("w/1",))
    assert "Files: on the machine that runs it, as an administrator: `ls -la '/data/volumes/ws 1/home'`." in told.lines
    assert verbs(row, "w/1") == [
        ActionVerb.ACCEPT_HOME,
        ActionVerb.RESTORE_ARCHIVE,
        ActionVerb.CREATE_EMPTY_HOME,
        ActionVerb.DELETE,
    ]
    going = workspace(phase=Phase.DELETING, desired_state=Wish.DELETED, deleted_at=NOW, error=unreadable)
    assert ActionVerb.ACCEPT_HOME not in verbs(going), "it is undeleted first"


def test_an_error_shows_the_last_output_of_the_program() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.ACTION_FAILED, context={"last_lines": "no such file"}))
    told = explain(row, ())
    assert told.why is not None
    assert "no such file" in told.why
    assert told.next_step == "no automatic step; action required"
    assert told.actions[0].verb is ActionVerb.RETRY


def test_a_delete_with_an_error_offers_purge_and_undelete() -> None:
    row = workspace(phase=Phase.DELETING, desired_state=Wish.DELETED, deleted_at=NOW, error=error(Reason.RETRY_EXCEEDED))
    assert verbs(row) == [ActionVerb.RETRY, ActionVerb.RETRY_DELETE, ActionVerb.PURGE, ActionVerb.UNDELETE]


def test_a_latch_explains_why_nothing_happens() -> None:
    assert any("Paused" in line for line in explain(workspace(), (), ("process",)).lines)
    assert not any("Paused" in line for line in explain(workspace(), ()).lines)


def test_a_cancellation_is_announced() -> None:
    row = workspace(
        phase=Phase.STANDBY,
        desired_state=Wish.RUNNING,
        operation=Operation.ARCHIVING,
        stage=Stage.CALL,
        op_id="op",
        deadline_at=NOW,
    )
    assert explain(row, ()).next_step == "Archiving is canceled, because the requested state is now Running"


def test_a_running_before_sleep_is_explained() -> None:
    row = workspace(
        phase=Phase.RUNNING, desired_state=Wish.STANDBY, operation=Operation.STOPPING, stage=Stage.BEFORE_SLEEP, deadline_at=NOW
    )
    told = explain(row, ())
    assert told.waiting_for is not None
    assert told.waiting_for.what == "its `before_sleep` command to end"
    assert any("`before_sleep`" in line for line in told.lines)
    woken = explain(replace(row, desired_state=Wish.RUNNING), ())
    assert woken.next_step == "Stopping is canceled, because the requested state is now Running"


# ── why it is awake, why it was stopped ───────────────────────────────────────────────────────────────────────────────

UNTIL = NOW + timedelta(seconds=60)


def test_every_reason_to_stay_running_is_explained_with_its_end() -> None:
    awake = (
        StayAwake(AwakeReason.HELD, "ada keeps it awake: a build", UNTIL),
        StayAwake(AwakeReason.CONNECTED, "2 connections are in use"),
    )
    row = workspace(phase=Phase.RUNNING)
    told = explain(row, (), awake=awake)
    line = next(line for line in told.lines if line.startswith("Stays running: "))
    assert "ada keeps it awake: a build (until 2026-03-01T12:01:00+00:00); 2 connections are in use" in line
    assert told.awake == awake
    assert told.next_step is None, "it is not known when the connections end"
    assert told.stopped is None


def test_the_time_of_the_automatic_stop_is_explained_if_known() -> None:
    row = workspace(phase=Phase.RUNNING)
    awake = (StayAwake(AwakeReason.USED_LATELY, "used", NOW), StayAwake(AwakeReason.IDLE_TIMER, "timer", UNTIL))
    assert explain(row, (), awake=awake).next_step == "stop after 2026-03-01T12:01:00+00:00, unless it is used"
    assert explain(row, (), awake=()).next_step == "stop in the next pass, because it was not used for 300 s"


@pytest.mark.parametrize(
    ("wish", "origin", "words"),
    [
        (Wish.STANDBY, WishOrigin.IDLE, "stopped automatically because it was not used for 300 s"),
        (Wish.ARCHIVED, WishOrigin.IDLE, "archived automatically because it was stopped and not used for 86400 s"),
        (Wish.STANDBY, WishOrigin.PERSON, "stopped by a user"),
        (Wish.ARCHIVED, WishOrigin.PERSON, "archived by a user"),
        (Wish.DELETED, WishOrigin.PERSON, "deleted by a user"),
    ],
)
def test_the_origin_time_and_reason_of_a_stop_are_explained(wish: Wish, origin: WishOrigin, words: str) -> None:
    row = workspace(phase=PHASE_OF_WISH[wish], desired_state=wish, wish_origin=origin, wished_at=UNTIL)
    told = explain(row, ())
    assert told.stopped is not None
    assert (told.stopped.origin, told.stopped.at, told.stopped.words) == (origin, UNTIL, words)
    assert f"{words} at 2026-03-01T12:01:00+00:00" in told.lines[0]


@pytest.mark.parametrize(("wish", "origin"), list(itertools.product(Wish, WishOrigin)))
def test_every_requested_state_and_origin_is_explained(wish: Wish, origin: WishOrigin) -> None:
    told = explain(workspace(desired_state=wish, wish_origin=origin), ())
    assert (told.stopped is None) is (wish is Wish.RUNNING)
    assert told.lines[0].startswith(f"Requested: {STATUS_OF_PHASE[PHASE_OF_WISH[wish]]} (request 5)")


def test_undelete_is_offered_only_while_it_would_be_accepted() -> None:
    gone = workspace(phase=Phase.DELETED, desired_state=Wish.DELETED, deleted_at=NOW)
    stands = replace(gone, phase=Phase.DELETING, error=error(Reason.RETRY_EXCEEDED))
    for row in (gone, stands):
        for can_be_undeleted, purge in itertools.product((False, True), repeat=2):
            told = explain(replace(row, purge=purge), (), can_be_undeleted=can_be_undeleted)
            offers = PossibleAction(ActionVerb.UNDELETE) in told.actions
            assert offers is (can_be_undeleted and not purge)


def test_a_coming_stop_is_explained_with_its_time_and_how_to_prevent_it() -> None:
    soon = NOW + timedelta(seconds=200)
    row = workspace(phase=Phase.RUNNING, desired_state=Wish.RUNNING)
    told = explain(replace(row, sleeps_at=soon), ())
    assert any(line.startswith(f"Stops soon: at {soon.isoformat()}") for line in told.lines)
    assert PossibleAction(ActionVerb.KEEP_AWAKE) in told.actions
    assert not any("Stops soon" in line for line in explain(row, ()).lines)
