"""Start the worker processes of this machine, and start them again when they end too early."""

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torpor.sort.data.segments import Inputs
from torpor.sort.data.thread_pool import default_threads
from torpor.sort.job.options import ForkRequest, LocalOptions, WorkerOptions
from torpor.sort.worker.exit_codes import WorkerExitCode
from torpor.sort.worker.fork_server import ForkServer, ForkServerExit, WorkerExit

RESTARTS = 3
"""How often a worker is restarted, and how often the fork server is."""
LEAVE_S = 5.0
"""How long the workers may take to end by themselves after the job has ended."""


class WorkerPool:
    def __init__(
        self, fork_server: ForkServer, options: LocalOptions, slices: Sequence[Inputs], output: Path, state: Path, join: Path
    ) -> None:
        self.is_over = threading.Event()
        self._fork_server = fork_server
        self._options, self._slices, self._output, self._state, self._join = options, slices, output, state, join
        self._address = ""
        self._break_off: Callable[[str], None] = lambda reason: None
        self._restarts = dict.fromkeys(range(options.workers), 0)
        self._fork_server_restarts = 0
        self._changed = threading.Condition()
        self._alive: set[int] = set()

    def open(self, address: str, break_off: Callable[[str], None]) -> None:
        self._address, self._break_off = address, break_off
        for index in self._restarts:
            self._start(index)
        threading.Thread(target=self._watch, name="worker-pool", daemon=True).start()

    def close(self, *, at_once: bool = False) -> None:
        """Workers end by themselves when the job has ended. Those that do not are ended with the fork server."""
        self.is_over.set()
        with self._changed:
            self._changed.wait_for(lambda: at_once or not self._alive, LEAVE_S)
        self._fork_server.close()

    def _watch(self) -> None:
        while True:
            match self._fork_server.ended():
                case WorkerExit() as ended:
                    self._discard(ended.index)
                    if not self.is_over.is_set():
                        self._handle_exit(ended)
                case ForkServerExit(code):
                    if self.is_over.is_set() or not self._restart_fork_server(code):
                        break
        self._discard(*self._restarts)

    def _discard(self, *indices: int) -> None:
        with self._changed:
            self._alive.difference_update(indices)
            self._changed.notify_all()

    def _restart_fork_server(self, code: int) -> bool:
        """Restart the fork server and the workers that ended with it. This does not use up the restarts of the workers."""
        if self._fork_server_restarts == RESTARTS:
            self._break_off(
                f"the fork server, which starts the workers, was started again {RESTARTS} times and ended each time; "
                f"the last time it {_describe(code)}"
            )
            return False
        self._fork_server_restarts += 1
        try:
            is_open = self._fork_server.restart()
        except OSError as error:
            self._break_off(
                f"the fork server, which starts the workers, {_describe(code)} and cannot be started again: {error}"
            )
            return False
        if is_open:
            for index in sorted(self._alive):
                self._start(index)
        return is_open

    def _handle_exit(self, ended: WorkerExit) -> None:
        if ended.code == WorkerExitCode.COMPLETED:
            return
        index, why = ended.index, _describe(ended.code) + _last_line(self._log(ended.index))
        if ended.code in (WorkerExitCode.REFUSED, WorkerExitCode.JOB_FAILED):
            self._break_off(f"worker {index} {why}")
        elif self._restarts[index] == RESTARTS:
            self._break_off(f"worker {index} was started again {RESTARTS} times and ended each time; the last time it {why}")
        else:
            self._restarts[index] += 1
            self._start(index)

    def _start(self, index: int) -> None:
        options = self._options
        worker = WorkerOptions(
            master=self._address,
            join=self._join,
            inputs=options.inputs,
            output=self._output,
            scratch=self._state / f"worker.{index}",
            memory=options.memory // options.workers,
            index=index,
            threads=options.threads or max(1, default_threads() // options.workers),
            resume=options.resume,
            slice=self._slices[index],
            share_output=True,
            deadlines=options.deadlines,
        )
        with self._changed:
            self._alive.add(index)
        self._fork_server.start(ForkRequest(index, worker, self._log(index)))

    def _log(self, index: int) -> Path:
        return self._state / f"worker.{index}.log"


def _describe(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("torpor: ")]
    except FileNotFoundError:
        return ""
    return f": {lines[-1].removeprefix('torpor: ')}" if lines else ""
