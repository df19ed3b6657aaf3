"""Run, stop and watch every long-lived loop.

Libraries lose cancellations: asyncpg raises InterfaceError or TimeoutError in place of CancelledError when it leaves a
transaction on a dead connection, and `asyncio.wait_for` before Python 3.12 can return a result instead. A loop that catches
such an error and continues never ends, and a caller that canceled it once waits forever. Three rules prevent that
(docs/decisions/0018-no-loop-stops-for-good.md): a loop checks `cancelling()` after every turn, a canceler cancels until the
task has ended, and a watchdog restarts a loop that does not turn.
"""

import asyncio
import contextlib
import itertools
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import structlog

from torpor import metrics
from torpor.domain.errors import Unavailable

log = structlog.get_logger()

Turn: TypeAlias = Callable[[], Awaitable[float | None]]
"""One turn. It returns the pause in seconds until the next one; None: the loop's interval."""

# A turn waits for the database for at most 10 s (a connection) and 60 s (a statement), or 60 s for a provider's answer.
TURN_S = 120.0
# The watchdog restarts a loop after this many checks in a row without a turn. It counts checks, not seconds: after the whole
# process was stopped for a while, only one check is late.
CHECKS = 3
SUPERVISING_S = 1.0
# How long a task may clean up after the first cancellation; a second one would interrupt the clean-up.
CANCEL_AGAIN_S = 5.0
STOP_WITHIN_S = 60.0
CANNOT_STOP = 70
"""Exit code of a process with a task that cannot be stopped."""


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError at the end of the block if the task was canceled in it, also if the block raised another error."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


def end_process(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """End the process at once: it has tasks that it cannot stop, and another process may begin the same work."""
    try:
        for task in tasks:
            log.critical("task_cannot_be_stopped", task=task.get_name(), waits_at=await_stack(task), exit_code=CANNOT_STOP)
    finally:
        os._exit(CANNOT_STOP)


def abandon_tasks(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Leave the tasks running: they serve one request and do no work of the control plane."""
    for task in tasks:
        log.error("task_left_behind", task=task.get_name(), waits_at=await_stack(task))


async def stop(
    *tasks: "asyncio.Task[Any]",
    again_s: float = CANCEL_AGAIN_S,
    within_s: float = STOP_WITHIN_S,
    past_deadline: Callable[[Sequence["asyncio.Task[Any]"]], None] | None = None,
) -> None:
    """Cancel the tasks repeatedly until all of them have ended. Their errors are ignored.

    After the deadline the process ends (`end_process`, or `past_deadline`). A cancellation of the caller is raised at the end.
    """
    cancelled: asyncio.CancelledError | None = None
    # Rounds, not a clock: a process that was stopped for a while loses only one round.
    rounds = max(1, round(within_s / again_s))
    running = {task for task in tasks if not task.done()}
    for number in itertools.count(1):
        for task in running:
            task.cancel()
        until = time.monotonic() + again_s
        while running and (left_s := until - time.monotonic()) > 0:
            try:
                _, running = await asyncio.wait(running, timeout=left_s)
            except asyncio.CancelledError as error:
                cancelled = error
                running = {task for task in running if not task.done()}
        if not running:
            break
        if number >= rounds:
            (past_deadline or end_process)(sorted(running, key=lambda task: task.get_name()))
            break
        log.warning("cancelled_again", tasks=sorted(task.get_name() for task in running), times=number + 1)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # read, so that asyncio does not report it
    if cancelled is not None:
        raise cancelled


def await_stack(task: "asyncio.Task[Any]") -> list[str]:
    """Return where a task waits, the outermost call first; `Task.get_stack` shows only the first frame."""
    frames: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame: FrameType | None = next(
            (found for name in ("cr_frame", "gi_frame", "ag_frame") if (found := getattr(waiting, name, None))), None
        )
        if frame is not None:
            [line] = traceback.extract_stack(frame, limit=1)
            frames.append(f"{line.filename}:{line.lineno} {line.name}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return frames


# ── side by side ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def run_until_first_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until the first one ends, stop the others, and raise the error of the first one."""
    tasks = start_tasks(*work)
    try:
        await first_to_end(tasks)
    finally:
        await stop(*tasks)


def start_tasks(*work: Coroutine[Any, Any, None]) -> "list[asyncio.Task[None]]":
    return [asyncio.create_task(one, name=getattr(one, "__qualname__", None)) for one in work]


async def first_to_end(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Wait for the first task to end, and raise its error. The caller stops the others."""
    done: set[asyncio.Task[None]] = set()
    while not done:
        done, _ = await asyncio.wait(tasks, timeout=SUPERVISING_S, return_when=asyncio.FIRST_COMPLETED)
        report_progress()  # the turn of a loop that supervises others lasts as long as they do
    for task in done:
        task.result()


# ── turning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """The state of a loop, for health and metrics."""

    last_turn_age_s: float
    is_stalled: bool
    """It missed its deadline and has not turned since."""
    restarts: int
    failures: int
    """How many turns failed in a row."""


class Loop:
    """Run one turn after the other, until canceled or until a turn raises one of `ends_on`. Any other error ends one turn
    only."""

    def __init__(
        self,
        name: str,
        turn: Turn,
        *,
        interval_s: float,
        turn_s: float = TURN_S,
        retry_s: float | None = None,
        first_after_s: float = 0.0,
        wake: asyncio.Event | None = None,
        ends_on: tuple[type[Exception], ...] = (),
    ) -> None:
        """`interval_s`: the longest pause between two turns; `wake` ends a pause early.

        `turn_s`: how long a turn may take without a call of `report_progress`. `retry_s`: the pause after a failed turn, which
        `wake` does not end; None: the same pause as after any other turn.
        """
        self.name = name
        self.restarts = 0
        self._turn = turn
        self._interval_s = interval_s
        self._patience_s = 3 * interval_s + turn_s
        self._retry_s = retry_s
        self._first_after_s = first_after_s
        self._wake = wake or asyncio.Event()
        self._ends_on = ends_on
        self._turned_at = time.monotonic()
        self._turns = 0
        self._failures = 0
        self._is_stalled = False

    @property
    def standing(self) -> LoopStatus:
        return LoopStatus(time.monotonic() - self._turned_at, self._is_stalled, self.restarts, self._failures)

    def turned(self) -> None:
        self._turned_at = time.monotonic()
        self._turns += 1
        self._is_stalled = False

    async def run(self) -> None:
        with _known(self):
            while True:
                task = asyncio.create_task(self._run_turns(), name=self.name)
                try:
                    await self._watch(task)
                finally:
                    await stop(task)
                if not task.cancelled():
                    return task.result()
                self.restarts += 1
                metrics.loop_restarts_total.labels(self.name).inc()

    async def _watch(self, task: "asyncio.Task[None]") -> None:
        """Return when the task has ended, or has not turned for too long."""
        missed = 0
        while not task.done() and missed < CHECKS:
            before = self._turns
            await asyncio.wait({task}, timeout=self._patience_s / CHECKS)
            missed = missed + 1 if self._turns == before else 0
        if not task.done():
            self._is_stalled = True
            log.error(
                "loop_stalled", loop=self.name, for_s=round(time.monotonic() - self._turned_at, 1), waits_at=await_stack(task)
            )

    async def _run_turns(self) -> None:
        _current.set(self)
        task = asyncio.current_task()
        assert task is not None
        if self._first_after_s:
            await asyncio.sleep(self._first_after_s)
        while not task.cancelling():
            self._wake.clear()
            has_failed, pause_s = False, None
            try:
                pause_s = await self._turn()
            except self._ends_on:
                raise
            except Unavailable as out:
                has_failed = True
                log.warning("turn_skipped", loop=self.name, why=out.message)
            except asyncio.CancelledError:
                if task.cancelling():
                    raise
                has_failed = True  # a task that the turn waited for was canceled, not this loop
                log.exception("turn_broke", loop=self.name)
            except Exception:
                has_failed = True
                log.exception("turn_broke", loop=self.name)
            if task.cancelling():
                break  # the error above, or the result, replaced a CancelledError
            self._ended(has_failed=has_failed)
            if has_failed and self._retry_s is not None:
                await asyncio.sleep(self._retry_s)
            else:
                await self._pause(self._interval_s if pause_s is None else pause_s)
        raise asyncio.CancelledError

    def _ended(self, *, has_failed: bool) -> None:
        self.turned()
        self._failures = self._failures + 1 if has_failed else 0
        if has_failed:
            metrics.loop_failed_turns_total.labels(self.name).inc()

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, pause_s)):
                await self._wake.wait()


_running: set[Loop] = set()
_current: ContextVar[Loop | None] = ContextVar("loop", default=None)


def report_progress() -> None:
    """Report to the watchdog that the turn of the current loop makes progress. A long turn calls this between its steps."""
    loop = _current.get()
    if loop is not None:
        loop.turned()


def loop_statuses() -> Mapping[str, LoopStatus]:
    """Return the state of each loop of this process by name; of loops with the same name, the one with the oldest turn."""
    oldest_last = sorted(_running, key=lambda loop: loop.standing.last_turn_age_s)
    return {loop.name: loop.standing for loop in oldest_last}


@contextlib.contextmanager
def _known(loop: Loop) -> Iterator[None]:
    _running.add(loop)
    metrics.loop_last_turn_age_seconds.labels(loop.name).set_function(lambda: loop.standing.last_turn_age_s)
    try:
        yield
    finally:
        _running.discard(loop)
        # Another loop with this name may still run.
        if loop.name not in loop_statuses():
            with contextlib.suppress(KeyError):
                metrics.loop_last_turn_age_seconds.remove(loop.name)
