"""Every workspace is reconciled in time, and no hint is lost."""

import asyncio

import pytest

from torpor.control.schedule import Schedule
from torpor.domain.tuning import Intervals

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def pace(clock: Clock) -> Schedule:
    paced = Schedule(Intervals(idle_s=10, active_s=2), clock)
    assert await paced.next() is None, "the first pass is a full pass"
    return paced


async def test_a_full_resync_is_due_every_ten_seconds(pace: Schedule, clock: Clock) -> None:
    clock.now = 10
    assert await pace.next() is None


async def test_due_workspaces_come_before_the_full_resync(pace: Schedule, clock: Clock) -> None:
    pace.look_again("a", 2)
    pace.look_again("b", 5)
    clock.now = 2
    assert await pace.next() == frozenset({"a"})
    clock.now = 5
    assert await pace.next() == frozenset({"b"})


async def test_a_full_resync_includes_due_workspaces_until_it_succeeds(pace: Schedule, clock: Clock) -> None:
    pace.look_again("a", 2)
    pace.look_again("b", 20)
    pace.hint("c")
    clock.now = 10
    assert await pace.next() is None
    assert pace.along == {"a", "b", "c"}
    pace.look_again("d", 1)
    pace.retry_everything()
    clock.now = 12
    assert await pace.next() is None
    assert pace.along == {"a", "b", "c", "d"}
    pace.took_along()
    clock.now = 22
    assert await pace.next() is None
    assert pace.along == frozenset()


async def test_a_hint_ends_the_wait_at_once(pace: Schedule) -> None:
    waiting = asyncio.create_task(pace.next())
    await asyncio.sleep(0)
    pace.hint("a", "b")
    assert await asyncio.wait_for(waiting, 1) == frozenset({"a", "b"})


async def test_a_hint_during_a_pass_causes_another_pass(pace: Schedule) -> None:
    pace.hint("a")
    assert await pace.next() == frozenset({"a"})
    pace.hint("a")
    pace.look_again("a", None)
    assert await pace.next() == frozenset({"a"})


async def test_a_hint_without_an_id_causes_a_full_resync(pace: Schedule) -> None:
    pace.hint()
    assert await pace.next() is None


async def test_a_failed_full_resync_is_repeated_soon(pace: Schedule, clock: Clock) -> None:
    pace.retry_everything()
    clock.now = 2
    assert await pace.next() is None
