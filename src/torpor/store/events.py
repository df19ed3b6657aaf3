"""What changed, in which order, and for how long is it kept?"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from torpor.domain.events import Event, EventKind
from torpor.domain.records import Workspace
from torpor.store.database import Database
from torpor.store.leader import require_term
from torpor.store.queries import EVENTS
from torpor.store.rows import to_workspace

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Batch:
    """What was numbered in one transaction."""

    events: Sequence[Event]
    is_full: bool
    """There may be more."""


class Outbox:
    """The leader's side, in the role of a controller: everything asks first whether the term still stands."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def number(self, term: int, *, limit: int) -> Batch:
        """Give what was committed since its ids; Deposed when somebody else leads."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            await connection.fetchval(EVENTS["hold_counter"])
            rows = await connection.fetch(EVENTS["number_events"], limit)
        return Batch(_readable(rows), len(rows) == limit)

    async def prune(self, term: int, *, older_than_s: float, limit: int) -> int:
        """Forget the oldest, at most so many; how many they were."""
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            pruned: int = await connection.fetchval(EVENTS["prune_events"], older_than_s, limit)
        return pruned


@dataclass(frozen=True, slots=True)
class Newest:
    last_id: int
    pruned_id: int
    """Nothing up to this one is kept any more."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Later:
    """What came after an event, as far as one page holds it."""

    events: Sequence[Event]
    reached: int
    """Nothing up to this one is left to be read."""
    last_id: int
    pruned_id: int


@dataclass(frozen=True, slots=True)
class Standing:
    workspace: Workspace
    last_id: int
    """Everything up to this event is in it."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Sight:
    """Whose events: of one workspace, of one owner, or all."""

    workspace_id: str | None = None
    owner_id: str | None = None


ALL = Sight()


class EventStore:
    """The readers' side. Each verb takes a connection for one statement only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest(self) -> Newest:
        row = await self._database.fetchrow(EVENTS["newest_event"])
        return Newest(row["last_id"], row["pruned_id"], row["at"])

    async def after(self, event_id: int, sight: Sight = ALL, *, limit: int) -> Later:
        """In one statement, so that nothing can be pruned between what is read and what is said to be kept."""
        rows = await self._database.fetch(
            EVENTS["events_after"], event_id, _uuid(sight.workspace_id), _uuid(sight.owner_id), limit
        )
        last_id, pruned_id = rows[0]["last_id"], rows[0]["pruned_id"]
        found = [row for row in rows if row["event_id"] is not None]
        reached = found[-1]["event_id"] if len(found) == limit else last_id
        return Later(_readable(found), reached, last_id, pruned_id)

    async def standing(self, workspace_id: str) -> Standing | None:
        row = await self._database.fetchrow(EVENTS["workspace_now"], uuid.UUID(workspace_id))
        return Standing(to_workspace(row), row["last_id"], row["at"]) if row else None


def _uuid(text: str | None) -> uuid.UUID | None:
    return uuid.UUID(text) if text else None


def _readable(rows: Iterable[Mapping[str, Any]]) -> Sequence[Event]:
    """One that this code does not understand (a newer version wrote it) must not hold up the others for ever."""
    events = []
    for row in rows:
        try:
            events.append(Event(row["event_id"], EventKind(row["kind"]), row["at"], str(row["owner_id"]), to_workspace(row)))
        except (KeyError, TypeError, ValueError):
            log.exception("event_not_understood", event_id=row["event_id"], workspace=str(row["id"]))
    return events
