"""A user at a terminal: a real pty with the real command in it."""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Mapping
from typing import Any

PATIENCE_S = 60
# Only processes with this controlling terminal get SIGWINCH.
OWN_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
ECHO = 3  # index of the local flags in the result of tcgetattr


class TerminalUser:
    """A user who runs a `torpor` command at a terminal."""

    def __init__(self, environment: Mapping[str, str], *words: str) -> None:
        self._words = (sys.executable, "-c", OWN_TERMINAL, sys.executable, "-m", "torpor", *words)
        self._environment = environment
        self.shown = b""

    async def __aenter__(self) -> "TerminalUser":
        self._ours, self.theirs = pty.openpty()
        self.resize(columns=97, rows=31)
        self.before = termios.tcgetattr(self.theirs)
        self._came = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        self.process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=self._environment,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self.theirs)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.shown += os.read(self._ours, 65536)
        self._came.set()

    async def until(self, wanted: bytes) -> None:
        """Wait until `wanted` is shown, and drop the output up to it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while wanted not in self.shown:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise AssertionError(f"{wanted!r} was not shown: {self.shown[-2000:]!r}") from None
        self.shown = self.shown.partition(wanted)[2]

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, *, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    @property
    def is_raw(self) -> bool:
        flags: Any = termios.tcgetattr(self.theirs)[ECHO]
        return not flags & (termios.ECHO | termios.ICANON | termios.ISIG)

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.before
