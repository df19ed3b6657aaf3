"""`torpor events` follows the real API, line by line."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.live_api import PATIENCE_S, live_api

pytestmark = pytest.mark.anyio


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.close()


class Door:
    """A port in front of the API's socket whose connections a test can close."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[asyncio.StreamWriter] = []

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = await asyncio.open_unix_connection(str(self._path))
        self._open += [writer, theirs[1]]
        await asyncio.gather(pass_on(reader, theirs[1]), pass_on(theirs[0], writer))

    def slam(self) -> None:
        while self._open:
            self._open.pop().transport.abort()


async def test_torpor_events_reconnects_and_continues(database_url: str, redis_url: str, tmp_path: Path) -> None:
    async with live_api(database_url, redis_url) as here:
        door = Door(here.path)
        server = await asyncio.start_server(door.enter, "127.0.0.1", 0)
        await here.create("demo")
        start = await here.until_handed_out()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "torpor", "events", "demo", "--json"),
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")},
                "TORPOR_URL": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                "TORPOR_TOKEN": here.people["ada"].token,
                "TORPOR_DATA": str(tmp_path),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert json.loads(await process.stdout.readline())["id"] == start
                for turn in range(1, 4):
                    await here.change("demo")
                    assert json.loads(await process.stdout.readline())["id"] == start + turn
                door.slam()
                await here.db.execute("UPDATE workspaces SET name = 'renamed'")
                await here.change("renamed", times=2)
                for turn in range(4, 7):
                    assert json.loads(await process.stdout.readline())["id"] == start + turn
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            door.slam()
            server.close()
            await server.wait_closed()
