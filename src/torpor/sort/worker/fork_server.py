"""The fork server: a process that has imported everything, and forks the workers of this machine.

Importing takes longer than a small sort. So the server imports while the command that started it does the same. It forks a
worker for each line of JSON on its standard input, and reports the end of each worker as a line on its standard output. It ends
when its input ends, and its workers end with it.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from torpor.fast_imports import fast_imports
from torpor.sort.documents import decode, encode
from torpor.sort.errors import PeerUnavailable, SortError
from torpor.sort.worker.exit_codes import WorkerExitCode, WorkerResult

if TYPE_CHECKING:
    from torpor.sort.job.options import ForkRequest

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class WorkerExit:
    index: int
    code: int
    """As in `subprocess`: negative for a signal."""


@dataclass(frozen=True, slots=True)
class ForkServerExit:
    """The server itself has ended, and its workers with it."""

    code: int
    """As in `subprocess`: negative for a signal."""


_ahead: list[subprocess.Popen[bytes]] = []


@contextmanager
def start_early() -> Iterator[None]:
    """Start a server before it is known whether one is needed. The caller that takes it ends it; otherwise it ends here."""
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
        [sys.executable, "-c", "from torpor.sort.worker.fork_server import fork_server_main; fork_server_main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


class ForkServer:
    """The command's side of the fork server."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._is_closed = False
        self._process = _ahead.pop() if _ahead else _begin()

    def start(self, request: "ForkRequest") -> None:
        line = encode(request)
        requests = _piped(self._process.stdin)
        # `ended` reports a server that no longer reads, so this is not reported here. ValueError: `close` has closed the pipe.
        with suppress(BrokenPipeError, ValueError):
            requests.write(line + b"\n")
            requests.flush()

    def ended(self) -> WorkerExit | ForkServerExit:
        """Waits until a worker or the server itself ends."""
        try:
            line = _piped(self._process.stdout).readline()
        except ValueError:
            line = b""  # `close` has closed the pipe meanwhile.
        # A server that is killed while it writes leaves half a line.
        return decode(WorkerExit, line) if line.endswith(b"\n") else ForkServerExit(_end(self._process))

    def restart(self) -> bool:
        """Starts another server after the last one has ended; False once this is closed. The caller starts the workers."""
        with self._changing:
            if not self._is_closed:
                _end(self._process)
                self._process = _begin()
            return not self._is_closed

    def close(self) -> None:
        """Ends the server, and with it every worker that still runs."""
        with self._changing:
            self._is_closed = True
            _end(self._process)

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _piped(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe
    return pipe


def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit code; a process that has ended before keeps its own."""
    process.kill()
    code = process.wait()
    with suppress(BrokenPipeError):
        _piped(process.stdin).close()
    _piped(process.stdout).close()
    return code


def fork_server_main() -> None:
    """Run the server process. It has one thread, because only such a process can be forked safely."""
    with fast_imports():
        from torpor.sort.job.options import ForkRequest
        from torpor.sort.worker.program import run_worker

    # The end of a worker comes as a signal, and `select` returns for a signal only if the signal also writes to a file
    # descriptor.
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
                request = decode(ForkRequest, line)
                index_of[_fork(request.log, partial(run_worker, request.options))] = request.index


def _fork(log: Path, work: Callable[[], WorkerResult]) -> int:
    server_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ending = WorkerExitCode.FAILED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_with(server_pid)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        left = work()
        ending = left.ending
        if ending:
            print(f"torpor: {left.reason}", file=sys.stderr)
    except SortError as error:
        ending = WorkerExitCode.FAILED if isinstance(error, PeerUnavailable) else WorkerExitCode.REFUSED
        print(f"torpor: {error.message}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # This process must not go on as a second fork server.
        sys.stderr.flush()
        os._exit(ending)


def _end_with(parent: int) -> None:
    """End with the parent. If the command is killed, the fork server ends with it, and the workers end with the fork server."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _tell_ended(index_of: dict[int, int]) -> None:
    while index_of:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        ended = WorkerExit(index_of.pop(pid), os.waitstatus_to_exitcode(status))
        print(encode(ended).decode(), flush=True)
