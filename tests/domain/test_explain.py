"""Does every workspace get an explanation that a person can act on?"""

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.builders import NOW, error, workspace
from torpor.domain.errors import Reason
from torpor.domain.explain import OPERATION_MEANS, PHASE_MEANS, PHASE_OF_WISH, WAITS_FOR, explain
from torpor.domain.idle import AwakeReason, StayAwake
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin


def test_every_word_has_its_meaning() -> None:
    assert PHASE_MEANS.keys() == set(Phase)
    assert OPERATION_MEANS.keys() == WAITS_FOR.keys() == set(Operation)
    assert PHASE_OF_WISH.keys() == set(Wish)


@pytest.mark.parametrize(("phase", "operation"), list(itertools.product(Phase, Operation)))
def test_every_state_is_explained_and_offers_a_way_on(phase: Phase, operation: Operation) -> None:
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
    assert told.ways_out, "every state has a way out"
    assert all(row.name in way.command for way in told.ways_out)


def test_a_lost_home_is_offered_every_archive_and_an_empty_one() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.DATA_LOST))
    commands = [way.command for way in explain(row, ("w/1", "w/2")).ways_out]
    assert commands == [
        f"torpor recover {row.name} --archive-key w/1",
        f"torpor recover {row.name} --archive-key w/2",
        f"torpor recover {row.name} --empty",
        f"torpor delete {row.name}",
    ]


def test_a_lost_archive_is_not_offered() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.DATA_LOST, context={"archive_key": "w/2"}))
    commands = [way.command for way in explain(row, ("w/2", "w/1")).ways_out]
    assert commands[0] == f"torpor recover {row.name} --archive-key w/1"
    assert not any("w/2" in command for command in commands)


def test_a_home_whose_marker_cannot_be_read_can_be_looked_at_and_accepted() -> None:
    unreadable = error(Reason.MARKER_UNREADABLE, context={"home": "/data/volumes/ws 1/home"})
    row = workspace(phase=Phase.ERROR, error=unreadable)
    told = explain(row, ("w/1",))
    assert "Look: on the machine that runs it, as an administrator: `ls -la '/data/volumes/ws 1/home'`." in told.lines
    assert [way.command for way in told.ways_out] == [
        f"torpor recover {row.name} --accept",
        f"torpor recover {row.name} --archive-key w/1",
        f"torpor recover {row.name} --empty",
        f"torpor delete {row.name}",
    ]
    going = workspace(phase=Phase.DELETING, desired_state=Wish.DELETED, deleted_at=NOW, error=unreadable)
    assert not any("--accept" in way.command for way in explain(going, ()).ways_out), "it is undeleted first"


def test_an_error_says_what_the_program_said_last() -> None:
    row = workspace(phase=Phase.ERROR, error=error(Reason.ACTION_FAILED, context={"last_lines": "no such file"}))
    told = explain(row, ())
    assert told.why is not None
    assert "no such file" in told.why
    assert told.next_step == "nothing by itself; it needs a word from you"
    assert told.ways_out[0].command == f"torpor recover {row.name}"


def test_a_delete_that_stands_offers_purge_and_undelete() -> None:
    row = workspace(phase=Phase.DELETING, desired_state=Wish.DELETED, deleted_at=NOW, error=error(Reason.RETRY_EXCEEDED))
    commands = [way.command for way in explain(row, ()).ways_out]
    assert f"torpor delete {row.name} --purge" in commands
    assert f"torpor undelete {row.name}" in commands


def test_who_is_held_back_is_told_why_nothing_happens() -> None:
    assert any("Held back" in line for line in explain(workspace(), (), ("process",)).lines)
    assert not any("Held back" in line for line in explain(workspace(), ()).lines)


def test_a_turn_is_announced() -> None:
    row = workspace(
        phase=Phase.STANDBY,
        desired_state=Wish.RUNNING,
        operation=Operation.ARCHIVING,
        stage=Stage.CALL,
        op_id="op",
        deadline_at=NOW,
    )
    assert explain(row, ()).next_step == "ARCHIVING is turned round, because the wish is now RUNNING"


def test_while_before_sleep_runs_that_is_told() -> None:
    row = workspace(
        phase=Phase.RUNNING, desired_state=Wish.STANDBY, operation=Operation.STOPPING, stage=Stage.BEFORE_SLEEP, deadline_at=NOW
    )
    told = explain(row, ())
    assert told.waiting_for is not None
    assert told.waiting_for.what == "its `before_sleep` command to end"
    assert any("`before_sleep`" in line for line in told.lines)
    woken = explain(replace(row, desired_state=Wish.RUNNING), ())
    assert woken.next_step == "STOPPING is turned round, because the wish is now RUNNING"


# ── why it is awake, why it was stopped ───────────────────────────────────────────────────────────────────────────────

UNTIL = NOW + timedelta(seconds=60)


def test_every_reason_to_be_awake_is_told_with_its_end() -> None:
    awake = (
        StayAwake(AwakeReason.HELD, "ada holds it awake: a build", UNTIL),
        StayAwake(AwakeReason.CONNECTED, "2 connections are in use"),
    )
    row = workspace(phase=Phase.RUNNING)
    told = explain(row, (), awake=awake)
    line = next(line for line in told.lines if line.startswith("Awake: "))
    assert "ada holds it awake: a build (until 2026-03-01T12:01:00+00:00); 2 connections are in use" in line
    assert told.awake == awake
    assert told.next_step is None, "nobody knows when the connections end"
    assert told.stopped is None


def test_when_it_will_sleep_is_told_where_that_is_known() -> None:
    row = workspace(phase=Phase.RUNNING)
    awake = (StayAwake(AwakeReason.USED_LATELY, "used", NOW), StayAwake(AwakeReason.IDLE_TIMER, "timer", UNTIL))
    assert explain(row, (), awake=awake).next_step == ("STANDBY after 2026-03-01T12:01:00+00:00, unless somebody uses it")
    assert explain(row, (), awake=()).next_step == "STANDBY at the next look, because nobody used it for 300 s"


@pytest.mark.parametrize(
    ("wish", "origin", "words"),
    [
        (Wish.STANDBY, WishOrigin.IDLE, "put to sleep because nobody used it for 300 s"),
        (Wish.ARCHIVED, WishOrigin.IDLE, "put to sleep because it had been standing by, unused, for 86400 s"),
        (Wish.STANDBY, WishOrigin.PERSON, "stopped by a person"),
        (Wish.ARCHIVED, WishOrigin.PERSON, "archived by a person"),
        (Wish.DELETED, WishOrigin.PERSON, "deleted by a person"),
    ],
)
def test_who_stopped_it_when_and_why(wish: Wish, origin: WishOrigin, words: str) -> None:
    row = workspace(phase=PHASE_OF_WISH[wish], desired_state=wish, wish_origin=origin, wished_at=UNTIL)
    told = explain(row, ())
    assert told.stopped is not None
    assert (told.stopped.origin, told.stopped.at, told.stopped.words) == (origin, UNTIL, words)
    assert f"{words} at 2026-03-01T12:01:00+00:00" in told.lines[0]


@pytest.mark.parametrize(("wish", "origin"), list(itertools.product(Wish, WishOrigin)))
def test_every_wish_of_every_origin_has_its_words(wish: Wish, origin: WishOrigin) -> None:
    told = explain(workspace(desired_state=wish, wish_origin=origin), ())
    assert (told.stopped is None) is (wish is Wish.RUNNING)
    assert told.lines[0].startswith(f"Wished: {wish}")


def test_undelete_is_offered_only_while_it_would_be_accepted() -> None:
    gone = workspace(phase=Phase.DELETED, desired_state=Wish.DELETED, deleted_at=NOW)
    stands = replace(gone, phase=Phase.DELETING, error=error(Reason.RETRY_EXCEEDED))
    for row in (gone, stands):
        for can_be_undeleted, purge in itertools.product((False, True), repeat=2):
            told = explain(replace(row, purge=purge), (), can_be_undeleted=can_be_undeleted)
            offers = any("undelete" in way.command for way in told.ways_out)
            assert offers is (can_be_undeleted and not purge)


def test_a_stop_that_is_near_is_named_with_its_time_and_how_to_prevent_it() -> None:
    soon = NOW + timedelta(seconds=200)
    row = workspace(phase=Phase.RUNNING, desired_state=Wish.RUNNING)
    told = explain(replace(row, sleeps_at=soon), ())
    assert any(line.startswith(f"Sleeping soon: it is stopped at {soon.isoformat()}") for line in told.lines)
    assert any(way.command.startswith("torpor hold ada --for 1h") for way in told.ways_out)
    assert not any("Sleeping soon" in line for line in explain(row, ()).lines)


def test_what_happened_once_is_not_told_as_times() -> None:
    for revision, words in ((0, "opened 0 times,"), (1, "opened once,"), (2, "opened 2 times,")):
        assert any(words in line for line in explain(workspace(revision=revision), ()).lines)
