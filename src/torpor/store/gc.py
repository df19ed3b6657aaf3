"""Read and write what garbage collection of archives needs.

Statements and rows only: `torpor.domain.retention` decides which archives are kept. Every role can read; only the leader
writes, in transactions that first check that its term is still current.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from torpor.domain.names import is_id, pack_op_id
from torpor.domain.pack_retention import PackId
from torpor.domain.records import ArchiveKey
from torpor.domain.retention import Action, ArchiveDecision, GcArchive, GcPolicy, GcWorkspace, Retention
from torpor.ports import ListedArchive, ListedPack
from torpor.store.database import Database
from torpor.store.leader_lock import require_term
from torpor.store.queries import GC, PACK_GC

ROWS_AT_ONCE = 5_000
HOLDERS_AT_ONCE = 500
GOING_AT_ONCE = 32
NO_PACK = PackId("00000000-0000-0000-0000-000000000000", "")
"""Before all packs."""


@dataclass(frozen=True, slots=True)
class PackComparison:
    """The table of packs compared with the store's listing, each pack with its size."""

    expected: int = 0
    """How many packs must be in the store."""
    missing: Mapping[PackId, int] = field(default_factory=dict)
    """Of those, the ones that are missing or have another size."""
    unknown: Mapping[PackId, int] = field(default_factory=dict)
    """Packs in the store of unknown origin: never removed."""
    left_over: Mapping[PackId, int] = field(default_factory=dict)
    """Packs in the store, but not in the table, left behind by an operation that has ended."""
    parts: frozenset[PackId] = frozenset()
    """Of those, the ones of which only a part was written, so that the store has no object with this name."""


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """The tables compared with the store's listing."""

    expected: int = 0
    """How many archives must be in the store."""
    missing: frozenset[str] = frozenset()
    """Of those, the ones that are missing or incomplete."""
    unknown: Sequence[str] = ()
    """Archives in the store of unknown origin: never removed."""
    left_over: Sequence[str] = ()
    """Archives in the store, but not in the table, left behind by an operation that has ended."""
    packs: PackComparison = field(default_factory=PackComparison)

    @property
    def out_of_date(self) -> frozenset[str]:
        """Workspaces with unknown objects: their rows may be older than the store."""
        of_archives = {ArchiveKey.parse(key).workspace_id for key in self.unknown}
        return frozenset(of_archives | {pack.workspace_id for pack in self.packs.unknown})


@dataclass(frozen=True, slots=True)
class WorkspaceArchives:
    """A workspace with all its archives at one moment."""

    holder: GcWorkspace
    archives: tuple[GcArchive, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class ArchiveTotals:
    kept: int
    orphans: int
    oldest_proof_s: float | None
    """The age of the oldest proof among the kept archives."""
    at: datetime


@dataclass(frozen=True, slots=True)
class GcStatus:
    requested_at: datetime | None
    tried_at: datetime | None
    ran_at: datetime | None
    """When the last complete collection began."""
    ended_at: datetime | None
    """When it ended."""
    report: Mapping[str, Any] | None
    skipped: Mapping[str, Any] | None
    """The result of the last collection, if it was not completed."""
    terms: GcPolicy | None
    """The policy of the leader; None before the first collection."""
    read_at: datetime


class GcStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def compare(self, listed: AsyncIterator[ListedArchive | ListedPack], *, begun_at: datetime) -> StoreComparison:
        """Reads the whole listing first, so that an archive made after its start counts as known."""
        is_whole: dict[str, bool] = {}
        packs: dict[PackId, int] = {}
        parts: dict[PackId, int] = {}
        async for found in listed:
            if isinstance(found, ListedPack):
                (packs if found.is_whole else parts)[PackId(found.workspace_id, found.name)] = found.size_bytes
            else:
                is_whole[str(found.key)] = found.is_whole
        unknown = set(is_whole)
        missing: set[str] = set()
        expected, last = 0, ""
        while rows := await self._database.fetch(GC["known_archives"], last, ROWS_AT_ONCE, begun_at):
            last = rows[-1]["key"]
            unknown.difference_update(row["key"] for row in rows)
            keys = [row["key"] for row in rows if row["is_expected"]]
            expected += len(keys)
            missing.update(key for key in keys if not is_whole.get(key, False))
        unknown -= await self._made_last(unknown)
        left_over = await self._left_over(unknown)
        unknown -= left_over
        of_packs = await self._compare_packs(packs, parts, begun_at=begun_at)
        return StoreComparison(expected, frozenset(missing), sorted(unknown), sorted(left_over), of_packs)

    async def _compare_packs(
        self, listed: Mapping[PackId, int], parts: Mapping[PackId, int], *, begun_at: datetime
    ) -> PackComparison:
        unknown = {**parts, **listed}
        missing: dict[PackId, int] = {}
        expected, last = 0, NO_PACK
        while rows := await self._database.fetch(
            PACK_GC["known_packs"], uuid.UUID(last.workspace_id), last.name, ROWS_AT_ONCE, begun_at
        ):
            for row in rows:
                last = PackId(row["workspace_id"], row["name"])
                unknown.pop(last, None)
                if row["is_expected"]:
                    expected += 1
                    if listed.get(last) != row["size_bytes"]:
                        missing[last] = row["size_bytes"]
        made_by = {pack: f"{pack.workspace_id}/{pack_op_id(pack.name)}" for pack in unknown}
        expected_later = await self._made_last(set(made_by.values()))
        expected_later |= await self._operations("operations_of_copies", set(made_by.values()))
        left = await self._operations("operations_that_left_packs", set(made_by.values()) - expected_later)
        return PackComparison(
            expected,
            missing,
            {pack: size for pack, size in unknown.items() if made_by[pack] not in expected_later | left and pack in listed},
            {pack: size for pack, size in unknown.items() if made_by[pack] in left},
            frozenset(pack for pack in unknown if made_by[pack] in left and pack not in listed),
        )

    async def _operations(self, statement: str, keys: set[str]) -> set[str]:
        """Those of these operations (as keys of archives) that the statement finds."""
        return {
            f"{row['workspace_id']}/{row['op_id']}"
            for some in batches(_ours(keys), ROWS_AT_ONCE)
            for row in await self._database.fetch(PACK_GC[statement], *_columns(some))
        }

    async def _made_last(self, keys: set[str]) -> set[str]:
        workspaces = sorted({key.workspace_id for key in _ours(keys)})
        return {
            row["key"]
            for some in batches(workspaces, ROWS_AT_ONCE)
            for row in await self._database.fetch(GC["made_last"], some)
        }

    async def _left_over(self, keys: set[str]) -> set[str]:
        return {
            row["key"]
            for some in batches(_ours(keys), ROWS_AT_ONCE)
            for row in await self._database.fetch(GC["left_over"], *_columns(some))
        }

    async def held_back_at(self) -> Sequence[str]:
        """Providers where no home is changed, because too many homes disappeared there at once."""
        return [row["provider"] for row in await self._database.fetch(GC["held_back_at"])]

    async def candidates(self, retention: Retention) -> Sequence[str]:
        rows = await self._database.fetch(GC["candidates"], retention.keep, retention.undelete_grace)
        return [row["id"] for row in rows]

    async def held(self, workspace_ids: Sequence[str], compared: StoreComparison) -> AsyncIterator[WorkspaceArchives]:
        """Each of these workspaces as it is now, without locks."""
        for some in batches(workspace_ids, HOLDERS_AT_ONCE):
            async with self._database.transaction() as connection:
                found = await _held(connection, some, compared)
            for held in found:
                yield held

    async def totals(self) -> ArchiveTotals:
        row = await self._database.fetchrow(GC["totals"])
        return ArchiveTotals(row["kept"], row["orphans"], row["oldest_proof_s"], row["read_at"])

    async def housekeeping(self) -> GcStatus:
        row = await self._database.fetchrow(GC["housekeeping"])
        return GcStatus(
            requested_at=row["gc_requested_at"],
            tried_at=row["gc_tried_at"],
            ran_at=row["gc_ran_at"],
            ended_at=row["gc_ended_at"],
            report=row["gc_report"],
            skipped=row["gc_skipped"],
            terms=_to_terms(row["gc_terms"]),
            read_at=row["read_at"],
        )

    # ── what the service writes ───────────────────────────────────────────────────────────────────────────────────────

    async def request(self) -> datetime:
        """Request a collection; return when that was stored."""
        row = await self._database.fetchrow(GC["request_collection"])
        at: datetime = row["gc_requested_at"]
        return at

    # ── what a controller writes ──────────────────────────────────────────────────────────────────────────────────────

    async def remember_store(self, identity: str) -> str:
        """The archive store of this database: this one, if none was stored before."""
        known: str = (await self._database.fetchrow(GC["remember_store"], identity))["archive_store"]
        return known

    # ── what the leader does ──────────────────────────────────────────────────────────────────────────────────────────

    async def is_due(self, *, every_s: float, retry_s: float) -> bool:
        row = await self._database.fetchrow(GC["is_due"], timedelta(seconds=every_s), timedelta(seconds=retry_s))
        is_due: bool = row["is_due"]
        return is_due

    async def forget_deleted(self, term: int, *, deleted_for_s: float) -> None:
        """Remove the secrets and the logs of workspaces that can no longer be undeleted."""
        async with self._leading(term) as connection:
            await connection.execute(GC["forget_secrets"], deleted_for_s)
            await connection.execute(GC["forget_logs"], deleted_for_s)

    async def begin(self, term: int, terms: GcPolicy) -> datetime:
        async with self._leading(term) as connection:
            at: datetime = await connection.fetchval(GC["begin_collection"], _from_terms(terms))
        return at

    @contextlib.asynccontextmanager
    async def holding(
        self, term: int, workspace_ids: Collection[str], compared: StoreComparison
    ) -> AsyncIterator["LockedWorkspaces"]:
        """Lock these workspaces in a transaction, so that no reference to an archive is added while it is marked or removed.

        Workspaces that are gone or locked by others are left out until the next collection.
        """
        async with self._leading(term) as connection:
            ids = [uuid.UUID(one) for one in workspace_ids]
            rows = await connection.fetch(GC["hold_workspaces"], ids)
            yield LockedWorkspaces([row["id"] for row in rows], compared, connection)

    async def going(self, term: int, *, after: str) -> Sequence[str]:
        """The next archives whose removal has begun and is not complete; Deposed when another controller leads."""
        async with self._leading(term) as connection:
            return [row["key"] for row in await connection.fetch(GC["going"], after, GOING_AT_ONCE)]

    async def forget(self, term: int, keys: Sequence[str]) -> Sequence[int]:
        """Remove the rows of archives whose objects are gone; return their sizes, 0 if unknown."""
        async with self._leading(term) as connection:
            return [row["size_bytes"] or 0 for row in await connection.fetch(GC["forget"], list(keys))]

    async def end(self, term: int, begun_at: datetime, report: Mapping[str, Any]) -> None:
        async with self._leading(term) as connection:
            await connection.execute(GC["end_collection"], begun_at, dict(report))

    async def skip(self, term: int, report: Mapping[str, Any]) -> None:
        async with self._leading(term) as connection:
            await connection.execute(GC["skip_collection"], dict(report))

    @contextlib.asynccontextmanager
    async def _leading(self, term: int) -> AsyncIterator[Any]:
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            yield connection


class LockedWorkspaces:
    """Workspaces whose rows are locked."""

    def __init__(self, workspace_ids: Sequence[str], compared: StoreComparison, connection: Any) -> None:
        self._workspace_ids = workspace_ids
        self._compared = compared
        self._connection = connection

    async def held(self) -> Sequence[WorkspaceArchives]:
        """Their state under the lock: earlier transactions have committed."""
        return await _held(self._connection, self._workspace_ids, self._compared)

    async def take_in(self, keys: Sequence[str]) -> None:
        """Add the objects with these keys to the table, if they are still left over."""
        ours = [key for key in _ours(keys) if key.workspace_id in self._workspace_ids]
        await self._connection.execute(GC["take_in_left_over"], *_columns(ours))

    async def write(self, decisions: Sequence[ArchiveDecision]) -> None:
        for action, statement in _STATEMENT_FOR.items():
            keys = [decision.archive.key for decision in decisions if decision.action is action]
            if keys:
                await self._connection.execute(GC[statement], keys)


_STATEMENT_FOR: Mapping[Action, str] = {
    Action.CLEAR: "clear_marks",
    Action.MARK: "mark_orphans",
    Action.REMOVE: "begin_removal",
}


async def _held(connection: Any, workspace_ids: Sequence[str], compared: StoreComparison) -> list[WorkspaceArchives]:
    # Archives first, so that a reference to one of them that is added meanwhile is seen.
    archives: dict[str, list[GcArchive]] = {}
    for row in await connection.fetch(GC["archives_of_holders"], workspace_ids):
        archives.setdefault(row["workspace_id"], []).append(_to_stored(row, compared))
    rows = await connection.fetch(GC["holders"], workspace_ids)
    return [WorkspaceArchives(to_holder(row, compared), tuple(archives.get(row["id"], ())), row["read_at"]) for row in rows]


def to_holder(row: Mapping[str, Any], compared: StoreComparison) -> GcWorkspace:
    under_way = frozenset(row["under_way"])
    return GcWorkspace(
        id=row["id"],
        name=row["name"],
        archive_key=row["archive_key"],
        op_id=row["op_id"],
        under_way=under_way | {row["op_id"]} if row["is_under_way"] else under_way,
        asked_for=row["asked_for"],
        to_restore=row["to_restore"],
        to_copy=frozenset(row["to_copy"]),
        is_in_error=row["is_in_error"],
        deleted_at=row["deleted_at"],
        gone_at=row["gone_at"],
        is_purged=row["is_purged"],
        is_out_of_date=row["id"] in compared.out_of_date,
        is_read=row["is_read"],
    )


def _to_stored(row: Mapping[str, Any], compared: StoreComparison) -> GcArchive:
    return GcArchive(
        key=row["key"],
        op_id=row["op_id"],
        size_bytes=row["size_bytes"],
        proven_at=row["proven_at"],
        orphan_since=row["orphan_since"],
        removing_since=row["removing_since"],
        has_root=row["format"] == 2 and row["proven_at"] is not None,
        is_there=row["key"] not in compared.missing and not row["is_damaged"],
    )


def _from_terms(terms: GcPolicy) -> Mapping[str, float]:
    return {
        "keep": terms.retention.keep,
        "grace_s": terms.retention.grace.total_seconds(),
        "undelete_grace_s": terms.retention.undelete_grace.total_seconds(),
        "keep_daily": terms.retention.keep_daily,
        "keep_weekly": terms.retention.keep_weekly,
        "every_s": terms.every.total_seconds(),
    }


def _to_terms(stored: Mapping[str, Any] | None) -> GcPolicy | None:
    """None also for a policy that another version wrote in another format."""
    stored = stored or {}
    try:
        grace, undelete_grace, every = (timedelta(seconds=stored[name]) for name in ("grace_s", "undelete_grace_s", "every_s"))
        keep, *periods = (int(stored[name]) for name in ("keep", "keep_daily", "keep_weekly"))
        return GcPolicy(Retention(keep, grace, undelete_grace, *periods), every)
    except (KeyError, TypeError, ValueError):
        return None


def _ours(keys: Iterable[str]) -> list[ArchiveKey]:
    """Those keys that consist of a workspace id and an operation id."""
    parsed = map(ArchiveKey.parse, sorted(keys))
    return [key for key in parsed if is_id(key.workspace_id) and is_id(key.op_id)]


def _columns(keys: Sequence[ArchiveKey]) -> tuple[Sequence[str], Sequence[str]]:
    return [key.workspace_id for key in keys], [key.op_id for key in keys]


Item = TypeVar("Item")


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
