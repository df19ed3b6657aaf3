"""A workspace in use stays awake, and an idle one is stopped, although processes die."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.cluster import Cluster, Node, cluster, echo
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.anyio]

STANDBY_TTL_S = 3
LEASE_S = 3
HASTE = {"ttl_interval": "0.5", "connection_lease": str(LEASE_S), "reconciler_interval": "1"}


async def knock(here: Cluster, node: Node, name: str) -> ClientConnection:
    """A WebSocket to a workspace through this proxy, as soon as it is accepted."""

    async def let_in() -> ClientConnection | None:
        try:
            return await connect(
                f"ws://{name}.localhost:{node.port}/",
                host="127.0.0.1",
                port=node.port,
                ping_interval=None,
                additional_headers={"Authorization": f"Bearer {here.token}"},
            )
        except Exception:
            return None

    return await until(let_in, every_s=0.1)


async def work(connection: ClientConnection) -> None:
    """Send input as long as there are answers."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await connection.send("hello")
            assert await connection.recv() == "hello"
            await asyncio.sleep(0.5)


async def phase(here: Cluster, name: str) -> str:
    said: str = (await here.accepted("GET", f"/workspaces/{name}"))["phase"]
    return said


async def explained(here: Cluster, name: str) -> str:
    return " ".join((await here.accepted("GET", f"/workspaces/{name}/explain"))["lines"])


async def falls_asleep(here: Cluster, name: str, *, within_s: float = 40) -> None:
    async def is_standing_by() -> bool:
        return await phase(here, name) == "STANDBY"

    await until(is_standing_by, within_s=within_s, every_s=0.2)


@pytest.mark.long
async def test_a_live_connection_prevents_the_stop_and_that_of_a_killed_proxy_does_not(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, echo() as address:
        await here.fate.set(address=address)
        _, living, dying = await asyncio.gather(
            here.serve("api,controller", **HASTE), here.serve("proxy", **HASTE), here.serve("proxy", **HASTE)
        )
        for name in ("busy", "orphaned", "held", "forgotten"):
            body = {"name": name, "standby_ttl": STANDBY_TTL_S}
            await here.accepted("POST", "/workspaces", body)
            here.wished[name] = "RUNNING"
        await here.until_served()
        await here.accepted("POST", "/workspaces/held/leases", {"reason": "a long build", "seconds": 600})

        busy, orphaned = await asyncio.gather(knock(here, living, "busy"), knock(here, dying, "orphaned"))
        people = [asyncio.create_task(work(one)) for one in (busy, orphaned)]
        try:
            await falls_asleep(here, "forgotten")
            assert "it was not used" in await explained(here, "forgotten")
            # Several times as long as any of them may be idle.
            quiet_until = time.monotonic() + 3 * (STANDBY_TTL_S + LEASE_S)
            while time.monotonic() < quiet_until:
                assert [await phase(here, name) for name in ("busy", "orphaned", "held")] == ["RUNNING"] * 3
                await asyncio.sleep(0.5)
            assert "connection" in await explained(here, "busy")
            assert "a long build" in await explained(here, "held")

            await dying.kill()
            await falls_asleep(here, "orphaned")
            assert [await phase(here, name) for name in ("busy", "held")] == ["RUNNING"] * 2

            # Valkey forgets everything at once: no workspace is stopped because of that.
            await here.forget_everything()
            quiet_until = time.monotonic() + STANDBY_TTL_S
            while time.monotonic() < quiet_until:
                assert [await phase(here, name) for name in ("busy", "held")] == ["RUNNING"] * 2
                await asyncio.sleep(0.3)

            await busy.close()
            await falls_asleep(here, "busy")
            await here.accepted("DELETE", "/workspaces/held/leases")
            await falls_asleep(here, "held")
        finally:
            for one in people:
                one.cancel()
            await asyncio.gather(*people, return_exceptions=True)
            await asyncio.gather(busy.close(), orphaned.close())


async def test_limits_hold_over_several_processes_when_fifty_start_at_once(tmp_path: Path) -> None:
    limits = {"max_running_per_user": "7", "max_running_global": "100"}
    async with cluster(tmp_path, effects_s=0.05) as here:
        await asyncio.gather(here.serve("api", **limits), here.serve("api", **limits), here.serve("controller", **limits))
        names = [f"w{number:02}" for number in range(50)]
        for name in names:
            await here.accepted("POST", "/workspaces", {"name": name, "desired_state": "STANDBY"})
        seen: list[int] = []

        async def all_stand_by() -> bool:
            return all((row["phase"], row["operation"]) == ("STANDBY", "NONE") for row in await here.rows())

        async def watch() -> None:
            while True:
                seen.append(len((await here.fate.inspect(log_since=10**9)).containers))
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        for _ in range(3):
            wishes = (here.api("PATCH", f"/workspaces/{name}", {"desired_state": "RUNNING"}) for name in names)
            statuses = [status for status, _ in await asyncio.gather(*wishes)]
            assert statuses.count(200) == 7
            assert statuses.count(429) == 43
            await asyncio.sleep(0.5)
            running = [row["name"] for row in await here.rows() if row["desired_state"] == "RUNNING"]
            await asyncio.gather(*(here.wish(name, "STANDBY") for name in running))
            await until(all_stand_by, every_s=0.1)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert max(seen) == 7
