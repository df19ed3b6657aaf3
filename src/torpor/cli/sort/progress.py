"""Show the progress of a sort on standard error.

At a terminal one bar for each worker; anywhere else one plain line for each change of state.
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
        """Print a line that is not redrawn."""


@contextlib.contextmanager
def progress_view(tell: Callable[[str], None] = say) -> Iterator[ProgressView]:
    """A view that is called with each new status; `tell` prints the lines that stay."""
    if not sys.stderr.isatty():
        yield ProgressLines(tell)
        return
    from rich.live import Live

    # Standard output must not be redirected to the terminal that draws the bars.
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
    """A function that starts to poll the status several times a second, until the block ends."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def begin(ask: "Callable[[], JobStatus]") -> None:
        def each() -> None:
            while not over.wait(POLL_S):
                follow(ask())
            follow(ask())  # the last changes may follow each other faster than the polls

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
        self._rate = SortRate()

    def __call__(self, status: "JobStatus") -> None:
        from torpor.cli.sort.render import bars

        self._live.update(bars(status, self._rate(status)))

    def tell(self, line: str) -> None:
        # Other output would be mixed with the bars.
        self._live.stop()
        self._tell(escaped(line))
        self._live.start()


class ProgressLines:
    """One line for each change: first of the job's state, then of its workers'."""

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
    """The speed of each worker in bytes per second, since it was first seen sorting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, RateSample] = {}

    def __call__(self, status: "JobStatus") -> dict[str, float]:
        """The speeds by identity, of the workers that sort now: the amount of work in other phases is not known."""
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
    """How many bytes of its input a worker has sorted; None in other states."""
    from torpor.sort.machine.states import PROGRESS, WorkerState

    if worker.state != WorkerState.SORTING:
        return None
    begins, share = PROGRESS[WorkerState.SORTING]
    return worker.size * min(1.0, max(0.0, (worker.progress - begins) / (share * 100)))


def name_of(worker: "WorkerStatus") -> str:
    """The number of a worker; its identity until all workers have registered."""
    return worker.identity if worker.index is None else f"worker {worker.index}"


def state_words(worker: "WorkerStatus") -> str:
    return worker.state if worker.attempt <= 1 else f"{worker.state} (attempt {worker.attempt})"


@contextlib.contextmanager
def progress_counter(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar for bytes, called with each increment. Without a terminal, no bar is drawn."""
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
