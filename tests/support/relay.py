"""A TCP relay in front of a server, whose connections a test cuts and freezes one by one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from enum import Enum
from pathlib import Path

PIECE_BYTES = 64 * 1024

Server = Path | tuple[str, int]
"""A Unix socket, or a host and a port."""


class Direction(Enum):
    """The two directions of a connection."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Link:
    """One connection through the relay."""

    def __init__(self, to: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._to = to
        self._reader = reader
        self._writer = writer
        self._server: asyncio.StreamWriter | None = None
        self._flows = {way: asyncio.Event() for way in Direction}
        self.thaw()

    @property
    def is_frozen(self) -> bool:
        return not all(flow.is_set() for flow in self._flows.values())

    def freeze(self, *ways: Direction) -> None:
        """Deliver no bytes and no end of the connection in these directions; by default in both."""
        for way in ways or Direction:
            self._flows[way].clear()

    def thaw(self) -> None:
        """Deliver the waiting bytes, and continue."""
        for flow in self._flows.values():
            flow.set()

    def cut(self) -> None:
        """Reset the connection at both ends."""
        for end in (self._writer, self._server):
            if end is not None:
                end.transport.abort()
        self.thaw()

    async def run(self) -> None:
        """Runs until one end closes and the other end can know it."""
        await self._flows[Direction.TO_SERVER].wait()
        try:
            reader, self._server = await _connect(self._to)
        except OSError:
            # The server does not run, but the client's connection was already accepted.
            self.cut()
            return
        pumps = [
            asyncio.create_task(self._pump(self._reader, self._server, Direction.TO_SERVER)),
            asyncio.create_task(self._pump(reader, self._writer, Direction.TO_CLIENT)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (self._writer, self._server):
                end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE_BYTES):
                await self._flows[way].wait()
                sink.write(data)
                await sink.drain()
        # A frozen direction also hides the end: the other side keeps a half-open connection.
        await self._flows[way].wait()


async def _connect(to: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(to, Path):
        return await asyncio.open_unix_connection(str(to))
    return await asyncio.open_connection(*to)


async def close_listener(server: asyncio.Server) -> None:
    """In Python 3.11, `Server.close` alone loses a connection that is accepted in the same turn of the loop."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await asyncio.sleep(0)
    server.close()


class Relay:
    """All connections of one client process to one server."""

    def __init__(self, to: Server) -> None:
        self.port = 0
        self.links: dict[Link, None] = {}
        self._to = to
        self._is_frozen = False

    def freeze(self) -> None:
        """Simulate a network that loses all packets: connections stay open, new ones are accepted, and no data arrives."""
        self._is_frozen = True
        for link in self.links:
            link.freeze()

    def thaw(self) -> None:
        self._is_frozen = False
        for link in self.links:
            link.thaw()

    def cut(self) -> None:
        """Reset every connection; a frozen network does not deliver that either."""
        for link in list(self.links):
            if not link.is_frozen:
                link.cut()

    def reset(self) -> None:
        """The network is back, and the other end has forgotten every connection."""
        self._is_frozen = False
        for link in list(self.links):
            link.cut()

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1") -> AsyncIterator[None]:
        tasks: dict[asyncio.Task[None], Link] = {}
        is_closing = False

        def ended(task: asyncio.Task[None]) -> None:
            del self.links[tasks.pop(task)]

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = Link(self._to, reader, writer)
            if is_closing:  # the kernel had accepted it before
                link.cut()
                return
            if self._is_frozen:
                link.freeze()
            # Before the task begins: one that is cancelled by then would not close the connection.
            self.links[link] = None
            task = asyncio.create_task(link.run())
            tasks[task] = link
            task.add_done_callback(ended)

        server = await asyncio.start_server(accepted, host, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            is_closing = True
            await close_listener(server)
            self.reset()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
