"""A workspace in use stays awake while its proxy cannot reach the bus. Real PostgreSQL and Valkey, and a connection to cut."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.idle_stage import TERM, IdleStage, idle_stage
from tests.support.unreliable_socket import UnreliableSocket, unreliable_socket
from tests.support.waiting import until
from torpor.bus.activity import RedisActivity
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.domain.records import Workspace
from torpor.domain.states import Wish
from torpor.proxy.use_leases import ConnectionLeases
from torpor.service.activity import RecordUse, discard_use

pytestmark = [pytest.mark.anyio, pytest.mark.long]

PATIENCE_S = 20.0
LEASE_S = 1.5


@dataclass
class Stage:
    night: IdleStage
    wire: UnreliableSocket
    bus: Bus
    """Through the connection that the test cuts."""

    async def workspace(self) -> Workspace:
        """A workspace whose row says that it was last used an hour ago."""
        ada = await self.night.workspace()

        async def is_believed() -> bool:
            return await self.night.activity.memory_s() > ada.standby_ttl_s + LEASE_S

        await until(is_believed)
        return ada

    def leases(self, write_down: RecordUse) -> ConnectionLeases:
        return ConnectionLeases(RedisActivity(self.bus), lambda *_: None, lease_s=LEASE_S, write_down=write_down)

    async def is_kept_awake(self, ada: Workspace, seconds: float) -> bool:
        """Whether the leader, which checks all the time, leaves it running for this long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and await self.night.wish_of(ada) is Wish.RUNNING:
            await self.night.watch.do(TERM)
        return await self.night.wish_of(ada) is Wish.RUNNING


@pytest.fixture
async def stage(database_url: str, redis_url: str, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Stage]:
    async with (
        unreliable_socket(valkey.socket, tmp_path / "w") as line,
        idle_stage(database_url, redis_url, lease_s=LEASE_S) as night,
    ):
        bus = await Bus.open(line.url)
        try:
            yield Stage(night, line, bus)
        finally:
            line.mend()
            await bus.close()


@contextlib.asynccontextmanager
async def meanwhile(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def again_and_again(act: Callable[[], None]) -> None:
    while True:
        act()
        await asyncio.sleep(0.05)


async def test_a_connection_with_data_prevents_the_stop_without_the_bus(stage: Stage) -> None:
    ada = await stage.workspace()
    leases = stage.leases(stage.night.using.seen_in_use)
    async with leases.running():
        tie = leases.connect(ada.id, ada.standby_ttl_s)
        await until_connected(stage, ada)
        stage.wire.cut()
        async with meanwhile(again_and_again(tie.carried)):
            assert await stage.is_kept_awake(ada, 2 * (LEASE_S + ada.standby_ttl_s))
        # No input comes any more: the cut connection alone must not keep the workspace awake.
        assert not await stage.is_kept_awake(ada, PATIENCE_S)


async def test_a_connection_closed_without_the_bus_counts_for_its_ttl(stage: Stage) -> None:
    ada = await stage.workspace()
    leases = stage.leases(stage.night.using.seen_in_use)
    async with leases.running():
        tie = leases.connect(ada.id, ada.standby_ttl_s)
        await until_connected(stage, ada)
        stage.wire.cut()
        tie.closed()

        async def is_noted() -> bool:
            return (await stage.night.look(ada)).last_access_at != ada.last_access_at

        await until(is_noted)
        assert not await stage.is_kept_awake(ada, PATIENCE_S)


async def test_requests_prevent_the_stop_without_the_bus(stage: Stage) -> None:
    ada = await stage.workspace()
    await stage.night.activity.touch({ada.id: ada.standby_ttl_s})
    stage.night.touches._activity = RedisActivity(stage.bus)
    stage.wire.cut()
    use = again_and_again(lambda: stage.night.using.touch(ada.id, ada.standby_ttl_s))
    async with meanwhile(use, stage.night.touches.run(stage.night.using.seen_in_use)):
        assert await stage.is_kept_awake(ada, 2 * (LEASE_S + ada.standby_ttl_s))


async def test_a_reconnected_proxy_reports_use_before_the_next_check(stage: Stage) -> None:
    """No row is written: between two checks of the leader there is time for one failed and one successful attempt."""
    ada = await stage.workspace()
    leases = stage.leases(discard_use)
    async with leases.running():
        tie = leases.connect(ada.id, ada.standby_ttl_s)
        await until_connected(stage, ada)
        stage.wire.cut()
        async with meanwhile(again_and_again(tie.carried)):
            await until_connected(stage, ada, connections=0)
            stage.wire.mend()
            await stage.night.watch.do(TERM)
            assert await stage.night.wish_of(ada) is Wish.RUNNING


async def test_many_closes_at_once_do_not_delay_the_renewal_of_leases(stage: Stage) -> None:
    leases, activity = stage.leases(discard_use), stage.night.activity

    async def connections() -> int:
        return (await activity.uses(["w"]))["w"].connections

    async def all_are_noted() -> bool:
        return bool(await connections() and (await activity.uses(["w299"]))["w299"].connections)

    async with leases.running():
        living = leases.connect("w", 60)
        many = [leases.connect(f"w{number}", 60) for number in range(300)]
        await until(all_are_noted)
        stage.wire.delay_s = 0.01
        for tie in many:
            tie.closed()
        end = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < end:
            assert await connections() == 1
            await asyncio.sleep(0.02)
        uses = await activity.uses([tie.workspace_id for tie in many])
        assert {use.connections for use in uses.values()} == {0}
        assert all(use.idle_timer_s is not None for use in uses.values())
        living.closed()


async def until_connected(stage: Stage, ada: Workspace, connections: int = 1) -> None:
    async def is_so() -> bool:
        return (await stage.night.activity.uses([ada.id]))[ada.id].connections == connections

    await until(is_so)
