"""Cache which workspace has a name, so that the database is not asked for each request.

A row is kept until an event says that it has changed, and the next request reads it again. Events may be lost: if a number is
missing, or the database has assigned a number that did not arrive here, the whole cache is cleared.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from torpor.domain.events import EventMessage
from torpor.domain.names import is_name
from torpor.domain.records import Workspace
from torpor.loops import Loop, run_until_first_ends
from torpor.ports import Feed
from torpor.service.event_subscription import EventSubscription, has_gap
from torpor.store.events import EventStore
from torpor.store.service_store import ServiceStore

log = structlog.get_logger()

# What changes without an event (how long a workspace may be idle) is read again after this time.
HOLDS_FOR_S = 30.0
NOBODY_FOR_S = 5.0
HOLDS = 10_000
POLL_S = 2.0
# If an event arrives while the row is read, it is read again, at most this many times.
READ_AGAIN = 3


@dataclass(frozen=True, slots=True)
class CachedWorkspace:
    workspace: Workspace | None
    read_at: float


class Routes:
    def __init__(
        self,
        store: ServiceStore,
        events: EventStore,
        feed: Feed,
        *,
        on_change: Callable[[str, str], None] = lambda workspace_id, name: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change`: called with id and name of each workspace that must be read again."""
        self._store = store
        self._events = events
        self._subscription = EventSubscription(feed, self._on_event, self.forget_all)
        self._on_change = on_change
        self._now = now
        self._known: dict[str, CachedWorkspace] = {}
        self._names: dict[str, str] = {}
        """The name of each cached workspace, by id."""
        self._reading: dict[str, asyncio.Task[Workspace | None]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._heard = 0
        """The last event before which none is missing."""
        self._newest = 0
        """The newest event at the last poll of the database: at the next poll its message has arrived, or is lost."""

    # ── lookup ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, name: str) -> CachedWorkspace | None:
        """The workspace with this name, if it is cached and fresh; None: it must be read."""
        found = self._known.get(name)
        if found is None:
            return None
        holds_for_s = HOLDS_FOR_S if found.workspace is not None else NOBODY_FOR_S
        return found if self._now() - found.read_at < holds_for_s else None

    async def find(self, name: str, *, at_most_s_old: float = HOLDS_FOR_S) -> Workspace | None:
        """The workspace with this name; a deleted one if there is no other. Concurrent calls share one query."""
        found = self.known(name)
        if found is not None and self._now() - found.read_at < at_most_s_old:
            return found.workspace
        if not is_name(name):
            return None
        workspace = None
        for _ in range(READ_AGAIN):
            reading = self._reading.get(name)
            if reading is None:
                reading = self._reading[name] = asyncio.create_task(self._read(name), name=f"route of {name}")
                reading.add_done_callback(functools.partial(self._has_read, name))
            # The caller that began the query may disconnect; the others still wait for it.
            workspace = await asyncio.shield(reading)
            if name in self._known:
                break
        return workspace

    async def changed(self, workspace_id: str, *, within_s: float) -> bool:
        """Wait at most this long for an event about the workspace; returns whether one came."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        among = self._waiting.setdefault(workspace_id, set())
        among.add(heard)
        try:
            async with asyncio.timeout(within_s):
                await heard
        except TimeoutError:
            return False
        finally:
            among.discard(heard)
            if not among and self._waiting.get(workspace_id) is among:
                del self._waiting[workspace_id]
        return True

    async def _read(self, name: str) -> Workspace | None:
        return await self._store.living(name) or await self._store.by_name(name)

    def _has_read(self, name: str, done: asyncio.Task[Workspace | None]) -> None:
        # An event in the meantime (`forget`) has removed the entry: the row may be older than the event.
        is_fresh = self._reading.get(name) is done
        if is_fresh:
            del self._reading[name]
        if is_fresh and not done.cancelled() and done.exception() is None:
            self._keep(name, done.result())

    def _keep(self, name: str, workspace: Workspace | None) -> None:
        self._drop(name)
        while len(self._known) >= HOLDS:
            self._drop(next(iter(self._known)))
        self._known[name] = CachedWorkspace(workspace, self._now())
        if workspace is not None:
            self._names[workspace.id] = name

    def _drop(self, name: str) -> None:
        dropped = self._known.pop(name, None)
        if dropped is not None and dropped.workspace is not None:
            self._names.pop(dropped.workspace.id, None)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until canceled."""
        await run_until_first_ends(
            Loop("routes", self._look_for_unheard, interval_s=POLL_S).run(),
            self._subscription.listen(name="route-events"),
        )

    def forget(self, workspace_id: str, *names: str) -> None:
        """The workspace has changed, and so has every workspace that has or had one of these names."""
        known_as = self._names.get(workspace_id)
        for name in {known_as, *names} - {None}:
            assert name is not None
            self._drop(name)
            self._reading.pop(name, None)
        for heard in self._waiting.pop(workspace_id, ()):
            if not heard.done():
                heard.set_result(None)
        name = names[0] if names else known_as
        if name:
            # An empty name would find no workspace, as if it were deleted.
            self._on_change(workspace_id, name)

    def forget_all(self) -> None:
        self._reading.clear()
        names = dict(self._names)
        self._known.clear()
        for workspace_id in names.keys() | self._waiting.keys():
            self.forget(workspace_id, *([names[workspace_id]] if workspace_id in names else []))
        self._names.clear()

    def _on_event(self, told: EventMessage, _size: int) -> None:
        is_after_gap = has_gap(told, after=self._heard)
        self._heard = max(self._heard, told.id)
        if is_after_gap:
            self.forget_all()
        else:
            self.forget(told.workspace_id, str(told.body["workspace"].get("name", "")))

    async def _look_for_unheard(self) -> None:
        """Compare with the database: a number that has not arrived since the last poll is lost."""
        newest = await self._events.newest()
        is_first, self._subscription.installation = self._subscription.installation is None, newest.installation
        if is_first or self._newest > self._heard or newest.last_id < self._heard:
            self._heard = newest.last_id
            self.forget_all()
        self._newest = newest.last_id
