"""Owners get their slots, and no slot is lost when an effect is canceled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.support.waiting import until
from torpor.archives.archives import MOST_COPIES
from torpor.control.slots import POOL_OF, SLOTS_PER_PARALLEL, SlotPool, Slots, capacity
from torpor.domain.effects import Effect
from torpor.loops import stop

pytestmark = pytest.mark.anyio


class Work:
    """Effects of owners; each keeps its slot until the test ends it."""

    def __init__(self, capacity: int) -> None:
        self.slots = Slots(capacity)
        self.running: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> None:
        """The owner is the part before the dash."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._work(name))
        await self.settled()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]
        await self.settled()

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.slots.of(name.partition("-")[0]):
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)


@asynccontextmanager
async def work_on(capacity: int) -> AsyncIterator[Work]:
    work = Work(capacity)
    try:
        yield work
    finally:
        await stop(*work.tasks.values())


async def test_one_owner_does_not_get_all_slots() -> None:
    async with work_on(4) as work:
        await work.begin("ada-1", "ada-2", "ada-3", "ada-4", "ben-1")
        assert work.running == ["ada-1", "ada-2", "ben-1"]
        await work.end("ben-1")
        assert work.running == ["ada-1", "ada-2"]
        await work.end("ada-1")
        assert work.running == ["ada-2", "ada-3"]


async def test_a_slot_that_becomes_free_goes_to_the_owner_with_the_fewest() -> None:
    async with work_on(4) as work:
        await work.begin("ada-1", "ben-1", "ben-2", "eve-1", "ada-2", "zoe-1")
        await work.end("eve-1")
        assert work.running == ["ada-1", "ben-1", "ben-2", "zoe-1"], "ada-2 came first, but zoe has none"


async def test_owners_take_turns_at_a_single_slot() -> None:
    async with work_on(1) as work:
        await work.begin("ada-1", "ada-2", "ada-3", "ben-1")
        order = []
        for _ in range(4):
            order += work.running
            await work.end(work.running[0])
        assert order == ["ada-1", "ben-1", "ada-2", "ada-3"]


async def test_a_task_cancelled_while_waiting_takes_no_slot() -> None:
    async with work_on(1) as work:
        await work.begin("ada-1", "ben-1", "eve-1")
        work.tasks["ben-1"].cancel()
        await work.settled()
        await work.end("ada-1")
        assert work.running == ["eve-1"]
        await work.end("eve-1")
        await work.begin("ada-2")
        assert work.running == ["ada-2"]


async def test_a_task_cancelled_when_it_gets_a_slot_releases_it() -> None:
    for cancels_first in (True, False):
        async with work_on(1) as work:
            await work.begin("ada-1", "ben-1", "eve-1")
            # Both in one turn of the loop, in either order.
            work.ends["ada-1"].set()
            if cancels_first:
                work.tasks["ben-1"].cancel()
            with suppress(asyncio.CancelledError):
                await work.tasks["ada-1"]
            if not cancels_first:
                work.tasks["ben-1"].cancel()
            await until(lambda work=work: work.running == ["eve-1"])  # type: ignore[misc]
            await work.end("eve-1")
            await work.begin("ada-2")
            assert work.running == ["ada-2"]


async def test_a_task_cancelled_while_running_releases_its_slot() -> None:
    async with work_on(1) as work:
        await work.begin("ada-1", "ben-1")
        work.tasks["ada-1"].cancel()
        await until(lambda: work.running == ["ben-1"])


def test_every_effect_has_a_lane_and_every_lane_has_slots() -> None:
    assert set(POOL_OF) == set(Effect.__args__)
    assert set(SLOTS_PER_PARALLEL) | {SlotPool.COPIES} == set(POOL_OF.values()) == set(SlotPool)
    assert all(capacity(pool, parallel) >= 1 for pool in SlotPool for parallel in (1, 1000))


def test_no_copy_with_a_slot_waits_for_a_thread() -> None:
    """The wait for a slot does not count against the deadline; the wait for a thread would."""
    assert all(capacity(SlotPool.COPIES, parallel) < MOST_COPIES for parallel in (1, 8, 1000))
