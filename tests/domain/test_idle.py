"""Exactly the workspaces without a reason to stay awake are stopped."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import NOW, error, later, workspace
from torpor.domain.errors import Reason
from torpor.domain.idle import (
    LADDER,
    STEP_DOWN,
    WHY_DOWN,
    AwakeReason,
    GoToSleep,
    IdleFacts,
    StayAwake,
    UseReport,
    WorkLease,
    decide,
    has_outlived_ttl,
    has_step_down,
    is_about_to_sleep,
    reasons_to_stay,
)
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin

LEASE_S = 30.0
TTL_S = 300
LONG_AGO = later(-100_000)
FORGETFUL = UseReport(0, None, TTL_S + LEASE_S)
QUIET = UseReport(0, None, TTL_S + LEASE_S + 0.001)


def lease(ends_in_s: float) -> WorkLease:
    return WorkLease("lease", "w", "a long build", "ada", later(-60), later(ends_in_s))


def facts(row: Workspace, *, leases: tuple[WorkLease, ...] = (), bus: UseReport | None = QUIET) -> IdleFacts:
    return IdleFacts(row, leases, bus, LEASE_S, NOW)


def idle(**changes: Any) -> Workspace:
    """A workspace without a reason to stay awake."""
    times = {"last_access_at": LONG_AGO, "phase_changed_at": LONG_AGO, "wished_at": LONG_AGO}
    return workspace(**({"phase": Phase.RUNNING, "standby_ttl_s": TTL_S} | times | changes))


def sleeping(**changes: Any) -> Workspace:
    return idle(**({"phase": Phase.STANDBY, "desired_state": Wish.STANDBY, "archive_ttl_s": 1000} | changes))


# The facts behind each reason to stay awake, for a running workspace.
HINDRANCES: dict[AwakeReason, dict[str, Any]] = {
    AwakeReason.IN_TROUBLE: {"row": {"error": error(Reason.ACTION_FAILED)}},
    AwakeReason.UNDER_WAY: {"row": {"operation": Operation.STOPPING}},
    AwakeReason.HELD: {"leases": (lease(0.001),)},
    AwakeReason.CONNECTED: {"bus": UseReport(1, None, 1e9)},
    AwakeReason.BUSY: {"bus": UseReport(0, None, 1e9, "the command 'sleep 600' runs in a terminal")},
    AwakeReason.IDLE_TIMER: {"bus": UseReport(0, 0.001, 1e9)},
    AwakeReason.USED_LATELY: {"row": {"last_access_at": later(0.001 - TTL_S)}},
    AwakeReason.BUS_OUT: {"bus": None},
    AwakeReason.BUS_FORGOT: {"bus": FORGETFUL},
}


def test_the_tables_are_total() -> None:
    assert LADDER.keys() == set(STEP_DOWN.values()) == WHY_DOWN.keys()
    assert HINDRANCES.keys() == set(AwakeReason) - {AwakeReason.NO_STEP}


@pytest.mark.parametrize(("phase", "wish"), list(itertools.product(Phase, Wish)))
def test_only_a_workspace_in_its_requested_state_has_an_automatic_step(phase: Phase, wish: Wish) -> None:
    row = idle(phase=phase, desired_state=wish, error=error(Reason.ACTION_FAILED) if phase is Phase.ERROR else None)
    expected = {(Phase.RUNNING, Wish.RUNNING): Wish.STANDBY, (Phase.STANDBY, Wish.STANDBY): Wish.ARCHIVED}.get((phase, wish))
    answer = decide(facts(row))
    assert has_step_down(row) is (expected is not None)
    if expected is None:
        assert isinstance(answer, StayAwake)
        assert answer.why is AwakeReason.NO_STEP
    else:
        assert isinstance(answer, GoToSleep)
        assert answer.to is expected


def test_any_combination_of_reasons_prevents_the_stop_and_none_allows_it() -> None:
    """In every possible subset the result is all reasons, in the order of the ladder."""
    order = [
        AwakeReason.IN_TROUBLE,
        AwakeReason.UNDER_WAY,
        AwakeReason.HELD,
        AwakeReason.CONNECTED,
        AwakeReason.IDLE_TIMER,
        AwakeReason.USED_LATELY,
        AwakeReason.BUS_OUT,
        AwakeReason.BUS_FORGOT,
    ]
    seen = 0
    for trouble, under_way, held, lately in itertools.product([False, True], repeat=4):
        for connections, timer_s, memory_s, out in itertools.product(
            (0, 1, 7), (None, 0.0, 9.0), (0.0, TTL_S + LEASE_S, TTL_S + LEASE_S + 1), (False, True)
        ):
            row = idle(
                **({"error": error(Reason.TIMEOUT)} if trouble else {}),
                **({"operation": Operation.STARTING} if under_way else {}),
                **({"last_access_at": later(-1)} if lately else {}),
            )
            bus = None if out else UseReport(connections, timer_s, memory_s)
            given = facts(row, leases=(lease(60),) if held else (lease(0),), bus=bus)
            expected = {
                AwakeReason.IN_TROUBLE: trouble,
                AwakeReason.UNDER_WAY: under_way,
                AwakeReason.HELD: held,
                AwakeReason.CONNECTED: not out and connections > 0,
                AwakeReason.IDLE_TIMER: not out and timer_s is not None,
                AwakeReason.USED_LATELY: lately,
                AwakeReason.BUS_OUT: out,
                AwakeReason.BUS_FORGOT: not out and memory_s <= TTL_S + LEASE_S,
            }
            reasons = [reason.why for reason in reasons_to_stay(given)]
            assert reasons == [why for why in order if expected[why]]
            answer = decide(given)
            assert isinstance(answer, GoToSleep) is (not reasons)
            if isinstance(answer, StayAwake):
                assert answer.why is reasons[0]
            seen += 1
    assert seen == 16 * 54


@pytest.mark.parametrize("why", HINDRANCES)
def test_each_reason_is_enough(why: AwakeReason) -> None:
    given = HINDRANCES[why]
    answer = decide(facts(idle(**given.get("row", {})), leases=given.get("leases", ()), bus=given.get("bus", QUIET)))
    assert isinstance(answer, StayAwake)
    assert answer.why is why
    assert answer.words


@pytest.mark.parametrize("column", ["last_access_at", "phase_changed_at", "wished_at"])
def test_the_latest_of_the_three_instants_counts(column: str) -> None:
    waiting = decide(facts(idle(**{column: later(0.001 - TTL_S)})))
    assert isinstance(waiting, StayAwake)
    assert (waiting.why, waiting.until) == (AwakeReason.USED_LATELY, later(0.001))
    assert decide(facts(idle(**{column: later(-TTL_S)}))) == GoToSleep(Wish.STANDBY, "it was not used for 300 s")


def test_a_lease_ends_at_its_expiry() -> None:
    assert isinstance(decide(facts(idle(), leases=(lease(0),))), GoToSleep)
    held = reasons_to_stay(facts(idle(), leases=(lease(0), lease(10), lease(5))))
    assert [stay.until for stay in held] == [later(10), later(5)]
    assert all("ada" in stay.words and "a long build" in stay.words for stay in held)


def test_a_timer_counts_no_longer_than_the_current_ttl() -> None:
    (stay,) = reasons_to_stay(facts(idle(), bus=UseReport(0, 8 * 3600.0, 1e9)))
    assert (stay.why, stay.until) == (AwakeReason.IDLE_TIMER, later(TTL_S))
    assert "300 s" in stay.words
    assert has_outlived_ttl(idle(), TTL_S + 0.1)
    assert not has_outlived_ttl(idle(), TTL_S)


def test_only_an_automatic_stop_that_has_not_begun_is_about_to_sleep() -> None:
    about_to = {"desired_state": Wish.STANDBY, "wish_origin": WishOrigin.IDLE}
    for phase, wish, origin, operation in itertools.product(Phase, Wish, WishOrigin, Operation):
        row = idle(
            phase=phase,
            desired_state=wish,
            wish_origin=origin,
            operation=operation,
            error=error(Reason.ACTION_FAILED) if phase is Phase.ERROR else None,
        )
        expected = (phase, operation) == (Phase.RUNNING, Operation.NONE) and about_to == {
            "desired_state": wish,
            "wish_origin": origin,
        }
        assert is_about_to_sleep(row) is expected


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.REST])
def test_a_workspace_is_about_to_sleep_while_before_sleep_runs(stage: Stage) -> None:
    row = idle(desired_state=Wish.STANDBY, wish_origin=WishOrigin.IDLE, operation=Operation.STOPPING, stage=stage)
    assert is_about_to_sleep(row) is (stage is Stage.BEFORE_SLEEP)
    assert not is_about_to_sleep(replace(row, wish_origin=WishOrigin.PERSON))


def test_lost_bus_data_prevents_the_stop_until_a_known_time() -> None:
    answer = decide(facts(idle(), bus=UseReport(0, None, 100)))
    assert isinstance(answer, StayAwake)
    assert answer.until == NOW + timedelta(seconds=TTL_S + LEASE_S - 100)


@pytest.mark.parametrize("bus", [None, FORGETFUL, UseReport(3, 9, 0)])
def test_archiving_needs_no_bus_and_ignores_holds(bus: UseReport | None) -> None:
    row = sleeping()
    assert decide(facts(row, bus=bus, leases=(lease(60),))) == GoToSleep(
        Wish.ARCHIVED, "it was stopped and not used for 1000 s"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"last_access_at": later(-1000)}, AwakeReason.USED_LATELY),
        ({"phase_changed_at": later(-1000)}, AwakeReason.USED_LATELY),
        ({"operation": Operation.STARTING}, AwakeReason.UNDER_WAY),
        ({"error": error(Reason.ACTION_FAILED)}, AwakeReason.IN_TROUBLE),
    ],
)
def test_each_reason_prevents_archiving(changes: dict[str, Any], why: AwakeReason) -> None:
    answer = decide(facts(sleeping(**changes)))
    assert isinstance(answer, StayAwake)
    assert answer.why is why


def test_a_recent_request_alone_does_not_prevent_archiving() -> None:
    assert isinstance(decide(facts(sleeping(wished_at=NOW))), GoToSleep)
