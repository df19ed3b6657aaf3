"""A socket before an engine's socket that counts requests, and can cut the client off at any of them.

A client that is cut off is like a controller that was killed: none of its further requests reaches the engine.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from torpor.loops import stop

REQUEST = re.compile(rb"(GET|POST|PUT|DELETE|HEAD) /")
CHUNK = 1 << 16
CLOSE_S = 10.0


class EngineRelay:
    def __init__(self, engine: Path, socket: Path) -> None:
        self.url = f"unix://{socket}"
        self.requests: list[str] = []
        """The first line of each."""
        self._engine = engine
        self._last: int | None = None
        self._answers_last = False
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    def cut_off_after(self, requests: int, *, answers_last: bool) -> None:
        """The engine gets this many further requests. The client gets the answer to the last one, or not."""
        self._last = len(self.requests) + requests
        self._answers_last = answers_last

    @property
    def _is_cut_off(self) -> bool:
        return self._last is not None and len(self.requests) >= self._last

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = [writer]
        try:
            engine_reader, engine_writer = await asyncio.open_unix_connection(str(self._engine))
            self._open[task].append(engine_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    up = group.create_task(self._upwards(reader, engine_writer))
                    group.create_task(self._downwards(engine_reader, writer, up))
            finally:
                engine_writer.close()
        except* OSError:
            pass
        finally:
            writer.close()
            del self._open[task]

    async def _upwards(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if REQUEST.match(data):
                if self._is_cut_off:
                    raise ConnectionResetError("the client is cut off")
                self.requests.append(data.partition(b"\r\n")[0].decode())
            engine.write(data)
            await engine.drain()
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
        """Not by a cancellation, which asyncio's servers report as an error."""
        for writers in self._open.values():
            for writer in writers:
                writer.close()
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_S)


@contextlib.asynccontextmanager
async def engine_relay(url: str) -> AsyncIterator[EngineRelay]:
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="torpor-test-") as folder:
        socket = Path(folder) / "relay.sock"
        relay = EngineRelay(Path(url.removeprefix("unix://")), socket)
        server = await asyncio.start_unix_server(relay.serve, str(socket))
        try:
            yield relay
        finally:
            server.close()
            await relay.close()
