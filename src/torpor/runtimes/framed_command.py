"""Talk to a command or shell through a socket. `torpor.inside.agent` describes the frames."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence

from torpor.domain.errors import Code, Failed, Refused, TorporError
from torpor.inside.agent import WINDOW, read_frame
from torpor.inside.control_frames import ERRORS, EXIT, INPUT, OUTPUT, REQUEST, SIGNAL, SIZE, TAKEN, frame
from torpor.ports import Output, Stream, TerminalSize

CHUNK = WINDOW // 4
MOST_UNREAD = 1 << 18
"""How much unread output is kept. Above that, the other end and the program that writes must wait."""
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
        """Raise Refused `not_running` if it ended with its container, or was closed."""
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
        """Raise Refused `not_running` if it ended with its container, or was closed."""
        return await self._frames.exit_code()

    async def close(self) -> None:
        await self._frames.close()


class _Frames:
    """The connection of a command or shell: flow control, and the exit code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Mapping[str, object]) -> None:
        self._reader = reader
        self._writer = writer
        self._unread: deque[Output] = deque()
        self._unread_bytes = 0
        self._untaken = 0
        self._has_output, self._has_space, self._input_taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Retrieve the exception, since a caller may never ask for the exit code.
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        writer.write(frame(REQUEST, json.dumps(request).encode()))
        self._listening = asyncio.create_task(self._listen())

    async def read(self) -> Output | None:
        while not self._unread and not self._ended.done():
            self._has_output.clear()
            await self._has_output.wait()
        if not self._unread:
            return None
        output = self._unread.popleft()
        self._unread_bytes -= len(output.data)
        self._has_space.set()
        return output

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            while self._untaken + len(part) > WINDOW and not self._ended.done():
                self._input_taken.clear()
                await self._input_taken.wait()
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
        # Before the first await, since the caller may be cancelled there: closing the connection ends the command.
        self._finish(Refused("not_running", "the connection to the command was closed"))
        await asyncio.gather(self._listening, return_exceptions=True)

    async def send(self, framed: bytes) -> None:
        if not self._ended.done():
            with contextlib.suppress(OSError):  # `_listen` gets the same error
                self._writer.write(framed)
                await self._writer.drain()

    async def _listen(self) -> None:
        failure: TorporError = Refused("not_running", "the command ended because the workspace's container ended")
        try:
            while not self._ended.done():
                await self._receive(*await read_frame(self._reader))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except ValueError as error:  # it runs inside the workspace, whose processes may have replaced the agent
            failure = Failed(Code.INTERNAL, f"the workspace's agent sent an invalid frame: {error}")
        self._finish(failure)

    def _finish(self, failure: TorporError) -> None:
        """Close the connection. `failure` is raised instead of an exit code, unless one was received."""
        self._writer.close()
        if not self._ended.done():
            self._ended.set_exception(failure)
        for waiting in (self._has_output, self._input_taken):
            waiting.set()

    async def _receive(self, kind: bytes, payload: bytes) -> None:
        if kind in STREAMS:
            self._unread.append(Output(STREAMS[kind], payload))
            self._unread_bytes += len(payload)
            self._has_output.set()
            while self._unread_bytes > MOST_UNREAD:
                self._has_space.clear()
                await self._has_space.wait()
        elif kind == TAKEN:
            self._untaken = max(0, self._untaken - int(payload))
            self._input_taken.set()
        elif kind == EXIT:
            self._ended.set_result(int(payload))
