"""What does the database know of archives that nobody needs, and what is written about them?

Statements and rows only: which archive is kept is decided in `torpor.domain.retention`. Whoever looks may read; the writes are
the leader's, each in a transaction that asks first whether its term still stands.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from torpor.domain.names import is_id
from torpor.domain.records import ArchiveKey
from torpor.domain.retention import Action, Decision, Holder, Retention, Stored
from torpor.store.database import Database
from torpor.store.leader import require_term
from torpor.store.queries import COLLECTING

ROWS_AT_ONCE = 5_000
HOLDERS_AT_ONCE = 500
GOING_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Compared:
    """The table beside the store's listing."""

    unknown: Sequence[str]
    """In the store, and the table does not know them: never touched."""
    missing: frozenset[str]
    """In the table, and they were not in the store."""


@dataclass(frozen=True, slots=True)
class Held:
    """A workspace with all its archives, as they were at one moment."""

    holder: Holder
    archives: tuple[Stored, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Totals:
    kept: int
    orphans: int
    oldest_proof_s: float | None
    """How long ago the one of those kept was proven that was proven longest ago."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Housekeeping:
    requested_at: datetime | None
    tried_at: datetime | None
    ran_at: datetime | None
    """When the last collection began that came to its end."""
    report: Mapping[str, Any] | None


class CollectingStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    # ── what anybody may read ─────────────────────────────────────────────────────────────────────────────────────────

    async def compare(self, listed: AsyncIterator[ArchiveKey], *, begun_at: datetime) -> Compared:
        """The listing is read to its end first: an archive made since it was begun is neither missing nor unknown."""
        unknown = {str(key) async for key in listed}
        missing: set[str] = set()
        last = ""
        while rows := await self._database.fetch(COLLECTING["known_archives"], last, ROWS_AT_ONCE):
            for row in rows:
                last = row["key"]
                if last in unknown:
                    unknown.discard(last)
                elif row["proven_at"] < begun_at and not row["is_going"]:
                    missing.add(last)
        return Compared(sorted(unknown - await self._made_last(unknown)), frozenset(missing))

    async def _made_last(self, keys: set[str]) -> set[str]:
        workspaces = sorted({one for key in keys if is_id(one := ArchiveKey.parse(key).workspace_id)})
        return {
            row["key"]
            for some in _batches(workspaces, ROWS_AT_ONCE)
            for row in await self._database.fetch(COLLECTING["made_last"], some)
        }

    async def candidates(self, retention: Retention) -> Sequence[str]:
        rows = await self._database.fetch(COLLECTING["candidates"], retention.keep, retention.undelete_grace)
        return [row["id"] for row in rows]

    async def held(self, workspace_ids: Sequence[str], *, missing: frozenset[str]) -> AsyncIterator[Held]:
        """Each of these workspaces as it is just now, without holding anybody up."""
        for some in _batches(workspace_ids, HOLDERS_AT_ONCE):
            async with self._database.transaction() as connection:
                found = await _held(connection, some, missing)
            for held in found:
                yield held

    async def totals(self) -> Totals:
        row = await self._database.fetchrow(COLLECTING["totals"])
        return Totals(row["kept"], row["orphans"], row["oldest_proof_s"], row["read_at"])

    async def housekeeping(self) -> Housekeeping:
        row = await self._database.fetchrow(COLLECTING["housekeeping"])
        return Housekeeping(row["gc_requested_at"], row["gc_tried_at"], row["gc_ran_at"], row["gc_report"])

    # ── what the service writes ───────────────────────────────────────────────────────────────────────────────────────

    async def request(self) -> datetime:
        """An operator wants a collection now; when that was written down."""
        row = await self._database.fetchrow(COLLECTING["request_collection"])
        at: datetime = row["gc_requested_at"]
        return at

    # ── what the leader does ──────────────────────────────────────────────────────────────────────────────────────────

    async def is_due(self, *, every_s: float, retry_s: float) -> bool:
        row = await self._database.fetchrow(COLLECTING["is_due"], timedelta(seconds=every_s), timedelta(seconds=retry_s))
        is_due: bool = row["is_due"]
        return is_due

    async def begin(self, term: int) -> datetime:
        async with self._leading(term) as connection:
            at: datetime = await connection.fetchval(COLLECTING["begin_collection"])
        return at

    @contextlib.asynccontextmanager
    async def holding(self, term: int, workspace_id: str, *, missing: frozenset[str]) -> AsyncIterator["Holding | None"]:
        """The workspace held in a transaction, so that nothing refers to an archive while it is marked.

        None when somebody else holds it just now, or it is gone: the next collection comes by again.
        """
        async with self._leading(term) as connection:
            if await connection.fetchrow(COLLECTING["hold_workspace"], uuid.UUID(workspace_id)) is None:
                yield None
                return
            # Read only now: whoever held the row before us has committed.
            [held] = await _held(connection, [workspace_id], missing)
            yield Holding(held, connection)

    async def going(self, term: int, *, after: str) -> Sequence[str]:
        """The next ones whose removal has begun; asked anew before each handful, so that a deposed leader removes no more."""
        async with self._leading(term) as connection:
            return [row["key"] for row in await connection.fetch(COLLECTING["going"], after, GOING_AT_ONCE)]

    async def forget(self, term: int, keys: Sequence[str]) -> Sequence[int]:
        """Their objects are gone; the sizes that they had."""
        async with self._leading(term) as connection:
            return [row["size_bytes"] for row in await connection.fetch(COLLECTING["forget"], list(keys))]

    async def end(self, term: int, begun_at: datetime, report: Mapping[str, Any]) -> None:
        async with self._leading(term) as connection:
            await connection.execute(COLLECTING["end_collection"], begun_at, dict(report))

    async def skip(self, term: int, report: Mapping[str, Any]) -> None:
        async with self._leading(term) as connection:
            await connection.execute(COLLECTING["skip_collection"], dict(report))

    @contextlib.asynccontextmanager
    async def _leading(self, term: int) -> AsyncIterator[Any]:
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            yield connection


class Holding:
    """One workspace that nobody else changes for the moment."""

    def __init__(self, held: Held, connection: Any) -> None:
        self.held = held
        self._connection = connection

    async def write(self, decisions: Sequence[Decision]) -> None:
        for action, statement in _STATEMENT_FOR.items():
            keys = [decision.archive.key for decision in decisions if decision.action is action]
            if keys:
                await self._connection.execute(COLLECTING[statement], keys)


_STATEMENT_FOR: Mapping[Action, str] = {
    Action.CLEAR: "clear_marks",
    Action.MARK: "mark_orphans",
    Action.REMOVE: "begin_removal",
}


async def _held(connection: Any, workspace_ids: Sequence[str], missing: frozenset[str]) -> list[Held]:
    # Archives first: what comes to point at one of them is seen, whenever it came.
    archives: dict[str, list[Stored]] = {}
    for row in await connection.fetch(COLLECTING["archives_of_holders"], workspace_ids):
        archives.setdefault(row["workspace_id"], []).append(_to_stored(row, missing))
    rows = await connection.fetch(COLLECTING["holders"], workspace_ids)
    return [Held(_to_holder(row), tuple(archives.get(row["id"], ())), row["read_at"]) for row in rows]


def _to_holder(row: Mapping[str, Any]) -> Holder:
    under_way = frozenset(row["under_way"])
    return Holder(
        id=row["id"],
        name=row["name"],
        archive_key=row["archive_key"],
        op_id=row["op_id"],
        under_way=under_way | {row["op_id"]} if row["is_under_way"] else under_way,
        asked_for=row["asked_for"],
        is_in_error=row["is_in_error"],
        deleted_at=row["deleted_at"],
        is_gone=row["is_gone"],
        is_purged=row["is_purged"],
    )


def _to_stored(row: Mapping[str, Any], missing: frozenset[str]) -> Stored:
    return Stored(
        key=row["key"],
        op_id=row["op_id"],
        size_bytes=row["size_bytes"],
        proven_at=row["proven_at"],
        orphan_since=row["orphan_since"],
        removing_since=row["removing_since"],
        is_there=row["key"] not in missing,
    )


def _batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
