"""What changed, in which order, and for how long is it kept?"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from torpor.domain.events import Event, EventKind, EventMessage, event_message
from torpor.domain.records import Workspace
from torpor.store.database import Database
from torpor.store.leader_lock import require_term
from torpor.store.queries import EVENTS
from torpor.store.rows import to_workspace

log = structlog.get_logger()

# So many without an id, and something is wrong: nobody leads, or the leader does not keep up.
MANY_UNNUMBERED = 10_000


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What was numbered in one transaction."""

    installation: str
    """Whose events they are."""
    events: Sequence[Event]
    is_full: bool
    """There may be more."""


class Outbox:
    """The leader's side, in the role of a controller: everything asks first whether the term still stands."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def number(self, term: int, *, limit: int) -> EventBatch:
        """Give what was committed since its ids; Deposed when somebody else leads."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            installation = await connection.fetchval(EVENTS["hold_counter"])
            rows = await connection.fetch(EVENTS["number_events"], limit)
        return EventBatch(str(installation), _readable(rows), len(rows) == limit)

    async def prune(self, term: int, *, older_than_s: float, limit: int) -> int:
        """Forget the oldest, at most so many; how many they were."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            pruned: int = await connection.fetchval(EVENTS["prune_events"], older_than_s, limit)
        return pruned

    async def warn_of_many(self) -> None:
        await _warn_of_many(self._database)


@dataclass(frozen=True, slots=True)
class EventLogHead:
    last_id: int
    pruned_id: int
    """Nothing up to this one is kept any more."""
    at: datetime
    installation: str


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Whose events: of one workspace, of what one user owns or is granted, or all."""

    workspace_id: str | None = None
    owner_id: str | None = None
    username: str | None = None
    """Who looks, where that is not everybody's to see: grants go by names."""


ALL = EventFilter()


@dataclass(frozen=True, slots=True)
class EventPage:
    """What came after an event, as far as one page holds it."""

    events: Sequence[Event]
    reached: int
    """Nothing up to this one is left to be read."""
    last_id: int
    pruned_id: int

    def is_lost_to(self, event_id: int) -> bool:
        """Whether something after this event is not kept any more, or it is from another history of this database."""
        return not self.pruned_id <= event_id <= self.last_id

    def takes_from(self, sight: EventFilter) -> bool:
        """Whether something of it is no longer to be seen by whoever sees like this: what they know is too much."""
        return any(sight.username in event.unshared for event in self.events)


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """How a workspace stands, for somebody who is told of events from some id on."""

    workspace: Workspace
    seq: int
    """Of those events the ones up to this are in it; 0: none of them."""


@dataclass(frozen=True, slots=True)
class CurrentSnapshot:
    shown: WorkspaceSnapshot
    last_id: int
    """Everything up to this event is in it."""
    at: datetime


class EventStore:
    """The readers' side. Each verb takes a connection for one statement only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest(self) -> EventLogHead:
        row = await self._database.fetchrow(EVENTS["newest_event"])
        return EventLogHead(row["last_id"], row["pruned_id"], row["at"], str(row["installation"]))

    async def after(self, event_id: int, sight: EventFilter = ALL, *, limit: int) -> EventPage:
        """In one statement, so that nothing can be pruned between what is read and what is said to be kept."""
        rows = await self._database.fetch(
            EVENTS["events_after"], event_id, _uuid(sight.workspace_id), _uuid(sight.owner_id), limit, sight.username
        )
        last_id, pruned_id = rows[0]["last_id"], rows[0]["pruned_id"]
        found = [row for row in rows if row["event_id"] is not None]
        reached = found[-1]["event_id"] if len(found) == limit else last_id
        return EventPage(_readable(found), reached, last_id, pruned_id)

    async def standing(self, workspace_id: str) -> CurrentSnapshot | None:
        row = await self._database.fetchrow(EVENTS["workspace_now"], uuid.UUID(workspace_id))
        return CurrentSnapshot(_shown(row), row["last_id"], row["at"]) if row else None

    async def standing_all(
        self, sight: EventFilter, event_id: int, *, after: Workspace | None, limit: int
    ) -> Sequence[WorkspaceSnapshot]:
        """A page of them, for somebody who is told of what comes after this event; `after` is the last of the page before."""
        since, last = (after.created_at, uuid.UUID(after.id)) if after else (None, None)
        rows = await self._database.fetch(
            EVENTS["workspaces_now"], event_id, _uuid(sight.owner_id), since, last, limit, sight.username
        )
        return [_shown(row) for row in rows]

    async def warn_of_many(self) -> None:
        await _warn_of_many(self._database)


def event_messages(events: Iterable[Event], encode: Callable[[Workspace], Mapping[str, Any]]) -> Iterator[EventMessage]:
    """Each as it is told; one that cannot be told must not hold up the others for ever."""
    for event in events:
        try:
            told = event_message(event, encode(event.workspace))
        except Exception:
            log.exception("event_not_told", event_id=event.id, workspace=event.workspace.id)
        else:
            yield told


async def _warn_of_many(database: Database) -> None:
    unnumbered = (await database.fetchrow(EVENTS["count_unnumbered"], MANY_UNNUMBERED + 1))["count"]
    if unnumbered > MANY_UNNUMBERED:
        log.warning("events_unnumbered", more_than=MANY_UNNUMBERED)


def _shown(row: Mapping[str, Any]) -> WorkspaceSnapshot:
    return WorkspaceSnapshot(to_workspace(row), row["seq"])


def _uuid(text: str | None) -> uuid.UUID | None:
    return uuid.UUID(text) if text else None


def _readable(rows: Iterable[Mapping[str, Any]]) -> Sequence[Event]:
    """One that this code does not understand (a newer version wrote it) must not hold up the others for ever."""
    events = []
    commands: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in rows:
        try:
            # Kept once for the many events of one workspace: it may be long, and slow readers have whole pages waiting.
            command = tuple(row["command"])
            workspace = to_workspace({**row, "command": commands.setdefault(command, command)})
            kind, owner_id = EventKind(row["kind"]), str(row["owner_id"])
            unshared = frozenset(map(str, row["unshared"] or ()))
            events.append(Event(row["event_id"], row["seq"], kind, row["at"], owner_id, workspace, unshared))
        except (KeyError, TypeError, ValueError):
            log.exception("event_not_understood", event_id=row["event_id"], workspace=str(row["workspace_id"]))
    return events
