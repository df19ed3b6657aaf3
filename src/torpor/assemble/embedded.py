"""Start a private PostgreSQL and Valkey when the settings name no others, and restart them when they end."""

import asyncio
import contextlib
import time
from typing import Protocol

import structlog

from torpor.assemble.process import background
from torpor.bus.embedded import EmbeddedValkey
from torpor.loops import Loop
from torpor.settings import Settings
from torpor.store.embedded import EmbeddedPostgres

log = structlog.get_logger()

RETRY_S = 2.0
LOOK_EVERY_S = 10.0
# After a crash the database replays its log from the last checkpoint.
STARTS_WITHIN_S = 600.0


class SupervisedServer(Protocol):
    @property
    def pid(self) -> int | None: ...

    async def start(self) -> str: ...

    async def stop(self) -> None: ...

    async def wait(self) -> int: ...


async def database(settings: Settings, stack: contextlib.AsyncExitStack) -> str:
    """The URL of the database; a private one is started when the settings name none."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return await _started("postgres", EmbeddedPostgres(settings.data / "postgres"), stack)


async def bus(settings: Settings, stack: contextlib.AsyncExitStack) -> str:
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    return await _started("valkey", EmbeddedValkey(settings.data / "valkey"), stack)


async def _started(name: str, server: SupervisedServer, stack: contextlib.AsyncExitStack) -> str:
    url = await server.start()
    stack.push_async_callback(server.stop)
    await stack.enter_async_context(background(ServerSupervisor(name, server).run(), name))
    return url


class ServerSupervisor:
    """Restarts a server that ended by itself (killed because memory ran out, for example); the loops wait meanwhile."""

    def __init__(self, name: str, server: SupervisedServer) -> None:
        self._name = name
        self._server = server
        self._started_at = float("-inf")

    async def run(self) -> None:
        await Loop(self._name, self._turn, interval_s=LOOK_EVERY_S, turn_s=STARTS_WITHIN_S).run()

    async def _turn(self) -> float:
        if self._server.pid is not None and not await self._has_ended():
            return 0.0
        # At once, unless a start was tried just now: a server that cannot run would keep a core busy.
        wait_s = self._started_at + RETRY_S - time.monotonic()
        if wait_s > 0:
            return wait_s
        self._started_at = time.monotonic()
        try:
            await self._server.start()
        except Exception as error:  # for any error, the only remedy is to try again
            log.warning("server_did_not_start", server=self._name, why=str(error))
        return 0.0

    async def _has_ended(self) -> bool:
        """Waits up to `LOOK_EVERY_S`."""
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                code = await self._server.wait()
        except TimeoutError:
            return False
        log.error("server_ended", server=self._name, exit_code=code)
        await self._server.stop()
        return True
