"""What would a shell be that is nothing but words?

It has a prompt, shows what is typed as a terminal does, and knows these lines:

    echo WORDS      shows the words
    stty size       shows its rows and columns
    yes             shows y without end, as fast as somebody looks, until Ctrl-C
    exit [CODE]     ends; so does Ctrl-D

Any other is not found. It ends with its container, as any shell does.
"""

import asyncio
import contextlib
from collections.abc import Callable

from torpor.domain.errors import Refused

PROMPT = b"$ "
FLOOD = b"y\r\n" * 1000
CTRL_C, CTRL_D = 3, 4
LOOK_S = 0.02
"""A container that is nothing but words ends without telling anybody."""


class FakeShell:
    """Implements `torpor.ports.Shell`."""

    def __init__(self, is_running: Callable[[], bool], *, columns: int, rows: int) -> None:
        self._is_running = is_running
        self._columns, self._rows = columns, rows
        self._line = bytearray()
        self._shown = bytearray(PROMPT)
        self._is_flooding = False
        self._is_hung_up = False
        self._exit_code: int | None = None
        self._changed = asyncio.Event()

    @property
    def _is_over(self) -> bool:
        return self._exit_code is not None or self._is_hung_up or not self._is_running()

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

    async def exit_code(self) -> int:
        while not self._is_over:
            await self._change()
        if self._exit_code is None:
            raise Refused("not_running", "the shell ended with its workspace's container, or was hung up")
        return self._exit_code

    async def close(self) -> None:
        self._is_hung_up = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()

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
