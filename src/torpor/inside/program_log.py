"""Keep the last output of a workspace's program, and pass all of it on to the engine's log.

The output goes through the agent, so that clients can read it without access to the engine. If the engine reads slowly, the
program waits.
"""

import asyncio
import contextlib
import os
import select

CHUNK = 1 << 16
KEPT_BYTES = 1 << 16
MOST_UNWRITTEN = 1 << 18
FLUSH_S = 2.0
"""How long the agent waits for the engine at its end."""
ENGINE = 1
"""The agent's standard output."""


class ProgramLog:
    def __init__(self, output: int) -> None:
        """`output`: the end of a pipe to which the program writes its standard output and errors."""
        self._kept = bytearray()
        self._unwritten = bytearray()
        self._loop = asyncio.get_running_loop()
        self._ours = output
        self._is_reading = False
        for descriptor in (self._ours, ENGINE):
            os.set_blocking(descriptor, False)
        self._read_on()

    def append(self, lines: bytes) -> None:
        """Add lines of Torpor itself."""
        self._kept += lines
        del self._kept[:-KEPT_BYTES]
        self._unwritten += lines
        self._write()

    def tail(self, lines: int) -> bytes:
        kept = bytes(self._kept).splitlines(keepends=True)
        return b"".join(kept[-lines:]) if lines > 0 else b""

    def finish(self) -> None:
        """Read and write what is left. Blocks for a short time: the agent has no other work any more."""
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, CHUNK):
                self._kept += data
                self._unwritten += data
        del self._kept[:-KEPT_BYTES]
        while self._unwritten and select.select([], [ENGINE], [], FLUSH_S)[1]:
            try:
                del self._unwritten[: os.write(ENGINE, self._unwritten)]
            except BlockingIOError:
                continue
            except OSError:
                return

    def _read_on(self) -> None:
        wants_more = len(self._unwritten) < MOST_UNWRITTEN
        if wants_more and not self._is_reading:
            self._loop.add_reader(self._ours, self._read)
        elif self._is_reading and not wants_more:
            self._loop.remove_reader(self._ours)
        self._is_reading = wants_more

    def _read(self) -> None:
        try:
            data = os.read(self._ours, CHUNK)
        except BlockingIOError:
            return
        if not data:  # no process is left that could write
            self._loop.remove_reader(self._ours)
            return
        self.append(data)
        self._read_on()

    def _write(self) -> None:
        try:
            del self._unwritten[: os.write(ENGINE, self._unwritten)]
        except BlockingIOError:
            pass
        except OSError:
            self._unwritten.clear()  # the engine reads no log
        if self._unwritten:
            self._loop.add_writer(ENGINE, self._write)
        else:
            self._loop.remove_writer(ENGINE)
        if self._is_reading or not self._unwritten:
            self._read_on()
