"""Who starts the worker processes of this machine, and starts them again when they die?"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torpor.sort.ending import Ending
from torpor.sort.options import LocalOptions
from torpor.sort.sharing import default_threads

RESTARTS = 3
"""How often each of them is."""
LOOK_S = 0.05
LEAVE_S = 5.0
"""How long a worker may take to end by itself once the job is over."""


class Nursery:
    def __init__(self, options: LocalOptions, output: Path, state: Path, join: Path) -> None:
        self.is_over = threading.Event()
        self._options, self._output, self._state, self._join = options, output, state, join
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._restarts = dict.fromkeys(range(options.workers), 0)
        self._thread: threading.Thread | None = None
        self._leave_s = LEAVE_S

    def open(self, address: str, break_off: Callable[[str], None]) -> None:
        # Workers end with the thread that started them, so it stays until the end.
        self._thread = threading.Thread(target=self._mind, args=(address, break_off), name="nursery", daemon=True)
        self._thread.start()

    def close(self, *, at_once: bool = False) -> None:
        """They end by themselves when the job is over; who does not, is ended."""
        self._leave_s = 0.0 if at_once else LEAVE_S
        self.is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _mind(self, address: str, break_off: Callable[[str], None]) -> None:
        for index in self._restarts:
            self._start(index, address)
        while not self.is_over.wait(LOOK_S):
            for index, process in list(self._processes.items()):
                code = process.poll()
                if code is not None:
                    del self._processes[index]
                    self._ended(index, code, address, break_off)
        self._end_all()

    def _ended(self, index: int, code: int, address: str, break_off: Callable[[str], None]) -> None:
        if code == Ending.COMPLETED:
            return
        why = _words(code) + _last_line(self._log(index))
        if code in (Ending.REFUSED, Ending.JOB_FAILED):
            break_off(f"worker {index} {why}")
        elif self._restarts[index] == RESTARTS:
            break_off(f"worker {index} was started again {RESTARTS} times and ended each time; the last time it {why}")
        else:
            self._restarts[index] += 1
            self._start(index, address)

    def _start(self, index: int, address: str) -> None:
        options, deadlines = self._options, self._options.deadlines
        threads = options.threads or max(1, default_threads() // options.workers)
        command = [
            *(sys.executable, "-m", "torpor", "sort", "worker", address),
            *("--join", str(self._join)),
            *("--slice", str(self._state / f"slice.{index}.json")),
            *("--output", str(self._output), "--share-output"),
            *("--scratch", str(self._state / f"worker.{index}")),
            *("--memory", str(options.memory // options.workers)),
            *("--index", str(index)),
            *("--threads", str(threads)),
            *("--heartbeat", str(deadlines.heartbeat), "--heartbeat-lost", str(deadlines.heartbeat_lost)),
            *("--master-grace", str(deadlines.master_grace)),
            "--end-with-parent",
            *([] if options.resume else ["--no-resume"]),
        ]
        with self._log(index).open("ab") as log:
            self._processes[index] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    def _log(self, index: int) -> Path:
        return self._state / f"worker.{index}.log"

    def _end_all(self) -> None:
        end = time.monotonic() + self._leave_s
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _words(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("torpor: ")]
    return f": {lines[-1].removeprefix('torpor: ')}" if lines else ""
