"""Which services does the product bring along, when nobody names others?"""

import asyncio
import contextlib
import time
from typing import Protocol

import structlog

from torpor.assemble.running import background
from torpor.bus.embedded import EmbeddedValkey
from torpor.settings import Settings
from torpor.store.embedded import EmbeddedPostgres

log = structlog.get_logger()

RETRY_S = 2.0


class Server(Protocol):
    @property
    def pid(self) -> int | None: ...

    async def start(self) -> str: ...

    async def stop(self) -> None: ...

    async def wait(self) -> int: ...


async def database(settings: Settings, stack: contextlib.AsyncExitStack) -> str:
    """Where the database is; a private one is started when none is named."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return await _started("postgres", EmbeddedPostgres(settings.data / "postgres"), stack)


async def bus(settings: Settings, stack: contextlib.AsyncExitStack) -> str:
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    return await _started("valkey", EmbeddedValkey(settings.data / "valkey"), stack)


async def _started(name: str, server: Server, stack: contextlib.AsyncExitStack) -> str:
    url = await server.start()
    stack.push_async_callback(server.stop)
    await stack.enter_async_context(background(_kept_alive(name, server), name))
    return url


async def _kept_alive(name: str, server: Server) -> None:
    """One that ends by itself (killed for want of memory, say) is started again; the loops wait meanwhile."""
    started_at = float("-inf")
    while True:
        log.error("server_ended", server=name, exit_code=await server.wait())
        await server.stop()
        while server.pid is None:
            # At once, unless we have only just tried: one that cannot run would keep a core busy.
            await asyncio.sleep(max(0, started_at + RETRY_S - time.monotonic()))
            started_at = time.monotonic()
            try:
                await server.start()
            except Exception as error:  # whatever it was, there is nothing better to do than to try again
                log.warning("server_did_not_start", server=name, why=str(error))
