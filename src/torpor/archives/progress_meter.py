"""Count what an archive operation has done, in bytes and files, and report it now and then."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

PROGRESS_EVERY_S = 0.2


class HomeCount(NamedTuple):
    """The size of a home: the bytes of its files, and the number of files and hard links."""

    size: int
    files: int


class Meter(Protocol):
    def __call__(self, count: int) -> None:
        """So many more bytes. An archive operation counts each byte twice: read, and proven."""
        ...

    def count_files(self, count: int = 1) -> None: ...

    def expect(self, home: HomeCount) -> None: ...


class ProgressMeter:
    """Report progress at most every PROGRESS_EVERY_S seconds. `passes`: how often each byte of the home is counted."""

    def __init__(self, home: HomeCount | None, say: Callable[[Mapping[str, object]], None], *, passes: int) -> None:
        self._home = home
        self._say = say
        self._passes = passes
        self._done = 0
        self._files = 0
        self._next_s = 0.0

    def expect(self, home: HomeCount) -> None:
        self._home = home

    def __call__(self, count: int) -> None:
        self._done += count
        self._report()

    def count_files(self, count: int = 1) -> None:
        self._files += count
        self._report()

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + PROGRESS_EVERY_S
        done = HomeCount(self._done // self._passes, self._files)
        # The size before an archive is an estimate, and a retry counts again: progress never exceeds the total.
        totals = (None, None) if self._home is None else map(max, self._home, done)
        size, files = ([one, total] for one, total in zip(done, totals, strict=True))
        self._say({"progress": size, "files": files})
