"""Which workspace bears a name, without asking the database each time?

A row is kept from the first question on until an event tells that it has changed, and is then read again by whoever asks next.
Events may be lost: a hole in their numbers, or a number that the database has given out and nobody has heard of, makes
everything be forgotten.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from torpor.domain.events import OF_ANY_WORKSPACE, from_message
from torpor.domain.names import is_name
from torpor.domain.records import Workspace
from torpor.loops import Loop, run_until_first_ends
from torpor.ports import Feed
from torpor.store.events import EventStore
from torpor.store.service_store import ServiceStore

log = structlog.get_logger()

# What changes without an event (how long it may be idle) is read again after so long.
HOLDS_FOR_S = 30.0
NOBODY_FOR_S = 5.0
HOLDS = 10_000
POLL_S = 2.0
# Something is heard of it while it is read: it is read again, though not for ever.
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
        """`on_change`: called with the id and the name of each that is read again from now on."""
        self._store = store
        self._events = events
        self._feed = feed
        self._on_change = on_change
        self._now = now
        self._known: dict[str, CachedWorkspace] = {}
        self._names: dict[str, str] = {}
        """Of each id that is known, the name it is known by."""
        self._reading: dict[str, asyncio.Task[Workspace | None]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._installation: str | None = None
        self._heard = 0
        """The last event, and everything before it."""
        self._newest = 0
        """What was the last one when the database was asked: by the next time its message has arrived, or never will."""

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, name: str) -> CachedWorkspace | None:
        """What bears this name, as far as that is known and fresh; None: it must be asked for."""
        found = self._known.get(name)
        if found is None:
            return None
        holds_for_s = HOLDS_FOR_S if found.workspace is not None else NOBODY_FOR_S
        return found if self._now() - found.read_at < holds_for_s else None

    async def find(self, name: str, *, at_most_s_old: float = HOLDS_FOR_S) -> Workspace | None:
        """What bears this name; a deleted one if no other does. Many who ask at once ask once."""
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
            # Whoever began it may hang up; the others still want to know.
            workspace = await asyncio.shield(reading)
            if name in self._known:
                break
        return workspace

    async def changed(self, workspace_id: str, *, within_s: float) -> bool:
        """Waits until something is heard of it, for so long at most; whether something was."""
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
        # Whatever was heard of it meanwhile (`forget`) has taken it out: it may be older than that.
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

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until cancelled."""
        await run_until_first_ends(
            Loop("routes", self._look_for_unheard, interval_s=POLL_S).run(),
            self._feed.listen(OF_ANY_WORKSPACE, self._on_message, self.forget_all, name="route-events"),
        )

    def forget(self, workspace_id: str, *names: str) -> None:
        """It has changed, and so has whatever bears or bore one of these names."""
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
            # By no name nothing would be found, as if it were gone.
            self._on_change(workspace_id, name)

    def forget_all(self) -> None:
        self._reading.clear()
        names = dict(self._names)
        self._known.clear()
        for workspace_id in names.keys() | self._waiting.keys():
            self.forget(workspace_id, *([names[workspace_id]] if workspace_id in names else []))
        self._names.clear()

    def _on_message(self, _channel: str, message: bytes) -> None:
        if self._installation is None:
            # Whose it is cannot be told yet; nothing is kept yet that it could be about.
            self.forget_all()
            return
        try:
            told = from_message(message, self._installation)
        except ValueError:
            log.warning("event_not_understood", length=len(message))
            return
        if told is None:
            return
        has_hole = told.after > self._heard
        self._heard = max(self._heard, told.id)
        if has_hole:
            self.forget_all()
        else:
            self.forget(told.workspace_id, str(told.body["workspace"].get("name", "")))

    async def _look_for_unheard(self) -> None:
        """Whether the database has given out numbers that nobody here has heard of in all this time."""
        newest = await self._events.newest()
        is_first, self._installation = self._installation is None, newest.installation
        if is_first or self._newest > self._heard or newest.last_id < self._heard:
            self._heard = newest.last_id
            self.forget_all()
        self._newest = newest.last_id
