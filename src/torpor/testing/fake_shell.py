"""A shell of the fake runtime, without a process.

It has a prompt, echoes its input like a terminal, and accepts these lines:

    echo WORDS      writes the words
    stty size       writes its rows and columns
    yes             writes y endlessly, as fast as it is read, until Ctrl-C
    exit [CODE]     ends; so does Ctrl-D

Any other command is not found. It ends with its container.
"""

import asyncio
from collections.abc import Callable

from torpor.testing.fake_process import FakeProcess

PROMPT = b"$ "
FLOOD = b"y\r\n" * 1000
CTRL_C, CTRL_D = 3, 4


class FakeShell(FakeProcess):
    """Implements `torpor.ports.Shell`."""

    kind = "shell"

    def __init__(self, is_running: Callable[[], bool], *, columns: int, rows: int) -> None:
        super().__init__(is_running)
        self._columns, self._rows = columns, rows
        self._line = bytearray()
        self._shown = bytearray(PROMPT)
        self._is_flooding = False

    async def read(self) -> bytes:
        while not self._shown and not self._is_over:
            if self._is_flooding:
                await asyncio.sleep(0)
                return FLOOD
            await self._change()
        shown = bytes(self._shown)
        self._shown.clear()
        return shown

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        for byte in data:
            if not self._is_over:
                self._type(byte)
        self._changed.set()

    async def resize(self, *, columns: int, rows: int) -> None:
        await asyncio.sleep(0)
        self._columns, self._rows = columns, rows

    def _type(self, byte: int) -> None:
        if byte == CTRL_C:
            self._line.clear()
            self._is_flooding = False
            self._shown += b"^C\r\n" + PROMPT
        elif byte == CTRL_D:
            if not self._line:
                self._exit_code = 0
        elif byte in b"\r\n":
            self._shown += b"\r\n"
            self._run(self._line.decode(errors="replace").split())
            self._line.clear()
        else:
            self._line.append(byte)
            self._shown.append(byte)

    def _run(self, words: list[str]) -> None:
        match words:
            case ["exit", *code]:
                self._exit_code = int(code[0]) if code and code[0].isdigit() else 0
                return
            case ["yes"]:
                self._is_flooding = True
                return
            case ["stty", "size"]:
                self._show(f"{self._rows} {self._columns}")
            case ["echo", *said]:
                self._show(" ".join(said))
            case [word, *_]:
                self._show(f"{word}: not found")
            case _:
                pass
        self._shown += PROMPT

    def _show(self, line: str) -> None:
        self._shown += line.encode() + b"\r\n"
