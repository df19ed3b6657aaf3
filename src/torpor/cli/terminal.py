"""Hand the terminal of this process over to a program elsewhere, and restore it afterwards."""

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

DEFAULT_SIZE = (80, 24)
MOST = 2000  # columns or rows of a terminal in a workspace


class TerminationSignal(BaseException):
    """A signal ends this process. Not an Exception, so that no `except Exception` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def size() -> tuple[int, int]:
    """Columns and rows of the first standard stream that is a terminal."""
    for descriptor in (1, 0, 2):
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(descriptor)
            if columns and rows:
                return min(columns, MOST), min(rows, MOST)
    return DEFAULT_SIZE


def standard_input() -> int:
    """The descriptor of standard input; -1 if it is closed."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return -1


def read_some(descriptor: int, most: int) -> bytes:
    """The next input; empty at its end, and if the terminal is closed."""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""


class RawMode:
    """Read every key unchanged, also Ctrl-C, and restore the terminal afterwards. Has no effect without a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if self._descriptor >= 0 and os.isatty(self._descriptor):
            self._before = termios.tcgetattr(self._descriptor)
            self.again()
        return self

    def again(self) -> None:
        """After SIGCONT: the shell that stopped this process has changed the mode of the terminal."""
        if self._before is not None:
            tty.setraw(self._descriptor, termios.TCSADRAIN)

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None) -> None:
        if self._before is not None:
            # The terminal may be closed by now.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)


@contextlib.contextmanager
def signals(bell: int, *more: int) -> Iterator["set[int]"]:
    """The signals that came (SIGWINCH, SIGCONT and `more`), each also written to `bell`.

    SIGTERM and SIGHUP raise TerminationSignal.
    """
    came: set[int] = set()

    def ring(number: int, _frame: FrameType | None) -> None:
        came.add(number)
        with contextlib.suppress(OSError):
            os.write(bell, b"!")

    def end(number: int, _frame: FrameType | None) -> None:
        raise TerminationSignal(number)

    wanted = {signal.SIGTERM: end, signal.SIGHUP: end, **dict.fromkeys((signal.SIGWINCH, signal.SIGCONT, *more), ring)}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    # Without this, a signal that another thread gets would not wake the `select` of this thread.
    os.set_blocking(bell, False)
    rung_before = signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    try:
        yield came
    finally:
        signal.set_wakeup_fd(rung_before)
        for number, handler in before.items():
            signal.signal(number, handler)
