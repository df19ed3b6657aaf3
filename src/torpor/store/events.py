"""Number the changes of workspaces, read them as events, and remove old ones."""

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

# This many changes without an id are a fault: no controller leads, or the leader is too slow.
MANY_UNNUMBERED = 10_000


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events that got their ids in one transaction."""

    installation: str
    """The installation that they belong to."""
    events: Sequence[Event]
    is_full: bool
    """There may be more."""


class Outbox:
    """What the leader does, in the role of a controller. Each method checks first that the term is still current."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def number(self, term: int, *, limit: int) -> EventBatch:
        """Give ids to new committed changes; Deposed when another controller leads."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            installation = await connection.fetchval(EVENTS["hold_counter"])
            rows = await connection.fetch(EVENTS["number_events"], limit)
        return EventBatch(str(installation), _readable(rows), len(rows) == limit)

    async def prune(self, term: int, *, older_than_s: float, limit: int) -> int:
        """Remove the oldest events, at most `limit`; return how many."""
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
    """Events up to this one are no longer stored."""
    at: datetime
    installation: str


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events: of one workspace, of the workspaces that one user owns or that are shared with them, or all."""

    workspace_id: str | None = None
    owner_id: str | None = None
    username: str | None = None
    """The reader, if not all events are visible to them: shares are by user name."""


ALL = EventFilter()


@dataclass(frozen=True, slots=True)
class EventPage:
    """One page of the events after an event."""

    events: Sequence[Event]
    reached: int
    """This page covers every event up to this one."""
    last_id: int
    pruned_id: int

    def is_lost_to(self, event_id: int) -> bool:
        """Whether events after this one are no longer stored, or it belongs to another history of this database."""
        return not self.pruned_id <= event_id <= self.last_id

    def takes_from(self, sight: EventFilter) -> bool:
        """Whether a workspace in it is no longer shared with this reader, so that the reader must forget it."""
        return any(sight.username in event.unshared for event in self.events)


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """A workspace, for a reader that gets the events after some id."""

    workspace: Workspace
    seq: int
    """It includes those events up to this one; 0: none of them."""


@dataclass(frozen=True, slots=True)
class CurrentSnapshot:
    shown: WorkspaceSnapshot
    last_id: int
    """It includes every event up to this one."""
    at: datetime


class EventStore:
    """What readers of events need. Each method uses a connection for one statement only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest(self) -> EventLogHead:
        row = await self._database.fetchrow(EVENTS["newest_event"])
        return EventLogHead(row["last_id"], row["pruned_id"], row["at"], str(row["installation"]))

    async def after(self, event_id: int, sight: EventFilter = ALL, *, limit: int) -> EventPage:
        """One statement, so that no event is pruned between reading the events and reading the counter."""
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
        """A page of workspaces, for a reader that gets the events after this id; `after` is the last one of the page before."""
        since, last = (after.created_at, uuid.UUID(after.id)) if after else (None, None)
        rows = await self._database.fetch(
            EVENTS["workspaces_now"], event_id, _uuid(sight.owner_id), since, last, limit, sight.username
        )
        return [_shown(row) for row in rows]

    async def warn_of_many(self) -> None:
        await _warn_of_many(self._database)


def event_messages(events: Iterable[Event], encode: Callable[[Workspace], Mapping[str, Any]]) -> Iterator[EventMessage]:
    """Encode each event. One that cannot be encoded is skipped, so that it does not block the others."""
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
    """Skip an event that this code does not understand (a newer version wrote it), so that it does not block the others."""
    events = []
    commands: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in rows:
        try:
            # One copy for the many events of a workspace: it may be long, and whole pages wait for slow readers.
            command = tuple(row["command"])
            workspace = to_workspace({**row, "command": commands.setdefault(command, command)})
            kind, owner_id = EventKind(row["kind"]), str(row["owner_id"])
            unshared = frozenset(map(str, row["unshared"] or ()))
            events.append(Event(row["event_id"], row["seq"], kind, row["at"], owner_id, workspace, unshared))
        except (KeyError, TypeError, ValueError):
            log.exception("event_not_understood", event_id=row["event_id"], workspace=str(row["workspace_id"]))
    return events
