"""Test that readiness names a loop that is stalled."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control.test_cut_connections import running
from tests.support.waiting import until
from torpor.api.app import make_health_app
from torpor.assemble.health import health
from torpor.bus.redis import Bus
from torpor.domain.disk import Disk
from torpor.loops import Loop, start_tasks, stop
from torpor.settings import load
from torpor.store.database import Database, Role
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio


async def answered(client: httpx.AsyncClient, status: int) -> dict[str, Any]:
    """The body of the readiness check, once it has this status."""

    async def asked() -> httpx.Response | None:
        answer = await client.get("/health/ready")
        return answer if answer.status_code == status else None

    said: dict[str, Any] = (await until(asked)).json()
    return said


async def test_a_loop_that_hangs_makes_readiness_503_and_is_named_until_it_runs_again(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    hangs, may_turn = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        if hangs.is_set() and not may_turn.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await may_turn.wait()

    async with contextlib.AsyncExitStack() as stack:
        database = await Database.open(database_url, Role.SERVICE)
        stack.push_async_callback(database.close)
        bus = await Bus.open(redis_url)
        stack.push_async_callback(bus.close)
        here = await stack.enter_async_context(running(database_url))
        world, settings = FakeWorld(), load({"HOME": str(tmp_path)})
        checks = health(settings, database, FakeRuntime(world), FakeArchives(world), bus, lambda: here.coordinator)
        transport = httpx.ASGITransport(make_health_app(checks))
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://torpor"))
        stack.push_async_callback(stop, *start_tasks(Loop("hanging", turn, interval_s=0.02, turn_s=0.06).run()))

        said = await answered(client, 200)
        assert (said["stalled_loops"], said["disk_low"]) == ([], None)
        world.disk = Disk("/homes", 5 << 20)
        said = await answered(client, 200)
        assert "/homes) has about 5.0 MiB free" in said["disk_low"]
        assert {"controller", "coordinator", "duty-0", "hanging", "lead", "membership"} <= said["loops"].keys()
        assert said["loops"]["controller"]["last_turn_age_seconds"] < 20
        world.runtime_out = True
        said = await answered(client, 503)
        assert (said["runtime"], said["archive_store"]) == (False, True)
        world.runtime_out = False
        await answered(client, 200)
        hangs.set()
        said = await answered(client, 503)
        assert said["stalled_loops"] == ["hanging"]
        may_turn.set()
        said = await answered(client, 200)
        assert said["loops"]["hanging"]["restarts"] == 1
        led = (await client.get("/health/coordinator")).json()
        assert led["is_leader"]
        assert led["loops"].keys() == said["loops"].keys()
