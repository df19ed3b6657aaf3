"""Users are warned in time, and only before a stop that will come."""

from datetime import datetime
from typing import Any

import pytest

from tests.support.builders import NOW, error, later, workspace
from torpor.domain.errors import Reason
from torpor.domain.idle import AwakeReason, IdleFacts, UseReport, WorkLease
from torpor.domain.records import Workspace
from torpor.domain.sleep_warning import ENDS_BY_TIME, NO_NEWS_S, is_news, sleeps_at, warning_s
from torpor.domain.states import Operation, Phase, Wish

LEASE_S = 30.0
TTL_S = 1800
REMEMBERS = UseReport(0, None, 1e9)


def running(used_s_ago: float, **changes: Any) -> Workspace:
    at = later(-used_s_ago)
    times = {"last_access_at": at, "phase_changed_at": later(-100_000), "wished_at": later(-100_000)}
    return workspace(**({"phase": Phase.RUNNING, "standby_ttl_s": TTL_S} | times | changes))


def warned(row: Workspace, *, bus: UseReport | None = REMEMBERS, holds_s: tuple[float, ...] = ()) -> datetime | None:
    leases = tuple(WorkLease("lease", "w", "a long build", "ada", later(-60), later(one)) for one in holds_s)
    return sleeps_at(IdleFacts(row, leases, bus, LEASE_S, NOW))


@pytest.mark.parametrize(("ttl_s", "ahead_s"), [(86_400, 300), (900, 300), (600, 200), (60, 20), (3, 1)])
def test_five_minutes_ahead_or_a_third_of_the_ttl(ttl_s: int, ahead_s: float) -> None:
    assert warning_s(ttl_s) == ahead_s
    assert warned(running(ttl_s - ahead_s - 0.1, standby_ttl_s=ttl_s)) is None
    assert warned(running(ttl_s - ahead_s, standby_ttl_s=ttl_s)) == later(ahead_s)


def test_the_last_reason_to_end_determines_the_time() -> None:
    near = running(TTL_S - 60)
    assert warned(near) == later(60)
    assert warned(near, bus=UseReport(0, 100, 1e9)) == later(100)
    assert warned(near, holds_s=(30, 200)) == later(200)
    assert warned(near, bus=UseReport(0, 301, 1e9)) is None, "it was used since the row was written"
    assert warned(near, holds_s=(3600,)) is None


def test_after_lost_bus_data_no_warning_is_sent_until_connections_are_known() -> None:
    near = running(TTL_S - 60)
    for memory_s in (0, 1, LEASE_S, TTL_S + LEASE_S - 301):
        assert warned(near, bus=UseReport(0, None, memory_s)) is None
    assert warned(near, bus=UseReport(0, None, TTL_S + LEASE_S - 200)) == later(200)
    assert warned(near, bus=None) is None


@pytest.mark.parametrize(
    ("changes", "bus"),
    [
        ({}, UseReport(1, None, 1e9)),
        ({}, UseReport(0, None, 1e9, "the command 'make' runs in a terminal")),
        ({"error": error(Reason.ACTION_FAILED)}, REMEMBERS),
        ({"operation": Operation.STOPPING}, REMEMBERS),
        ({"desired_state": Wish.STANDBY}, REMEMBERS),
        ({"phase": Phase.STANDBY, "desired_state": Wish.STANDBY, "archive_ttl_s": 1}, REMEMBERS),
    ],
)
def test_a_workspace_that_will_not_be_stopped_is_not_warned(changes: dict[str, Any], bus: UseReport) -> None:
    assert warned(running(TTL_S - 60), bus=REMEMBERS) is not None
    assert warned(running(TTL_S - 60, **changes), bus=bus) is None
    assert warned(running(TTL_S + 60, **changes), bus=bus) is None


def test_an_announced_time_is_kept_and_a_late_warning_is_sent() -> None:
    assert warned(running(TTL_S + 10)) == NOW
    assert warned(running(TTL_S + 10, sleeps_at=later(-9))) == later(-9)


def test_reasons_without_an_end_do_not_end_by_time() -> None:
    assert ENDS_BY_TIME.isdisjoint(
        {AwakeReason.CONNECTED, AwakeReason.BUSY, AwakeReason.IN_TROUBLE, AwakeReason.BUS_OUT, AwakeReason.NO_STEP}
    )


def test_a_difference_of_a_few_seconds_is_not_sent() -> None:
    assert not is_news(None, None)
    assert is_news(None, NOW)
    assert is_news(NOW, None)
    assert not is_news(NOW, later(NO_NEWS_S - 0.1))
    assert not is_news(NOW, later(0.1 - NO_NEWS_S))
    assert is_news(NOW, later(NO_NEWS_S))
