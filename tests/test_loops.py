"""Every loop ends when it is canceled, is restarted when it hangs, and reports that."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from tests.support.waiting import until
from torpor import loops, metrics
from torpor.domain.errors import Deposed, Unavailable
from torpor.loops import Loop, keep_cancellation, loop_statuses, report_progress, run_until_first_ends, stop

pytestmark = pytest.mark.anyio

QUICK_S = 0.02


async def forever() -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running(loop: Loop) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(loop.run())
    try:
        yield task
    finally:
        await stop(task, again_s=0.1, within_s=10)
    assert loop.name not in loop_statuses()


class Replaced:
    """A turn whose cancellation is replaced by another exception, as asyncpg does on a dead connection."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.begun = 0

    async def __call__(self) -> None:
        self.begun += 1
        try:
            await forever()
        except asyncio.CancelledError:
            raise self.error from None


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [Unavailable("the connection is closed"), TimeoutError(), ValueError("a fault of ours")])
async def test_a_loop_ends_even_if_another_exception_replaces_its_cancellation(error: Exception) -> None:
    turn = Replaced(error)
    task = asyncio.create_task(Loop("replaced", turn, interval_s=QUICK_S).run())
    await until(lambda: turn.begun)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=2)
    assert done
    assert task.cancelled()
    assert turn.begun == 1, "no turn begins after the cancellation"


async def test_a_turn_whose_own_task_was_cancelled_is_a_failed_turn() -> None:
    async def turn() -> None:
        inner = asyncio.ensure_future(forever())
        inner.cancel()
        await inner

    loop = Loop("cancelled inside", turn, interval_s=QUICK_S)
    async with running(loop):
        await until(lambda: loop.standing.failures > 2)
        assert loop.standing.restarts == 0


async def test_failed_turns_are_counted_until_one_succeeds() -> None:
    errors = [Unavailable("out"), ValueError("a fault of ours")]

    async def turn() -> None:
        if errors:
            raise errors.pop()

    loop = Loop("failing", turn, interval_s=QUICK_S)
    async with running(loop):
        await until(lambda: metrics.REGISTRY.get_sample_value("torpor_loop_failed_turns_total", {"loop": "failing"}) == 2)
        await until(lambda: loop.standing.failures == 0)


async def test_a_loop_ends_even_if_a_turn_swallows_its_cancellation() -> None:
    async def turn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await forever()

    task = asyncio.create_task(Loop("swallowed", turn, interval_s=QUICK_S).run())
    await until(lambda: "swallowed" in loop_statuses())
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=2)
    assert done
    assert task.cancelled()


async def test_an_exception_that_replaces_a_cancellation_becomes_a_cancellation_again() -> None:
    async def work() -> None:
        with keep_cancellation():
            await Replaced(ConnectionError("the connection is closed"))()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ConnectionError), keep_cancellation():
        raise ConnectionError("nothing was cancelled")
    # A timeout around the block also cancels the task, and stays a timeout.
    with pytest.raises(TimeoutError):
        await asyncio.create_task(in_time(work()))


async def in_time(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(QUICK_S):
        await work


async def test_a_task_that_swallows_several_cancellations_is_cancelled_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 4:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await stop(task, again_s=QUICK_S, within_s=10)
    assert task.cancelled()
    assert swallowed == 4


async def test_a_cancelled_stop_still_stops_the_task() -> None:
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await forever()
        finally:
            with contextlib.suppress(TimeoutError):
                await in_time(forever())
            ended.set()

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(stop(task))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert ended.is_set()


async def test_after_the_deadline_of_a_stop_the_exit_hook_gets_the_task() -> None:
    let_go = asyncio.Event()

    async def deaf() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    left: list[asyncio.Task[Any]] = []
    task = asyncio.create_task(deaf(), name="deaf")
    await asyncio.sleep(0)
    await stop(task, again_s=QUICK_S, within_s=3 * QUICK_S, past_deadline=left.extend)
    assert left == [task]
    stack = loops.await_stack(task)
    assert any("deaf" in line for line in stack)
    assert any(line.endswith(" wait") for line in stack), "the stack shows the innermost wait"
    let_go.set()
    await task


def test_a_process_with_a_task_that_cannot_be_stopped_ends_and_names_the_task() -> None:
    program = """
import asyncio
from torpor.loops import stop

async def deaf():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def main():
    task = asyncio.create_task(deaf(), name="the deaf task")
    await asyncio.sleep(0)
    await stop(task, again_s=0.05, within_s=0.2)
    print("still here")

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == loops.CANNOT_STOP, ended.stderr
    said = ended.stdout + ended.stderr
    assert "the deaf task" in said
    assert "task_cannot_be_stopped" in said
    assert "deaf" in said.split("waits_at=")[1]
    assert "still here" not in said


async def test_the_first_to_end_ends_the_others_even_if_they_lose_their_cancellation() -> None:
    turn = Replaced(Unavailable("the connection is closed"))

    async def fails() -> None:
        await until(lambda: turn.begun)
        raise Deposed("another process leads")

    with pytest.raises(Deposed):
        async with asyncio.timeout(5):
            await run_until_first_ends(fails(), Loop("replaced", turn, interval_s=QUICK_S).run())
    assert "replaced" not in loop_statuses()


# ── turning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_error_ends_one_turn_and_an_ending_error_ends_the_loop() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        match turns:
            case 1:
                raise Unavailable("the database cannot be reached")
            case 2:
                raise ValueError("a fault of ours")
            case 4:
                raise Deposed("another process leads")

    with pytest.raises(Deposed):
        async with asyncio.timeout(5):
            await Loop("failing", turn, interval_s=QUICK_S, ends_on=(Deposed,)).run()
    assert turns == 4


async def test_a_pause_ends_when_the_loop_is_woken_but_not_the_one_after_a_failure() -> None:
    wake = asyncio.Event()
    began: list[float] = []

    async def turn() -> None:
        began.append(time.monotonic())
        if len(began) == 2:
            wake.set()
            raise Unavailable("the bus cannot be reached")

    async with running(Loop("paced", turn, interval_s=30, retry_s=0.3, wake=wake)):
        await until(lambda: len(began) == 1)
        wake.set()
        await until(lambda: len(began) == 3)
    assert began[1] - began[0] < 5
    assert began[2] - began[1] >= 0.3


async def test_the_pause_is_the_one_that_the_turn_asks_for() -> None:
    began = 0

    async def turn() -> float:
        nonlocal began
        began += 1
        return 0.0

    async with running(Loop("own pace", turn, interval_s=60)):
        await until(lambda: began >= 5)


# ── the watchdog ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_watchdog_restarts_a_loop_that_hangs_and_names_it_until_it_runs_again() -> None:
    turns, let_go = 0, asyncio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 2:
            with contextlib.suppress(asyncio.CancelledError):
                await forever()
            await let_go.wait()

    loop = Loop("hanging", turn, interval_s=QUICK_S, turn_s=3 * QUICK_S)
    async with running(loop):
        await until(lambda: loop.standing.is_stalled)
        assert loop_statuses()["hanging"].is_stalled
        let_go.set()
        await until(lambda: turns > 3)
        assert not loop.standing.is_stalled
        assert loop.standing.restarts == 1
        sample = metrics.REGISTRY.get_sample_value
        assert sample("torpor_loop_restarts_total", {"loop": "hanging"}) == 1
        age_s = sample("torpor_loop_last_turn_age_seconds", {"loop": "hanging"})
        assert age_s is not None
        assert age_s < 5
    assert sample("torpor_loop_last_turn_age_seconds", {"loop": "hanging"}) is None


async def test_a_long_turn_that_makes_progress_is_not_restarted() -> None:
    ended = asyncio.Event()

    async def turn() -> None:
        for _ in range(20):
            await asyncio.sleep(QUICK_S)
            report_progress()
        ended.set()

    loop = Loop("long", turn, interval_s=QUICK_S, turn_s=QUICK_S)
    async with running(loop):
        await until(ended.is_set)
        assert loop.standing.restarts == 0


async def test_a_loop_that_only_supervises_others_is_not_restarted() -> None:
    async def child() -> None: ...

    async def turn() -> None:
        await run_until_first_ends(Loop("child", child, interval_s=QUICK_S).run())

    loop = Loop("parent", turn, interval_s=0.5, turn_s=1.5)
    async with running(loop):
        await asyncio.sleep(4)
        assert loop.standing.restarts == 0
        assert not loop_statuses()["child"].is_stalled


async def test_a_watchdog_that_wakes_late_once_blames_no_loop() -> None:
    """The whole process was stopped for a while (SIGSTOP, a suspended machine): its clock continued, its loops did not."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    loop = Loop("suspended", turn, interval_s=0.05, turn_s=0.15)
    async with running(loop):
        await until(lambda: turns > 2)
        time.sleep(2)  # noqa: ASYNC251 -- the event loop stands still, as in a stopped process
        before = turns
        await until(lambda: turns > before + 5)
        assert loop.standing.restarts == 0
