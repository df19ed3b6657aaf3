"""Test that the private database and bus recover by themselves after their disk was completely full."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio as redis

from tests.support.small_disk import fill, small_disk
from tests.support.waiting import until
from torpor.assemble.embedded import ServerSupervisor
from torpor.bus.embedded import EmbeddedValkey
from torpor.embedded_server import EmbeddedServer
from torpor.loops import start_tasks, stop
from torpor.store.embedded import EmbeddedPostgres

pytestmark = pytest.mark.anyio

OUT = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, redis.RedisError)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "150m") as path:
        yield path


@contextlib.asynccontextmanager
async def kept(server: EmbeddedServer) -> AsyncIterator[str]:
    url = await server.start()
    keeping = start_tasks(ServerSupervisor("server", server).run())
    try:
        yield url
    finally:
        await stop(*keeping)
        await server.stop()


async def test_the_database_recovers_after_a_full_disk(disk: Path) -> None:
    postgres = EmbeddedPostgres(disk / "postgres")

    async def writes(url: str) -> bool:
        with contextlib.suppress(*OUT):
            connection = await asyncpg.connect(url, timeout=5)
            try:
                await connection.execute("INSERT INTO kept SELECT repeat(md5(n::text), 30) FROM generate_series(1, 1000) AS n")
            finally:
                connection.terminate()
            return True
        return False

    async with kept(postgres) as url:
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept (text text)")
        await connection.close()
        assert await writes(url)
        first = postgres.pid
        filler = await asyncio.to_thread(fill, disk)

        async def is_out() -> bool:
            return not await writes(url)

        await until(is_out, within_s=30)
        for _ in range(10):  # any failure is possible here, also of the start
            await writes(url)
        await asyncio.to_thread(filler.unlink)
        await until(lambda: writes(url), within_s=40)
        assert first is not None
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT count(*) FROM kept") >= 2000
        await connection.close()


async def test_the_bus_recovers_after_a_full_disk(disk: Path) -> None:
    async with kept(EmbeddedValkey(disk / "valkey")) as url, redis.from_url(url) as client:

        async def writes() -> bool:
            with contextlib.suppress(*OUT):
                return bool(await client.set("key", "x" * 100_000))
            return False

        assert await writes()
        filler = await asyncio.to_thread(fill, disk)
        for _ in range(50):
            await writes()
        await asyncio.to_thread(filler.unlink)
        await until(writes, within_s=30)
