"""Where do the workers of this machine begin, with everything already imported?

Importing takes longer than many a sort. So one process imports, while the command that started it does the same, and forks a
worker whenever it is told to, by a line of JSON on its standard input. By a line on its standard output it tells how each
ended. When its input ends it ends, and its workers with it.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torpor.importing import importing
from torpor.sort.codec import from_plain, to_plain
from torpor.sort.ending import Ending, Left
from torpor.sort.errors import SortError, Unavailable

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    index: int
    code: int
    """As of `subprocess`: negative for a signal."""


_ahead: list[subprocess.Popen[bytes]] = []


@contextmanager
def ahead() -> Iterator[None]:
    """Begins before anybody knows if it is wanted. Whoever takes it ends it; else it ends here."""
    _ahead.append(_begin())
    try:
        yield
    finally:
        for process in _ahead:
            process.kill()
            with process:
                pass
        _ahead.clear()


def _begin() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "from torpor.sort.cradle import rock; rock()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


class Cradle:
    """The side of the command."""

    def __init__(self) -> None:
        self._process = _ahead.pop() if _ahead else _begin()
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout

    def start(self, index: int, options: Any, log: Path) -> None:
        line = json.dumps({"index": index, "options": to_plain(options), "log": str(log)})
        # If nobody reads any more, that is told where its end is.
        with suppress(BrokenPipeError):
            self._input.write(line.encode() + b"\n")
            self._input.flush()

    def ended(self) -> Ended | None:
        """Waits for the next one; None when the cradle is no more."""
        line = self._output.readline()
        return from_plain(Ended, json.loads(line)) if line else None

    def close(self) -> None:
        """Ends every worker that is still there."""
        # They end with it, as whatever ends it ends them.
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()

    def __enter__(self) -> "Cradle":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def rock() -> None:
    """The process itself: it has one thread, for only such a one can be forked safely."""
    with importing():
        from torpor.sort.options import WorkerOptions
        from torpor.sort.worker import work

    def begin(told: Any) -> int:
        options = from_plain(WorkerOptions, told["options"])
        return _fork(Path(told["log"]), lambda: work(options))

    # A worker's end comes as a signal, and a signal wakes whoever waits for a line only if it writes one itself.
    awake, waker = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    index_of: dict[int, int] = {}
    unread = b""
    while True:
        ready, _, _ = select.select([sys.stdin.fileno(), awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _tell_ended(index_of)
        if sys.stdin.fileno() in ready:
            read = os.read(sys.stdin.fileno(), 1 << 16)
            if not read:
                return
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                told = json.loads(line)
                index_of[begin(told)] = told["index"]


def _fork(log: Path, work: Callable[[], Left]) -> int:
    cradle = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ending = Ending.FAILED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_with(cradle)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        left = work()
        ending = left.ending
        if ending:
            print(f"torpor: {left.reason}", file=sys.stderr)
    except SortError as error:
        ending = Ending.FAILED if isinstance(error, Unavailable) else Ending.REFUSED
        print(f"torpor: {error.message}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # Whatever happens, this process must not go on as a second cradle.
        sys.stderr.flush()
        os._exit(ending)


def _end_with(parent: int) -> None:
    """Nobody is left behind when the command is killed: with it ends the cradle, and with the cradle its workers."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _tell_ended(index_of: dict[int, int]) -> None:
    while index_of:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        ended = Ended(index_of.pop(pid), os.waitstatus_to_exitcode(status))
        print(json.dumps(to_plain(ended)), flush=True)
