"""Who starts the worker processes of this machine, and starts them again when they die?"""

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torpor.sort.cradle import Cradle, Ended
from torpor.sort.ending import Ending
from torpor.sort.options import LocalOptions, WorkerOptions
from torpor.sort.segments import Inputs
from torpor.sort.spreading import default_threads

RESTARTS = 3
"""How often each of them is."""
LEAVE_S = 5.0
"""How long the workers may take to end by themselves once the job is over."""


class Nursery:
    def __init__(
        self, cradle: Cradle, options: LocalOptions, slices: Sequence[Inputs], output: Path, state: Path, join: Path
    ) -> None:
        self.is_over = threading.Event()
        self._cradle = cradle
        self._options, self._slices, self._output, self._state, self._join = options, slices, output, state, join
        self._address = ""
        self._break_off: Callable[[str], None] = lambda reason: None
        self._restarts = dict.fromkeys(range(options.workers), 0)
        self._changed = threading.Condition()
        self._alive: set[int] = set()

    def open(self, address: str, break_off: Callable[[str], None]) -> None:
        self._address, self._break_off = address, break_off
        for index in self._restarts:
            self._start(index)
        threading.Thread(target=self._mind, name="nursery", daemon=True).start()

    def close(self, *, at_once: bool = False) -> None:
        """They end by themselves when the job is over; who does not, ends with the cradle."""
        self.is_over.set()
        with self._changed:
            self._changed.wait_for(lambda: at_once or not self._alive, LEAVE_S)
        self._cradle.close()

    def _mind(self) -> None:
        while (ended := self._cradle.ended()) is not None:
            with self._changed:
                self._alive.discard(ended.index)
                self._changed.notify_all()
            if not self.is_over.is_set():
                self._take_leave(ended)
        with self._changed:
            self._alive.clear()
            self._changed.notify_all()
        if not self.is_over.is_set():
            self._break_off("the process that the workers come from was ended, and they with it")

    def _take_leave(self, ended: Ended) -> None:
        if ended.code == Ending.COMPLETED:
            return
        index, why = ended.index, _words(ended.code) + _last_line(self._log(ended.index))
        if ended.code in (Ending.REFUSED, Ending.JOB_FAILED):
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


def _words(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("torpor: ")]
    except FileNotFoundError:
        return ""
    return f": {lines[-1].removeprefix('torpor: ')}" if lines else ""
