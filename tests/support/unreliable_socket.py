"""A connection to a server that a test can cut or slow down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 64 * 1024


@dataclass
class UnreliableSocket:
    url: str
    delay_s: float = 0.0
    """The delay of every piece of data, in both directions."""
    is_cut: bool = False

    def cut(self) -> None:
        """Neither side is notified. Data that is sent now is lost, and its connection stays broken after `mend`."""
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(PIECE_BYTES):
            await asyncio.sleep(self.delay_s)
            if self.is_cut:
                await asyncio.Event().wait()
            sink.write(data)
            await sink.drain()


@contextlib.asynccontextmanager
async def unreliable_socket(to: Path, at: Path) -> AsyncIterator[UnreliableSocket]:
    """Forward from the Unix socket `at` to the Unix socket `to`."""
    made = UnreliableSocket(f"unix://{at}")
    lines: set[asyncio.Task[None]] = set()

    async def line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(to))
        both = [asyncio.create_task(made.pump(reader, back)), asyncio.create_task(made.pump(there, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, back):
                end.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(line(reader, writer))
        lines.add(task)
        task.add_done_callback(lines.discard)

    server = await asyncio.start_unix_server(accepted, str(at))
    try:
        yield made
    finally:
        server.close()
        for task in list(lines):
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
