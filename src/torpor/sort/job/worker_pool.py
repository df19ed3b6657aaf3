"""Start the worker processes of this machine, and start them again when they end too early."""

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torpor.sort.data.segments import Inputs
from torpor.sort.data.thread_pool import default_threads
from torpor.sort.job.options import LocalOptions, WorkerOptions
from torpor.sort.worker.exit_codes import WorkerExitCode
from torpor.sort.worker.fork_server import ForkServer, ForkServerExit, WorkerExit

RESTARTS = 3
"""How often a worker is started again, and how often the fork server is."""
LEAVE_S = 5.0
"""How long the workers may take to end by themselves once the job is over."""


class WorkerPool:
    def __init__(
        self, cradle: ForkServer, options: LocalOptions, slices: Sequence[Inputs], output: Path, state: Path, join: Path
    ) -> None:
        self.is_over = threading.Event()
        self._cradle = cradle
        self._options, self._slices, self._output, self._state, self._join = options, slices, output, state, join
        self._address = ""
        self._break_off: Callable[[str], None] = lambda reason: None
        self._restarts = dict.fromkeys(range(options.workers), 0)
        self._cradle_restarts = 0
        self._changed = threading.Condition()
        self._alive: set[int] = set()

    def open(self, address: str, break_off: Callable[[str], None]) -> None:
        self._address, self._break_off = address, break_off
        for index in self._restarts:
            self._start(index)
        threading.Thread(target=self._mind, name="nursery", daemon=True).start()

    def close(self, *, at_once: bool = False) -> None:
        """Workers end by themselves when the job is over; those that do not end with the fork server."""
        self.is_over.set()
        with self._changed:
            self._changed.wait_for(lambda: at_once or not self._alive, LEAVE_S)
        self._cradle.close()

    def _mind(self) -> None:
        while True:
            match self._cradle.ended():
                case WorkerExit() as ended:
                    self._discard(ended.index)
                    if not self.is_over.is_set():
                        self._take_leave(ended)
                case ForkServerExit(code):
                    if self.is_over.is_set() or not self._restart_cradle(code):
                        break
        self._discard(*self._restarts)

    def _discard(self, *indices: int) -> None:
        with self._changed:
            self._alive.difference_update(indices)
            self._changed.notify_all()

    def _restart_cradle(self, code: int) -> bool:
        """Starts the fork server again, and the workers that ended with it. Their own restarts are not used up by that."""
        if self._cradle_restarts == RESTARTS:
            self._break_off(
                f"the fork server, which starts the workers, was started again {RESTARTS} times and ended each time; "
                f"the last time it {_describe(code)}"
            )
            return False
        self._cradle_restarts += 1
        try:
            is_open = self._cradle.restart()
        except OSError as error:
            self._break_off(
                f"the fork server, which starts the workers, {_describe(code)} and cannot be started again: {error}"
            )
            return False
        if is_open:
            for index in sorted(self._alive):
                self._start(index)
        return is_open

    def _take_leave(self, ended: WorkerExit) -> None:
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
        self._cradle.start(index, worker, self._log(index))

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
