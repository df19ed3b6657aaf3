"""The effect of each loop, checked in every process, and of each duty, checked in one leader after the other."""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
from websockets.exceptions import InvalidStatus

from tests.e2e.turns import BUSY_TTL_S, LOOK_EVERY_S, OUTAGE, Watch, type_once, url
from tests.support.relayed_nodes import RelayedNode
from tests.support.waiting import until

EFFECT_WITHIN_S = 60.0
HEARD_WITHIN_S = 20.0
"""Less than the time after which a process asks the database again without an event (30 s)."""
CENSUS_WITHIN_S = 100.0
"""It is taken every 60 s."""
AWAKE_FOR_S = 3.0 * BUSY_TTL_S
TURNS_WITHIN_S = 90.0
REACHED, NOT_FOUND = 101, 404
NO_WEBSOCKET = 426
"""The response of the program to a plain request."""


class Effects:
    def __init__(self, watch: Watch, client: httpx2.AsyncClient) -> None:
        self.took_s: dict[str, float] = {}
        """The longest time of each effect."""
        self._watch = watch
        self._places = watch.places
        self._client = client
        self._numbers = itertools.count()

    async def in_every_process_and_leader(self, *, with_census: bool) -> None:
        """Check all, kill the leader, and check all again in the remaining processes, down to the last one."""
        while True:
            leader = await self._leader()
            async with asyncio.TaskGroup() as checks:
                for place in self._places.all:
                    for check in (self._controls, self._keeps_awake, self._follows_routes, self._hears_of_revocations):
                        checks.create_task(check(place))
                checks.create_task(self._turn())
                if with_census:
                    checks.create_task(self._counts(leader))
            if len(self._places.all) == 1:
                break
            self._watch.turns.forget(leader)
            await self._places.kill(leader)
        broken = [dict(row) for row in self._watch.rows.values() if row["error_info"] is not None]
        assert not broken, f"workspaces in error: {broken}"

    # ── in the leader ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _leader(self) -> RelayedNode:
        """The process that claims to lead, once one does."""

        async def leader() -> RelayedNode | None:
            for place in self._places.all:
                if await place.node.leads():
                    return place
            return None

        found: RelayedNode = await self._seen("one process leads", EFFECT_WITHIN_S, leader)
        return found

    async def _turn(self) -> None:
        """Idle watch, collector, events, heartbeats and leases."""
        self._took("every loop turned twice more", await self._watch.until_all_turn(times=2, within_s=TURNS_WITHIN_S))

    async def _counts(self, leader: RelayedNode) -> None:
        """The metrics count every workspace, including a new one."""
        await self._watch.create(self._name("counted"))

        async def counts_all() -> bool:
            metrics = (await self._client.get(f"{url(leader)}/metrics")).text
            counts = re.findall(r'^torpor_workspaces{phase="\w+"} (\S+)', metrics, re.MULTILINE)
            return sum(int(float(count)) for count in counts) >= len(self._watch.rows)

        await self._seen("the census counts a new workspace", CENSUS_WITHIN_S, counts_all)

    # ── in each process ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _controls(self, place: RelayedNode) -> None:
        """A new workspace of its shards runs."""
        name = self._name("new")
        await self._watch.create_at(place, name)
        await self._seen("a new workspace runs", EFFECT_WITHIN_S, lambda: self._watch.stands(name, "RUNNING"))

    async def _keeps_awake(self, place: RelayedNode) -> None:
        """Neither a workspace with a connection nor one with requests is stopped, although their TTLs pass."""
        requested = self._name("requested")
        await self._watch.create(requested, ttl_s=BUSY_TTL_S)
        names = (requested, f"busy-{place.name}")

        async def all_run() -> bool:
            return await self._answers(place, requested) and all(self._watch.stands(name, "RUNNING") for name in names)

        await self._seen("workspaces in use run", EFFECT_WITHIN_S, all_run)
        since = {name: self._watch.rows[name]["phase_changed_at"] for name in names}
        until = time.monotonic() + AWAKE_FOR_S
        while time.monotonic() < until:
            assert await self._answers(place, requested), f"{requested} does not answer through {place.name}"
            now = {name: self._watch.rows[name]["phase_changed_at"] for name in names}
            assert now == since, f"a workspace in use was put to sleep: {[dict(self._watch.rows[name]) for name in names]}"
            await asyncio.sleep(0.3)

    async def _follows_routes(self, place: RelayedNode) -> None:
        """A renamed workspace is no longer found by its old name, and is found by its new one at once."""
        old, new = self._name("old"), self._name("new-name")
        await self._watch.create(old)
        await self._seen("a workspace is reached by its name", EFFECT_WITHIN_S, lambda: self._is_reached(place, old))
        await self._watch.ask_any("PATCH", f"/workspaces/{old}", {"name": new})

        async def follows() -> bool:
            return await self._status(place, old) == NOT_FOUND and await self._is_reached(place, new)

        await self._seen("a rename reaches the proxy", HEARD_WITHIN_S, follows)

    async def _hears_of_revocations(self, place: RelayedNode) -> None:
        """The connections of a revoked token end: one at the proxy and a stream at the API."""
        name = self._name("revoked")
        await self._watch.create(name)
        made = await self._watch.ask_any("POST", "/tokens", {"label": name, "scopes": ["read", "use"]})
        token = made["token"]
        await self._seen("a new token opens a workspace", EFFECT_WITHIN_S, lambda: self._is_reached(place, name, token))
        async with self._watch.connect(place, name, token) as connection, self._watch.stream(place, token) as stream:
            await type_once(connection)
            await self._watch.ask_any("DELETE", f"/tokens/{made['id']}")
            async with self._within("a revocation ends a connection and a stream", HEARD_WITHIN_S):
                await connection.wait_closed()
                async for _ in stream.aiter_lines():
                    pass

    # ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    async def _answers(self, place: RelayedNode, name: str) -> bool:
        """Whether the program in this workspace responds through the proxy of this process."""
        headers = {**self._watch.headers(), "Host": f"{name}.localhost:{place.port}"}
        try:
            return (await self._client.get(f"{url(place)}/", headers=headers)).status_code == NO_WEBSOCKET
        except OUTAGE:
            return False

    async def _is_reached(self, place: RelayedNode, name: str, token: str | None = None) -> bool:
        return await self._status(place, name, token) == REACHED

    async def _status(self, place: RelayedNode, name: str, token: str | None = None) -> int:
        """The status of this process's proxy for a WebSocket to this workspace; 0 without a response."""
        try:
            async with self._watch.connect(place, name, token) as connection:
                await type_once(connection)
                return REACHED
        except InvalidStatus as refused:
            return refused.response.status_code
        except OUTAGE:
            return 0

    async def _seen(self, effect: str, within_s: float, condition: Callable[[], Any]) -> Any:
        async with self._within(effect, within_s):
            return await until(condition, within_s=within_s, every_s=LOOK_EVERY_S)

    @contextlib.asynccontextmanager
    async def _within(self, effect: str, seconds: float) -> AsyncIterator[None]:
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s: {effect}") from None
        self._took(effect, time.monotonic() - began)

    def _took(self, effect: str, seconds: float) -> None:
        self.took_s[effect] = max(self.took_s.get(effect, 0.0), seconds)
