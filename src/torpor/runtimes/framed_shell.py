"""How is a terminal held whose shell is at the other end of a socket? The frames are described in `torpor.inside.agent`."""

import asyncio
import contextlib
import json

from torpor.domain.errors import Code, Failed, Refused, TorporError
from torpor.inside.agent import EXIT, INPUT, OUTPUT, REQUEST, SIZE, TAKEN, WINDOW, frame, read_frame

CHUNK = WINDOW // 4
MOST_UNREAD = 1 << 18
"""How far the other end may run ahead of who looks; then it waits, and so does the program that writes."""


class FramedShell:
    """One connection, one shell; implements `torpor.ports.Shell`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, columns: int, rows: int) -> None:
        self._reader = reader
        self._writer = writer
        self._unread = bytearray()
        self._untaken = 0
        self._shown, self._looked, self._taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Nobody need ask how it ended.
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        request = {"do": "shell", "columns": columns, "rows": rows}
        writer.write(frame(REQUEST, json.dumps(request).encode()))
        self._listening = asyncio.create_task(self._listen())

    async def read(self) -> bytes:
        while not self._unread and not self._ended.done():
            self._shown.clear()
            await self._shown.wait()
        shown = bytes(self._unread)
        self._unread.clear()
        self._looked.set()
        return shown

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            while self._untaken + len(part) > WINDOW and not self._ended.done():
                self._taken.clear()
                await self._taken.wait()
            if self._ended.done():
                return
            self._untaken += len(part)
            await self._send(frame(INPUT, part))

    async def resize(self, *, columns: int, rows: int) -> None:
        await self._send(frame(SIZE, f"{columns} {rows}".encode()))

    async def exit_code(self) -> int:
        """Refused `not_running` when it ended with its container, or was hung up."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._over(Refused("not_running", "the terminal was hung up"))

    async def _send(self, framed: bytes) -> None:
        if not self._ended.done():
            with contextlib.suppress(OSError):  # the listener hears of it, too
                self._writer.write(framed)
                await self._writer.drain()

    async def _listen(self) -> None:
        failure: TorporError = Refused("not_running", "the shell ended with its workspace's container")
        try:
            while not self._ended.done():
                await self._hear(*await read_frame(self._reader))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except ValueError as error:  # whoever answers there runs inside, and may have become something else than our agent
            failure = Failed(Code.INTERNAL, f"the workspace's agent made no sense: {error}")
        self._over(failure)

    def _over(self, failure: TorporError) -> None:
        """Why there is no exit code, if none was told."""
        self._writer.close()
        if not self._ended.done():
            self._ended.set_exception(failure)
        for waiting in (self._shown, self._taken):
            waiting.set()

    async def _hear(self, kind: bytes, payload: bytes) -> None:
        if kind == OUTPUT:
            self._unread += payload
            self._shown.set()
            while len(self._unread) > MOST_UNREAD:
                self._looked.clear()
                await self._looked.wait()
        elif kind == TAKEN:
            self._untaken = max(0, self._untaken - int(payload))
            self._taken.set()
        elif kind == EXIT:
            self._ended.set_result(int(payload))
