"""A socket before that of an engine or an archive store: it counts requests, and can cut the client off or hold it at any.

A client that is cut off is like a controller that was killed: none of its further requests reaches the engine. One that is
held is like a controller that was paused: its next request reaches the engine late.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tests.support.relay import close_listener
from torpor.loops import stop

REQUEST = re.compile(rb"(GET|POST|PUT|DELETE|HEAD) /")
CHUNK = 1 << 16
CLOSE_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EngineRelay:
    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self.url = ""
        self.requests: list[str] = []
        """The first line of each."""
        self._connect = connect
        self.held: list[str] = []
        """The first line of each request that was held."""
        self._last: int | None = None
        self._answers_last = False
        self._most_body: int | None = None
        self._holds: Callable[[str], bool] | None = None
        self._released = asyncio.Event()
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._is_closing = False

    def cut_off_after(self, requests: int, *, answers_last: bool, most_body: int | None = None) -> None:
        """The engine gets this many further requests. The client gets the answer to the last one, or not.

        With `most_body` the engine gets only so many bytes of the last one's body, and the client is gone.
        """
        self._last = len(self.requests) + requests
        self._answers_last = answers_last
        self._most_body = most_body

    def hold(self, chosen: Callable[[str], bool]) -> None:
        """Hold requests whose first line is chosen, until `release`."""
        self._holds = chosen
        self._released.clear()

    def release(self) -> None:
        self._holds = None
        self._released.set()

    @property
    def _is_cut_off(self) -> bool:
        return self._last is not None and len(self.requests) >= self._last

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._is_closing:  # the kernel had accepted it before
            writer.close()
            return
        self._open[task] = [writer]
        try:
            engine_reader, engine_writer = await self._connect()
            self._open[task].append(engine_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    up = group.create_task(self._upwards(reader, engine_writer))
                    group.create_task(self._downwards(engine_reader, writer, up))
            finally:
                await _flush(engine_writer)
        except* OSError:
            pass
        finally:
            await _flush(writer)
            del self._open[task]

    async def _upwards(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter) -> None:
        body_sent = 0
        while data := await reader.read(CHUNK):
            if REQUEST.match(data):
                if self._is_cut_off:
                    raise ConnectionResetError("the client is cut off")
                line = data.partition(b"\r\n")[0].decode()
                if self._holds is not None and self._holds(line):
                    self.held.append(line)
                    await self._released.wait()
                self.requests.append(line)
                body_sent = len(data.partition(b"\r\n\r\n")[2])
            else:
                body_sent += len(data)
            engine.write(data)
            await engine.drain()
            if self._is_cut_off and self._most_body is not None and body_sent >= self._most_body:
                raise ConnectionResetError("the client is cut off within its request")
        if engine.can_write_eof():
            engine.write_eof()

    async def _downwards(self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter, up: "asyncio.Task[None]") -> None:
        while data := await engine.read(CHUNK):
            if self._is_cut_off and not self._answers_last:
                break
            writer.write(data)
            await writer.drain()
        await stop(up)

    async def close(self) -> None:
        """Not by a cancellation, which asyncio's servers report as an error. The rest of the data is lost."""
        self._is_closing = True
        self.release()
        for writers in self._open.values():
            for writer in writers:
                writer.transport.abort()
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_S)


async def _flush(writer: asyncio.StreamWriter) -> None:
    """Close it after the other end has everything; a container that was removed reads no more, and `close` ends the wait."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def engine_relay(url: str) -> AsyncIterator[EngineRelay]:
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="torpor-test-") as folder:
        socket = Path(folder) / "relay.sock"
        relay = EngineRelay(lambda: asyncio.open_unix_connection(url.removeprefix("unix://")))
        relay.url = f"unix://{socket}"
        async with serving(await asyncio.start_unix_server(relay.serve, str(socket)), relay):
            yield relay


@contextlib.asynccontextmanager
async def store_relay(url: str) -> AsyncIterator[EngineRelay]:
    """The same before an archive store at http://HOST:PORT, on another port of this host."""
    host, _, port = url.removeprefix("http://").partition(":")
    relay = EngineRelay(lambda: asyncio.open_connection(host, int(port)))
    server = await asyncio.start_server(relay.serve, host, 0)
    relay.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
    async with serving(server, relay):
        yield relay


@contextlib.asynccontextmanager
async def serving(server: asyncio.Server, relay: EngineRelay) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await close_listener(server)
        await relay.close()
