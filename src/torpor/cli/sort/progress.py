"""What does somebody who waits for a sort get to see?

At a terminal one bar for each worker; anywhere else one plain line for each change of state. Always on standard error.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torpor.cli.output.console import console, say
from torpor.cli.output.wording import escaped

if TYPE_CHECKING:
    from rich.live import Live

    from torpor.sort.job.status import JobStatus, WorkerStatus

REFRESH_PER_SECOND = 10
POLL_S = 0.1


class ProgressView(Protocol):
    def __call__(self, status: "JobStatus") -> None: ...

    def tell(self, line: str) -> None:
        """A line that stays."""


@contextlib.contextmanager
def progress_view(tell: Callable[[str], None] = say) -> Iterator[ProgressView]:
    """Takes how it stands, as often as anybody knows; `tell` is how lines are told that stay."""
    if not sys.stderr.isatty():
        yield ProgressLines(tell)
        return
    from rich.live import Live

    # What the command says on standard output must stay there, also where only standard error is a terminal.
    with Live(
        console=console(stderr=True),
        refresh_per_second=REFRESH_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        yield ProgressBars(live, tell)


@contextlib.contextmanager
def status_poller(follow: ProgressView) -> "Iterator[Callable[[Callable[[], JobStatus]], None]]":
    """Takes whom to ask, and asks several times a second until it is over."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def begin(ask: "Callable[[], JobStatus]") -> None:
        def each() -> None:
            while not over.wait(POLL_S):
                follow(ask())
            follow(ask())  # the last changes come in quick succession

        threads.append(threading.Thread(target=each, name="progress", daemon=True))
        threads[-1].start()

    try:
        yield begin
    finally:
        over.set()
        for thread in threads:
            thread.join()


class ProgressBars:
    def __init__(self, live: "Live", tell: Callable[[str], None]) -> None:
        self._live = live
        self._tell = tell
        self._pace = SortRate()

    def __call__(self, status: "JobStatus") -> None:
        from torpor.cli.sort.render import bars

        self._live.update(bars(status, self._pace(status)))

    def tell(self, line: str) -> None:
        # Whatever else is written while bars are drawn would stand in the midst of them.
        self._live.stop()
        self._tell(escaped(line))
        self._live.start()


class ProgressLines:
    """One line for each change: of the job's state, then of its workers'."""

    def __init__(self, tell: Callable[[str], None] = say, *, change: Callable[[str], None] = say) -> None:
        self._tell = tell
        self._change = change
        self._last: dict[str, str] = {}

    def __call__(self, status: "JobStatus") -> None:
        self._changed("master", status.state)
        for worker in status.workers:
            self._changed(name_of(worker), state_words(worker))

    def tell(self, line: str) -> None:
        self._tell(escaped(line))

    def _changed(self, name: str, words: str) -> None:
        if self._last.get(name) != words:
            self._last[name] = words
            self._change(escaped(f"{name}: {words}"))


class RateSample(NamedTuple):
    state: str
    attempt: int
    at: float
    done: float


class SortRate:
    """How fast does each worker sort, in bytes a second, since it was first seen at it?"""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, RateSample] = {}

    def __call__(self, status: "JobStatus") -> dict[str, float]:
        """By identity, of those that read their input just now: of the other phases nobody knows how much there is to do."""
        now = self._clock()
        speeds = {}
        for worker in status.workers:
            done = sorted_bytes(worker)
            if done is None:
                continue
            mark = self._since.get(worker.identity)
            if mark is None or (mark.state, mark.attempt) != (worker.state, worker.attempt):
                self._since[worker.identity] = RateSample(worker.state, worker.attempt, now, done)
            elif now > mark.at and done > mark.done:
                speeds[worker.identity] = (done - mark.done) / (now - mark.at)
        return speeds


def sorted_bytes(worker: "WorkerStatus") -> float | None:
    """How much of its input a worker has sorted; None when that is not what it does."""
    from torpor.sort.machine.states import PROGRESS, WorkerState

    if worker.state != WorkerState.SORTING:
        return None
    begins, share = PROGRESS[WorkerState.SORTING]
    return worker.size * min(1.0, max(0.0, (worker.progress - begins) / (share * 100)))


def name_of(worker: "WorkerStatus") -> str:
    """Until all are there, nobody has a number."""
    return worker.identity if worker.index is None else f"worker {worker.index}"


def state_words(worker: "WorkerStatus") -> str:
    return worker.state if worker.attempt <= 1 else f"{worker.state} (attempt {worker.attempt})"


@contextlib.contextmanager
def progress_counter(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar for bytes; takes how many more have been done. Nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda more: progress.advance(task, more)
