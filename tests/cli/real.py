"""The real API at a TCP port, and commands that call it."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.conftest import Ended
from tests.support.live_api import LiveApi, live_api
from torpor.cli.main import run


class Real:
    def __init__(
        self, here: LiveApi, url: str, folder: Path, captured: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch
    ) -> None:
        self.here = here
        self.url = url
        self.config = folder / "config"
        self._captured = captured
        self._patch = patch
        for name in [name for name in os.environ if name.startswith("TORPOR_")]:
            patch.delenv(name)
        patch.setenv("XDG_CONFIG_HOME", str(self.config))
        patch.setenv("XDG_DATA_HOME", str(folder / "share"))
        patch.chdir(folder)

    async def __call__(self, *argv: str, by: str | None = None, stdin: str = "") -> Ended:
        """Run a command in this process, with the token of the user `by`, or else with the stored login."""
        if by is None:
            self._patch.delenv("TORPOR_URL", raising=False)
            self._patch.delenv("TORPOR_TOKEN", raising=False)
        else:
            self._patch.setenv("TORPOR_URL", self.url)
            self._patch.setenv("TORPOR_TOKEN", self.here.people[by].token)
        self._patch.setattr("sys.stdin", io.StringIO(stdin))
        self._captured.readouterr()
        code = await asyncio.to_thread(run, argv)
        return Ended(code, *self._captured.readouterr())

    async def ok(self, *argv: str, by: str | None = None, stdin: str = "") -> Ended:
        ended = await self(*argv, by=by, stdin=stdin)
        assert ended.code == 0, ended.said
        return ended


@contextlib.asynccontextmanager
async def real(
    database_url: str, redis_url: str, folder: Path, captured: pytest.CaptureFixture[bytes], patch: pytest.MonkeyPatch
) -> AsyncIterator[Real]:
    async with live_api(database_url, redis_url, publishes=False) as here, at_a_port(here.path) as url:
        yield Real(here, url, folder, captured, patch)


@contextlib.asynccontextmanager
async def at_a_port(path: Path) -> AsyncIterator[str]:
    """The address of a port that forwards to this socket."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while some := await reader.read(65536):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = await asyncio.open_unix_connection(str(path))
        entered.extend((writer, theirs[1]))
        await asyncio.gather(pass_on(reader, theirs[1]), pass_on(theirs[0], writer))

    entered: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(enter, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in entered:
            writer.transport.abort()
        server.close()
        await server.wait_closed()
