"""Observe the turns of every loop of an installation from outside, by their effects.

No process is asked about its loops: rows, keys, archives, streams and connections show them.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any

import asyncpg
import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.e2e.faults import asking_postgres, asking_valkey
from tests.support.relayed_nodes import RelayedNode, RelayedNodes
from tests.support.waiting import until
from torpor.bus.activity import connections_key
from torpor.domain.errors import Unavailable
from torpor.domain.events import OF_ANY_WORKSPACE
from torpor.domain.shards import shard_of, shards_of

LOOK_EVERY_S = 0.2
AFTER_AN_OUTAGE_S = 0.3
ANSWERS_WITHIN_S = 20.0
DOZES_AFTER_S = 1
BUSY_TTL_S = 3
NEVER_S = 86_400

OUTAGE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    httpx2.HTTPError,
    WebSocketException,
    Unavailable,
)
"""The errors of a client during an outage."""

WORKSPACES = "SELECT id::text, name, desired_state, phase, phase_changed_at, operation, error_info FROM workspaces"
SIGNS_OF_LIFE = "SELECT node_id, max(expires_at) AS until FROM controllers GROUP BY node_id"
LAST_EVENT = "SELECT last_id FROM event_counter"

OF_THE_LEADER = ("idle watch", "collector", "events", "events on the bus")
OF_EACH_PROCESS = ("membership", "controller", "leases", "event stream")


def loop_of(place: RelayedNode, loop: str) -> str:
    return f"{loop} of {place.name}"


class Out(Exception):
    """The API cannot respond now."""


class Turns:
    """When each loop last turned, and its longest pause."""

    def __init__(self, places: Iterable[RelayedNode]) -> None:
        now = time.monotonic()
        of_processes = [loop_of(place, loop) for loop in OF_EACH_PROCESS for place in places]
        self.longest_s = dict.fromkeys((*OF_THE_LEADER, *of_processes), 0.0)
        self._last = dict.fromkeys(self.longest_s, now)
        self._counts: Counter[str] = Counter()

    def turned(self, loop: str) -> None:
        # A loop of a process that was killed for good does not turn any more.
        if loop in self._last:
            now = time.monotonic()
            self.longest_s[loop] = max(self.longest_s[loop], now - self._last[loop])
            self._last[loop] = now
            self._counts[loop] += 1

    def forget(self, place: RelayedNode) -> None:
        """This process was killed for good; other controllers take over its workspaces."""
        for loop in OF_EACH_PROCESS:
            if loop != "controller":
                del self._last[loop_of(place, loop)]

    async def until_all_turn(self, *, times: int, within_s: float) -> float:
        """Wait until each has turned this often from now on; returns the seconds."""
        began = time.monotonic()
        before = Counter(self._counts)

        def still() -> list[str]:
            return [loop for loop in self._last if self._counts[loop] - before[loop] < times]

        def ages() -> str:
            now = time.monotonic()
            return ", ".join(f"{loop} (last turn {now - self._last[loop]:.0f} s ago)" for loop in still())

        await until(
            lambda: not still(),
            within_s=within_s,
            otherwise=lambda: f"{within_s:g} s after the last fault these loops do not turn: {ages()}",
        )
        return time.monotonic() - began


class Watch:
    """Workspaces whose changes show the turns, and their clients."""

    def __init__(self, places: RelayedNodes, client: httpx2.AsyncClient) -> None:
        self.places = places
        self.turns = Turns(places.all)
        self.rows: Mapping[str, Any] = {}
        """The row of each workspace, by name."""
        self.lost: Counter[str] = Counter()
        """How often a connection in use was closed, by process."""
        self.slept: Counter[str] = Counter()
        """How often a workspace in use was stopped, because its proxy could reach neither server."""
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._here = places.here

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create the workspaces and follow the turns through all faults."""
        await self.create("dozing", ttl_s=DOZES_AFTER_S)
        for place in self.places.all:
            await self.create(f"busy-{place.name}", ttl_s=BUSY_TTL_S)
            await self.create_at(place, f"swinging-{place.name}")
        works: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "rows": self._follow_rows,
            "archives": self._follow_archives,
            "bus": self._follow_bus,
            "leases": self._follow_leases,
            "dozing": self._doze,
        }
        for place in self.places.all:
            for work in (self._swing, self._be_busy, self._follow_stream):
                works[loop_of(place, work.__name__)] = functools.partial(work, place)
        self._tasks = [asyncio.create_task(_for_ever(work), name=name) for name, work in works.items()]
        try:
            yield
            self._require_all_look()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_all_turn(self, *, times: int, within_s: float) -> float:
        """Wait until each loop has turned this often from now on; returns the seconds."""
        try:
            return await self.turns.until_all_turn(times=times, within_s=within_s)
        finally:
            self._require_all_look()

    def _require_all_look(self) -> None:
        """A client that failed observes nothing: that is an error of the test or a wrong response, not a loop that hangs."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, place: RelayedNode, method: str, path: str, body: object = None) -> Any:
        """The response of this process; raises Out if there is none now."""
        try:
            answer = await self._client.request(method, f"{url(place)}/api/v1{path}", json=body, headers=self.headers())
        except OUTAGE as out:
            raise Out(repr(out)) from out
        if answer.status_code >= 500:
            raise Out(answer.text)
        assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def ask_any(self, method: str, path: str, body: object = None, *, within_s: float = 120) -> Any:
        """Ask one process after the other until one responds."""
        outs: list[Out] = []

        async def answered() -> tuple[Any] | None:
            try:
                ready = self.places.ready
                return (await self.ask(ready[len(outs) % len(ready)], method, path, body),) if ready else None
            except Out as out:
                outs.append(out)
                return None

        (answer,) = await until(
            answered,
            within_s=within_s,
            every_s=AFTER_AN_OUTAGE_S,
            otherwise=lambda: f"{method} {path} was not answered: {outs[-1:]}",
        )
        return answer

    def headers(self, token: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {token or self._here.token}"}

    async def create_at(self, place: RelayedNode, name: str) -> None:
        """A workspace that this process controls while all processes run."""
        nodes = [one.name for one in self.places.all]
        for number in itertools.count():
            made = await self.create(f"{name}-{number}")
            if shard_of(made) in shards_of(place.name, nodes):
                await self.ask_any("PATCH", f"/workspaces/{made}", {"name": name})
                return

    async def wish(self, name: str, state: str) -> None:
        await self.ask_any("PATCH", f"/workspaces/{name}", {"desired_state": state})

    async def until_stands(
        self, name: str, state: str, *, not_since: datetime | None = None, within_s: float = NEVER_S
    ) -> None:
        """Wait for this phase as requested state, without an operation in progress; `not_since`: and reached after that
        time."""
        await until(
            lambda: self.stands(name, state) and self.rows[name]["phase_changed_at"] != not_since,
            within_s=within_s,
            every_s=LOOK_EVERY_S / 2,
        )

    def stands(self, name: str, state: str) -> bool:
        row = self.rows.get(name)
        return row is not None and (row["desired_state"], row["phase"], row["operation"]) == (state, state, "NONE")

    def connect(self, place: RelayedNode, name: str, token: str | None = None) -> connect:
        """A WebSocket to this workspace through the proxy of this process."""
        return connect(
            f"ws://{name}.localhost:{place.port}/",
            host="127.0.0.1",
            port=place.port,
            ping_interval=None,
            open_timeout=ANSWERS_WITHIN_S,
            close_timeout=1,
            additional_headers=self.headers(token),
        )

    def stream(self, place: RelayedNode, token: str | None = None) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
        """Its event stream."""
        return self._client.stream("GET", f"{url(place)}/api/v1/events", headers=self.headers(token))

    async def create(self, name: str, *, ttl_s: int = NEVER_S) -> str:
        body = {"name": name, "desired_state": "RUNNING", "standby_ttl": ttl_s, "archive_ttl": NEVER_S}
        made: str = (await self.ask_any("POST", "/workspaces", body))["id"]
        return made

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow_rows(self) -> None:
        """Heartbeats, numbered events, and workspaces."""
        lives: dict[str, Any] = {}
        last_event = 0
        async with asking_postgres(self._here) as database:
            while True:
                for row in await database.fetch(SIGNS_OF_LIFE):
                    if lives.get(row["node_id"]) != row["until"]:
                        self.turns.turned(f"membership of {row['node_id']}")
                    lives[row["node_id"]] = row["until"]
                if last_event != (last_event := await database.fetchval(LAST_EVENT)):
                    self.turns.turned("events")
                self.rows = {row["name"]: row for row in await database.fetch(WORKSPACES)}
                await asyncio.sleep(LOOK_EVERY_S)

    async def _follow_archives(self) -> None:
        """The collector removes archives for which the workspace has enough newer ones."""
        seen: frozenset[str] = frozenset()
        while True:
            now = (await self._here.fate.inspect(log_since=10**9)).archives
            if seen - now:
                self.turns.turned("collector")
            seen = now
            await asyncio.sleep(LOOK_EVERY_S)

    async def _follow_bus(self) -> None:
        async with asking_valkey(self._here) as bus, bus.subscribed(OF_ANY_WORKSPACE) as subscription:
            while True:
                await subscription.next()
                self.turns.turned("events on the bus")

    async def _follow_leases(self) -> None:
        last: dict[str, Any] = {}
        async with asking_valkey(self._here) as bus:
            while True:
                for place in self.places.all:
                    lease = await self.lease(bus, f"busy-{place.name}")
                    if lease is not None and lease != last.get(place.name):
                        self.turns.turned(loop_of(place, "leases"))
                        last[place.name] = lease
                await asyncio.sleep(LOOK_EVERY_S)

    async def lease(self, bus: Any, name: str) -> float | None:
        """When the last lease of this workspace expires, by Valkey's clock."""
        if name not in self.rows:
            return None
        (scored,) = await bus.ask(("ZRANGE", connections_key(self.rows[name]["id"]), 0, -1, "WITHSCORES"))
        return max((float(score) for score in scored[1::2]), default=None)

    async def _follow_stream(self, place: RelayedNode) -> None:
        async with self.stream(place) as stream:
            async for event in events_of(stream):
                if event["event"] == "state_changed":
                    self.turns.turned(loop_of(place, "event stream"))

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _swing(self, place: RelayedNode) -> None:
        """Its controller reaches the requested states again and again; each round leaves an archive to collect."""
        name = f"swinging-{place.name}"
        while True:
            for state in ("STANDBY", "ARCHIVED", "RUNNING"):
                await self.wish(name, state)
                await self.until_stands(name, state)
                self.turns.turned(loop_of(place, "controller"))

    async def _doze(self) -> None:
        """The idle watch stops it, and it is started again."""
        while True:
            before = self.rows["dozing"]["phase_changed_at"] if "dozing" in self.rows else None
            await self.wish("dozing", "RUNNING")
            await self.until_stands("dozing", "STANDBY", not_since=before)
            self.turns.turned("idle watch")

    async def _be_busy(self, place: RelayedNode) -> None:
        """A connection through its proxy carries data all the time."""
        name = f"busy-{place.name}"
        try:
            async with self.connect(place, name) as connection:
                # Its proxy may have missed the stop and accepted the connection: then retry until it wakes the workspace.
                await self.until_stands(name, "RUNNING", within_s=BUSY_TTL_S)
                # A program ends with its workspace; the echo server does not, so the connection ends here.
                while self.stands(name, "RUNNING"):
                    await type_once(connection)
                    await asyncio.sleep(LOOK_EVERY_S)
            self.slept[place.name] += 1
        except WebSocketException:
            self.lost[place.name] += 1
            raise


def url(place: RelayedNode) -> str:
    return f"http://localhost:{place.port}"


async def type_once(connection: ClientConnection) -> None:
    async with asyncio.timeout(ANSWERS_WITHIN_S):
        await connection.send("hello")
        assert await connection.recv() == "hello"


async def events_of(stream: httpx2.Response) -> AsyncIterator[Mapping[str, Any]]:
    assert stream.status_code < 400 or stream.status_code >= 500, stream.status_code
    if stream.status_code >= 500:
        raise httpx2.HTTPError(f"status {stream.status_code}")
    async for line in stream.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def _for_ever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Restart after every outage."""
    while True:
        with contextlib.suppress(*OUTAGE):
            await work()
        await asyncio.sleep(AFTER_AN_OUTAGE_S)
