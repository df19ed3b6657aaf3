"""A command of the fake runtime, without a process. It ends with its container, and is one of these:

    echo WORDS      writes the words to standard output
    warn WORDS      writes them to standard error
    cat             copies its input to standard output
    yes             writes y endlessly, as fast as it is read
    sleep           waits
    exit CODE       ends with this code

With a terminal it first writes its size, rows before columns, and again after each change. Any other command is not found.
A signal ends it.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence

from torpor.ports import Output, Stream, TerminalSize
from torpor.testing.fake_process import FakeProcess

FLOOD = b"y\n" * 1000
MOST_UNREAD = 1 << 16
NOT_FOUND = 127


class FakeCommand(FakeProcess):
    """Implements `torpor.ports.RunningCommand`."""

    kind = "command"

    def __init__(self, is_running: Callable[[], bool], command: Sequence[str], *, terminal: TerminalSize | None) -> None:
        super().__init__(is_running)
        self._has_terminal = terminal is not None
        self._is_flooding = self._is_copying = False
        self._unread: list[Output] = []
        if terminal is not None:
            self._show_size(terminal.columns, terminal.rows)
        match command:
            case ["echo", *words]:
                self._end(0, Stream.STDOUT, " ".join(words))
            case ["warn", *words]:
                self._end(0, Stream.STDERR, " ".join(words))
            case ["exit", code]:
                self._exit_code = int(code)
            case ["cat"]:
                self._is_copying = True
            case ["yes"]:
                self._is_flooding = True
            case ["sleep", *_]:
                pass
            case [program, *_]:
                self._end(NOT_FOUND, Stream.STDERR, f"{program}: not found")
            case _:
                self._exit_code = NOT_FOUND

    async def read(self) -> Output | None:
        while not self._unread and not self._is_over:
            if self._is_flooding:
                await asyncio.sleep(0)
                return Output(Stream.STDOUT, FLOOD)
            await self._change()
        if not self._unread:
            return None
        self._changed.set()
        return self._unread.pop(0)

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        while not self._is_over and (not self._is_copying or sum(len(one.data) for one in self._unread) > MOST_UNREAD):
            await self._change()
        if not self._is_over:
            self._unread.append(Output(Stream.STDOUT, data))
        self._changed.set()

    async def end_input(self) -> None:
        await asyncio.sleep(0)
        if self._is_copying and not self._has_terminal:
            self._exit_code = 0
        self._changed.set()

    async def send_signal(self, name: str) -> None:
        await asyncio.sleep(0)
        if self._exit_code is None and name not in ("WINCH", "CONT"):
            self._exit_code = 128 + signal.Signals[f"SIG{name}"]
        self._changed.set()

    async def resize(self, *, columns: int, rows: int) -> None:
        await asyncio.sleep(0)
        if self._has_terminal:
            self._show_size(columns, rows)

    def _end(self, code: int, stream: Stream, line: str) -> None:
        self._show(stream, line)
        self._exit_code = code

    def _show_size(self, columns: int, rows: int) -> None:
        self._show(Stream.STDOUT, f"{rows} {columns}")

    def _show(self, stream: Stream, line: str) -> None:
        self._unread.append(Output(Stream.STDOUT if self._has_terminal else stream, line.encode() + b"\n"))
        self._changed.set()
