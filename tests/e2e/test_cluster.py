"""Three controllers serve all workspaces, although one is killed, hangs or loses its database."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster, many, restlessly
from tests.support.engine_process import started_twice

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.anyio]

WORKSPACES = 1000
CONTROLLERS = 3
LEADS_WITHIN_S = 5.0
EFFECTS_S = 0.02
HANGS_FOR_S = 60.0


async def test_every_request_is_fulfilled_while_controllers_fail(tmp_path: Path) -> None:
    async with cluster(tmp_path, effects_s=EFFECTS_S) as here:
        with told("one api and three controllers are ready"):
            await asyncio.gather(here.serve("api"), *(here.serve("controller") for _ in range(CONTROLLERS)))
        names = [f"w{number:04}" for number in range(WORKSPACES)]
        with told("1,000 workspaces run"):
            await many(here.create, names)
            await here.until_served(within_s=90)

        await the_leader_is_killed(here, names)
        await services_are_restarted(here, names)
        await the_leader_hangs(here, names)

        with told("all run again"):
            await many(lambda name: here.wish(name, "RUNNING"), [name for name in names if here.wished[name] != "RUNNING"])
            await here.until_served()
        await nothing_was_done_twice(here, left_alone=frozenset(names[360:]))
        assert len(here.living("controller")) == CONTROLLERS, here.said()


async def the_leader_is_killed(here: Cluster, names: list[str]) -> None:
    some = names[:300]
    leader = await here.leader()
    others = [node for node in here.living("controller") if node is not leader]
    with told("300 sleep"):
        wishing = asyncio.create_task(many(lambda name: here.wish(name, "STANDBY"), some))
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        await leader.kill()
        with told("another leads"):
            await here.leader(others)
        assert time.monotonic() - began_s < LEADS_WITHIN_S
        await wishing
        await here.until_served()
    with told("and run again"):
        await many(lambda name: here.wish(name, "RUNNING"), some)
        await here.until_served()
    await here.serve("controller")


async def services_are_restarted(here: Cluster, names: list[str]) -> None:
    async with restlessly(here, names[:200], seed=1):
        await asyncio.sleep(1)
        with told("PostgreSQL restarts"):
            await here.restart_postgres()
        await asyncio.sleep(1)
    with told("served"):
        await here.until_served()

    async with restlessly(here, names[:200], seed=2):
        await asyncio.sleep(1)
        with told("Valkey restarts"):
            await here.restart_valkey()
        await asyncio.sleep(1)
    with told("served"):
        await here.until_served()


async def the_leader_hangs(here: Cluster, names: list[str]) -> None:
    """In the middle of its work, for longer than its membership lasts."""
    asleep, restless = names[300:360], names[:200]
    with told("60 are archived"):
        await many(lambda name: here.wish(name, "ARCHIVED"), asleep)
        await here.until_served()
    leader = await here.leader()
    others = [node for node in here.living("controller") if node is not leader]
    async with restlessly(here, restless, seed=3):
        # A restore has several effects: a leader that hangs between two of them returns with the next one.
        await here.fate.set(effects_s=0.5)
        await many(lambda name: here.wish(name, "RUNNING"), asleep)
        leader.pause()
        hangs_until = time.monotonic() + HANGS_FOR_S
        await here.fate.set(effects_s=EFFECTS_S)
        with told("another leads"):
            await here.leader(others)
    with told("served without it"):
        await here.until_served()
    async with restlessly(here, restless, seed=4):
        await asyncio.sleep(max(0.0, hangs_until - time.monotonic()))
        leader.go_on()
        await asyncio.sleep(2)
    with told("served with it"):
        await here.until_served()


async def nothing_was_done_twice(here: Cluster, left_alone: frozenset[str]) -> None:
    rows = {row["id"]: row for row in await here.rows()}
    assert [dict(row) for row in rows.values() if row["error_info"] is not None] == []
    held = await here.fate.inspect()
    print(f"{len(held.log)} effects, {len(held.overtaken)} came too late and were refused", flush=True)
    assert started_twice(held.log) == []
    quiet = Counter(entry.verb for entry in held.log if rows[entry.workspace_id]["name"] in left_alone)
    assert quiet == dict.fromkeys(("ensure_volume", "mark_volume", "ensure_running"), len(left_alone)), (
        "started once, and left alone"
    )
    assert held.containers.keys() == rows.keys()
    assert all(container.ready and not container.ended for container in held.containers.values())
    assert sorted(home.workspace_id for home in held.volumes) == sorted(rows), "one home each"


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Print how long it took, shown by `pytest -s`."""
    began_s = time.monotonic()
    yield
    print(f"{time.monotonic() - began_s:6.2f} s  {what}", flush=True)
