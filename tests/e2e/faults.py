"""Random faults of connections, PostgreSQL and Valkey, drawn from a seed."""

import asyncio
import contextlib
import os
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import asyncpg

from tests.support.cluster import Cluster
from tests.support.relay import Direction, Link, Relay
from tests.support.relayed_nodes import RelayedNode, RelayedNodes
from tests.support.waiting import until
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus, pool_of
from torpor.store.embedded import EmbeddedPostgres

APPLICATION = "loop test"
"""Connections of the test itself, which no fault ends."""
ANSWERS_WITHIN_S = 5.0
STOP_S = 15.0
LONG_STOP_S = 30.0
LONG_PARTITION_S = 35.0
NEXT_LINK_WITHIN_S = 60.0
"""The only node may be partitioned meanwhile."""

BACKENDS = f"""
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND application_name <> '{APPLICATION}' AND pid <> pg_backend_pid() ORDER BY pid
"""


class Faults:
    """The possible faults. Those with a duration run in the background, so that others occur meanwhile."""

    def __init__(self, places: RelayedNodes) -> None:
        self.counts: Counter[str] = Counter()
        self.last = "none yet"
        self._places = places
        self._here = places.here
        self._lasting: set[asyncio.Task[None]] = set()
        self._postgres = asyncio.Lock()
        self._valkey = asyncio.Lock()

    async def cut(self, dice: random.Random) -> None:
        """One random cut."""
        await self._do(_drawn(CUTS, dice), CUTS, dice)

    async def disturb(self, dice: random.Random, kind: str | None = None) -> None:
        """Stop or restart a server, or partition a node; at random, or of this kind."""
        await self._do(kind or _drawn(DISTURBANCES, dice), DISTURBANCES, dice)

    async def over(self) -> None:
        """Wait until all faults have ended."""
        while self._lasting:
            await asyncio.gather(*self._lasting)

    async def end(self) -> None:
        """Cancel the remaining faults; no server stays stopped."""
        for task in self._lasting:
            task.cancel()
        await asyncio.gather(*self._lasting, return_exceptions=True)

    async def _do(self, kind: str, among: "Table", dice: random.Random) -> None:
        self.counts[kind] += 1
        self.last = kind
        await among[kind][1](self, dice)

    def _lasts(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    # ── connections ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def cut_one(self, dice: random.Random) -> None:
        (await self._link(dice)).cut()

    async def cut_some(self, dice: random.Random) -> None:
        """Several at the same moment: an operation in a transaction often uses two connections."""
        await self._link(dice)
        for link in self._links():
            if dice.random() < 0.5 and not link.is_frozen:
                link.cut()

    async def cut_node(self, dice: random.Random) -> None:
        for relay in self._relays(dice):
            relay.cut()

    async def cut_all(self, dice: random.Random) -> None:
        is_postgres = dice.random() < 0.5
        for place in self._places.all:
            (place.postgres if is_postgres else place.valkey).cut()

    async def freeze_one(self, dice: random.Random) -> None:
        """No data arrives for a while, and then all of it does."""
        link, seconds = await self._link(dice), dice.uniform(0.2, 8)
        link.freeze()
        self._lasts(_later(seconds, link.thaw))

    async def silence_one(self, dice: random.Random) -> None:
        """A half-open connection: one or both directions are lost, and it is reset much later."""
        link, seconds = await self._link(dice), dice.uniform(1, 8)
        link.freeze(*dice.choice(((), (Direction.TO_SERVER,), (Direction.TO_CLIENT,))))
        self._lasts(_later(seconds, link.cut))

    async def silence_node(self, dice: random.Random) -> None:
        """All present and new connections of one process to one server or to both."""
        await self._silence(self._relays(dice), dice.uniform(1, 6), dice)

    async def partition(self, dice: random.Random) -> None:
        """One process reaches neither server."""
        await self._silence(_both(dice.choice(self._places.all)), dice.uniform(5, 15), dice)

    async def long_partition(self, dice: random.Random) -> None:
        """For longer than the expiry of a membership, without other faults."""
        await self._silence(_both(dice.choice(self._places.all)), LONG_PARTITION_S, dice)
        await self.over()

    async def _silence(self, relays: Sequence[Relay], seconds: float, dice: random.Random) -> None:
        is_reset = dice.random() < 0.5
        for relay in relays:
            relay.freeze()
            self._lasts(_later(seconds, relay.reset if is_reset else relay.thaw))

    def _relays(self, dice: random.Random) -> Sequence[Relay]:
        place = dice.choice(self._places.all)
        return dice.choice(((place.postgres,), (place.valkey,), _both(place)))

    def _links(self) -> list[Link]:
        return [link for place in self._places.all for relay in _both(place) for link in relay.links]

    async def _link(self, dice: random.Random) -> Link:
        """Any working connection, once there is one."""
        number = dice.random()
        working = await until(
            lambda: [link for link in self._links() if not link.is_frozen],
            within_s=NEXT_LINK_WITHIN_S,
            otherwise=lambda: "no process has a connection to any server",
        )
        return working[int(number * len(working))]

    # ── servers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def terminate_one_backend(self, dice: random.Random) -> None:
        number = dice.random()
        await self._terminate(lambda pids: [pids[int(number * len(pids))]])

    async def terminate_all_backends(self, dice: random.Random) -> None:
        await self._terminate(lambda pids: pids)

    async def _terminate(self, choose: Callable[[list[int]], list[int]]) -> None:
        # A server that is stopped or restarting cannot end connections now.
        if self._postgres.locked():
            return
        async with self._postgres, asking_postgres(self._here) as connection:
            if pids := [row["pid"] for row in await connection.fetch(BACKENDS)]:
                await connection.fetch("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", choose(pids))

    async def kill_one_client(self, dice: random.Random) -> None:
        number = dice.random()
        if self._valkey.locked():
            return
        async with self._valkey, asking_valkey(self._here) as bus:
            (listed,) = await bus.ask(("CLIENT", "LIST"))
            ids = re.findall(rb"(?m)^id=(\d+)", listed)
            await bus.ask(("CLIENT", "KILL", "ID", ids[int(number * len(ids))], "SKIPME", "yes"))

    async def kill_all_clients(self, dice: random.Random) -> None:
        kind = dice.choice(("normal", "pubsub"))
        if self._valkey.locked():
            return
        async with self._valkey, asking_valkey(self._here) as bus:
            await bus.ask(("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))

    async def stop_postgres(self, dice: random.Random) -> None:
        self._lasts(self._stop_postgres(dice.uniform(0.5, 15)))

    async def stop_postgres_alone(self, dice: random.Random) -> None:
        """Without other faults: a cut connection would end the silence that a loop must survive here."""
        await self._stop_postgres(STOP_S)

    async def stop_postgres_alone_for_long(self, dice: random.Random) -> None:
        await self._stop_postgres(LONG_STOP_S)

    async def stop_valkey(self, dice: random.Random) -> None:
        self._lasts(self._stop_valkey(dice.uniform(0.5, 8)))

    async def _stop_postgres(self, seconds: float) -> None:
        async with self._postgres:
            await _stopped(lambda: EmbeddedPostgres.processes_in(self._here.postgres.cluster), seconds)

    async def _stop_valkey(self, seconds: float) -> None:
        async with self._valkey:
            await _stopped(lambda: EmbeddedValkey.processes_in(self._here.valkey.data), seconds)

    async def restart_postgres(self, dice: random.Random) -> None:
        """Several times in quick succession."""
        for _ in range(dice.randint(1, 3)):
            async with self._postgres:
                await self._here.restart_postgres()
            await asyncio.sleep(dice.uniform(0, 1.5))

    async def restart_valkey(self, dice: random.Random) -> None:
        for _ in range(dice.randint(1, 3)):
            async with self._valkey:
                await self._here.restart_valkey()
            await asyncio.sleep(dice.uniform(0, 1.5))


STOP = "PostgreSQL stopped 15 s, nothing else"
LONG_STOP = "PostgreSQL stopped 30 s, nothing else"
LONG_PARTITION = "a process partitioned 35 s, nothing else"

Table = Mapping[str, tuple[int, Callable[[Faults, random.Random], Awaitable[None]]]]
"""By name: how often it is drawn, and what it does."""

CUTS: Table = {
    "one connection cut": (30, Faults.cut_one),
    "half of the connections cut": (6, Faults.cut_some),
    "one process cut off": (6, Faults.cut_node),
    "all connections to a server cut": (6, Faults.cut_all),
    "one connection frozen": (12, Faults.freeze_one),
    "one connection silent, then reset": (12, Faults.silence_one),
    "one process in silence": (4, Faults.silence_node),
    "one backend terminated": (10, Faults.terminate_one_backend),
    "all backends terminated": (6, Faults.terminate_all_backends),
    "one Valkey client killed": (4, Faults.kill_one_client),
    "all Valkey clients of a type killed": (4, Faults.kill_all_clients),
}
DISTURBANCES: Table = {
    "PostgreSQL stopped up to 15 s": (4, Faults.stop_postgres),
    "Valkey stopped up to 8 s": (2, Faults.stop_valkey),
    "PostgreSQL restarted up to 3 times": (4, Faults.restart_postgres),
    "Valkey restarted up to 3 times": (2, Faults.restart_valkey),
    "a process partitioned up to 15 s": (2, Faults.partition),
    STOP: (1, Faults.stop_postgres_alone),
    LONG_STOP: (0, Faults.stop_postgres_alone_for_long),
    LONG_PARTITION: (0, Faults.long_partition),
}


def _both(place: RelayedNode) -> tuple[Relay, Relay]:
    return place.postgres, place.valkey


def _drawn(table: Table, dice: random.Random) -> str:
    return dice.choices(tuple(table), [weight for weight, _ in table.values()])[0]


async def _later(seconds: float, act: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    act()


async def _stopped(pids: Callable[[], list[int]], seconds: float) -> None:
    """SIGSTOP to every process of a server, and SIGCONT."""
    stopped: set[int] = set()
    try:
        # A process that was not stopped yet may have started another.
        while new := set(pids()) - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
        await asyncio.sleep(seconds)
    finally:
        _signal(stopped, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.asynccontextmanager
async def asking_postgres(here: Cluster) -> AsyncIterator[Any]:
    """The test's own connection without a relay; only a restart ends it."""
    settings = {"application_name": APPLICATION}
    connection = await asyncpg.connect(
        here.postgres.dsn, timeout=ANSWERS_WITHIN_S, command_timeout=ANSWERS_WITHIN_S, server_settings=settings
    )
    try:
        yield connection
    finally:
        connection.terminate()


@contextlib.asynccontextmanager
async def asking_valkey(here: Cluster) -> AsyncIterator[Bus]:
    """The test's own connection without a relay."""
    bus = Bus(pool_of(here.valkey.url, 1))
    try:
        yield bus
    finally:
        await bus.close()
