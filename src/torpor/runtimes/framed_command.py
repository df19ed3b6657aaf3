"""Commands and shells at the other end of a socket. The frames are described in `torpor.inside.agent`."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence

from torpor.domain.errors import Code, Failed, Refused, TorporError
from torpor.inside.agent import ERRORS, EXIT, INPUT, OUTPUT, REQUEST, SIGNAL, SIZE, TAKEN, WINDOW, frame, read_frame
from torpor.ports import Output, Stream, TerminalSize

CHUNK = WINDOW // 4
MOST_UNREAD = 1 << 18
"""How far the other end may run ahead of the reader; then it waits, and so does the program that writes."""
STREAMS = {OUTPUT: Stream.STDOUT, ERRORS: Stream.STDERR}


class FramedCommand:
    """One connection, one command; implements `torpor.ports.RunningCommand`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        command: Sequence[str],
        *,
        terminal: TerminalSize | None = None,
    ) -> None:
        asked = {} if terminal is None else {"terminal": [terminal.columns, terminal.rows]}
        self._frames = _Frames(reader, writer, {"do": "execute", "argv": list(command), **asked})

    async def read(self) -> Output | None:
        return await self._frames.read()

    async def write(self, data: bytes) -> None:
        await self._frames.write(data)

    async def end_input(self) -> None:
        await self._frames.send(frame(INPUT))

    async def send_signal(self, name: str) -> None:
        await self._frames.send(frame(SIGNAL, name.encode()))

    async def resize(self, *, columns: int, rows: int) -> None:
        await self._frames.resize(columns, rows)

    async def exit_code(self) -> int:
        """Refused `not_running` when it ended with its container, or was closed."""
        return await self._frames.exit_code()

    async def close(self) -> None:
        await self._frames.close()


class FramedShell:
    """One connection, one shell; implements `torpor.ports.Shell`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, columns: int, rows: int) -> None:
        self._frames = _Frames(reader, writer, {"do": "shell", "terminal": [columns, rows]})

    async def read(self) -> bytes:
        output = await self._frames.read()
        return output.data if output is not None else b""

    async def write(self, data: bytes) -> None:
        await self._frames.write(data)

    async def resize(self, *, columns: int, rows: int) -> None:
        await self._frames.resize(columns, rows)

    async def exit_code(self) -> int:
        """Refused `not_running` when it ended with its container, or was hung up."""
        return await self._frames.exit_code()

    async def close(self) -> None:
        await self._frames.close()


class _Frames:
    """What both have in common: windows, and the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Mapping[str, object]) -> None:
        self._reader = reader
        self._writer = writer
        self._unread: deque[Output] = deque()
        self._unread_bytes = 0
        self._untaken = 0
        self._shown, self._looked, self._taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # How it ended may never be asked.
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        writer.write(frame(REQUEST, json.dumps(request).encode()))
        self._listening = asyncio.create_task(self._listen())

    async def read(self) -> Output | None:
        while not self._unread and not self._ended.done():
            self._shown.clear()
            await self._shown.wait()
        if not self._unread:
            return None
        output = self._unread.popleft()
        self._unread_bytes -= len(output.data)
        self._looked.set()
        return output

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            while self._untaken + len(part) > WINDOW and not self._ended.done():
                self._taken.clear()
                await self._taken.wait()
            if self._ended.done():
                return
            self._untaken += len(part)
            await self.send(frame(INPUT, part))

    async def resize(self, columns: int, rows: int) -> None:
        await self.send(frame(SIZE, f"{columns} {rows}".encode()))

    async def exit_code(self) -> int:
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        self._listening.cancel()
        # Before anything is waited for: the caller may be cancelled meanwhile, and hanging up is what ends the command.
        self._over(Refused("not_running", "the connection to the command was closed"))
        await asyncio.gather(self._listening, return_exceptions=True)

    async def send(self, framed: bytes) -> None:
        if not self._ended.done():
            with contextlib.suppress(OSError):  # the listener hears of it, too
                self._writer.write(framed)
                await self._writer.drain()

    async def _listen(self) -> None:
        failure: TorporError = Refused("not_running", "the command ended with its workspace's container")
        try:
            while not self._ended.done():
                await self._hear(*await read_frame(self._reader))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except ValueError as error:  # what answers there runs inside, and may have become something else than our agent
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
        if kind in STREAMS:
            self._unread.append(Output(STREAMS[kind], payload))
            self._unread_bytes += len(payload)
            self._shown.set()
            while self._unread_bytes > MOST_UNREAD:
                self._looked.clear()
                await self._looked.wait()
        elif kind == TAKEN:
            self._untaken = max(0, self._untaken - int(payload))
            self._taken.set()
        elif kind == EXIT:
            self._ended.set_result(int(payload))
