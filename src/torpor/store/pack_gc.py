"""Read and write what garbage collection and proofs of packs need.

Statements and rows only: `torpor.domain.pack_retention` decides which packs are kept. Every role can read; only the leader
writes, in transactions that first check that its term is still current.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torpor.domain.names import pack_op_id
from torpor.domain.pack_retention import GcPack, PackDecision, PackId
from torpor.domain.records import ArchiveKey, ProvenPack
from torpor.domain.retention import Action, GcWorkspace
from torpor.ports import RootFacts
from torpor.store.database import Database
from torpor.store.gc import HOLDERS_AT_ONCE, StoreComparison, batches, to_holder
from torpor.store.leader_lock import require_term
from torpor.store.queries import GC, PACK_GC

GOING_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class WorkspacePacks:
    """A workspace with its packs that are marked or that no archive names, at one moment."""

    holder: GcWorkspace
    packs: tuple[GcPack, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class PackTotals:
    kept: int
    orphans: int
    damaged: int


@dataclass(frozen=True, slots=True)
class PackToProve:
    id: PackId
    size_bytes: int
    began_at: datetime


@dataclass(frozen=True, slots=True)
class RootToProve:
    key: ArchiveKey
    expected: RootFacts
    began_at: datetime


class PackGcStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def candidates(self) -> Sequence[str]:
        return [row["id"] for row in await self._database.fetch(PACK_GC["pack_candidates"])]

    async def held(self, workspace_ids: Sequence[str], compared: StoreComparison) -> AsyncIterator[WorkspacePacks]:
        """Each of these workspaces as it is now, without locks."""
        for some in batches(workspace_ids, HOLDERS_AT_ONCE):
            async with self._database.transaction() as connection:
                found = await _held(connection, some, compared)
            for held in found:
                yield held

    async def roots(self, workspace_id: str, key: str | None = None) -> Sequence[RootToProve]:
        """What the roots of a workspace in the store must say, or the one with this key."""
        packs: dict[str, dict[str, int]] = {}
        rows = await self._database.fetch(PACK_GC["known_roots"], uuid.UUID(workspace_id), key)
        for row in rows:
            named = packs.setdefault(row["key"], {})
            if row["name"] is not None:
                named[row["name"]] = row["size_bytes"]
        facts = {row["key"]: (row["manifest_root"], row["read_at"]) for row in rows}
        return [
            RootToProve(ArchiveKey.parse(key), RootFacts(manifest_root, packs[key]), read_at)
            for key, (manifest_root, read_at) in facts.items()
        ]

    async def totals(self) -> PackTotals:
        row = await self._database.fetchrow(PACK_GC["pack_totals"])
        return PackTotals(row["kept"], row["orphans"], row["damaged"])

    # ── what the leader does ──────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def holding(self, term: int, workspace_id: str, compared: StoreComparison) -> AsyncIterator["LockedPacks | None"]:
        """Lock this workspace in a transaction, so that no reference to a pack is added while it is marked or removed.

        None if the workspace is locked by others: it is left for the next collection.
        """
        async with self._leading(term) as connection:
            rows = await connection.fetch(GC["hold_workspaces"], [uuid.UUID(workspace_id)])
            yield LockedPacks(workspace_id, compared, connection) if rows else None

    async def going(self, term: int, *, after: PackId) -> Sequence[PackId]:
        """The next packs whose removal has begun and is not complete."""
        async with self._leading(term) as connection:
            rows = await connection.fetch(PACK_GC["going_packs"], uuid.UUID(after.workspace_id), after.name, GOING_AT_ONCE)
            return [PackId(row["workspace_id"], row["name"]) for row in rows]

    async def forget(self, term: int, packs: Sequence[PackId]) -> Sequence[int]:
        """Remove the rows of packs whose objects are gone; return their sizes."""
        workspaces, names = [uuid.UUID(one.workspace_id) for one in packs], [one.name for one in packs]
        async with self._leading(term) as connection:
            return [row["size_bytes"] for row in await connection.fetch(PACK_GC["forget_packs"], workspaces, names)]

    async def forget_leases(self, term: int) -> None:
        async with self._leading(term) as connection:
            await connection.execute(PACK_GC["forget_leases"])

    async def to_prove(self, *, older_than_s: float, besides: Iterable[PackId]) -> PackToProve | None:
        """The pack with the oldest proof, if it is that old."""
        row = await self._database.fetchrow(PACK_GC["pack_to_prove"], older_than_s, [one.name for one in besides])
        return row and PackToProve(PackId(row["workspace_id"], row["name"]), row["size_bytes"], row["read_at"])

    async def suspect(self, *, besides: Iterable[PackId]) -> PackToProve | None:
        """A pack that an operation found damaged."""
        row = await self._database.fetchrow(PACK_GC["suspect_pack"], [one.name for one in besides])
        return row and PackToProve(PackId(row["workspace_id"], row["name"]), row["size_bytes"], row["read_at"])

    async def record_proof(self, term: int, pack: PackToProve, proven: ProvenPack) -> None:
        async with self._leading(term) as connection:
            workspace_id = uuid.UUID(pack.id.workspace_id)
            await connection.execute(PACK_GC["record_proof"], workspace_id, pack.id.name, pack.began_at, proven.store_version)

    async def record_damage(self, term: int, pack: PackToProve) -> Sequence[str] | None:
        """Mark the pack as damaged, and return the archives that need it; None if it was proven since or is being removed."""
        async with self._leading(term) as connection:
            workspace_id = uuid.UUID(pack.id.workspace_id)
            marked = await connection.fetch(PACK_GC["record_damage"], workspace_id, pack.id.name, pack.began_at)
            if not marked:
                return None
            rows = await connection.fetch(PACK_GC["archives_with_pack"], workspace_id, pack.id.name)
            return [row["archive_key"] for row in rows]

    async def root_to_prove(self, *, older_than_s: float, besides: Iterable[ArchiveKey]) -> RootToProve | None:
        """The root with the oldest proof, if it is that old."""
        return await self._root(await self._database.fetchrow(PACK_GC["root_to_prove"], older_than_s, list(map(str, besides))))

    async def suspect_root(self, *, besides: Iterable[ArchiveKey]) -> RootToProve | None:
        """A root that an operation found damaged."""
        return await self._root(await self._database.fetchrow(PACK_GC["suspect_root"], list(map(str, besides))))

    async def _root(self, found: Mapping[str, Any] | None) -> RootToProve | None:
        roots = found and await self.roots(found["workspace_id"], found["key"])
        return roots[0] if roots else None

    async def record_proof_of_root(self, term: int, root: RootToProve) -> None:
        async with self._leading(term) as connection:
            await connection.execute(PACK_GC["record_proof_of_root"], str(root.key), root.began_at)

    async def record_damage_of_root(self, term: int, root: RootToProve) -> bool:
        """Mark the archive as damaged; False if its root was proven since or is being removed."""
        async with self._leading(term) as connection:
            marked = await connection.fetch(PACK_GC["record_damage_of_root"], str(root.key), root.began_at)
            return bool(marked)

    @contextlib.asynccontextmanager
    async def _leading(self, term: int) -> AsyncIterator[Any]:
        async with self._database.transaction() as connection:
            await require_term(connection, term)
            yield connection


class LockedPacks:
    """The packs of a workspace whose row is locked."""

    def __init__(self, workspace_id: str, compared: StoreComparison, connection: Any) -> None:
        self._workspace_id = workspace_id
        self._id = uuid.UUID(workspace_id)
        self._compared = compared
        self._connection = connection

    async def held(self) -> WorkspacePacks:
        """The state under the lock: earlier transactions have committed."""
        [held] = await _held(self._connection, [self._workspace_id], self._compared)
        return held

    async def root_keys(self) -> frozenset[str]:
        rows = await self._connection.fetch(PACK_GC["known_root_keys"], self._id)
        return frozenset(row["key"] for row in rows)

    async def take_in(self, packs: Mapping[PackId, int]) -> None:
        """Add these packs (with their sizes) to the table, if they are still left over."""
        names = [pack.name for pack in packs]
        made_by = [uuid.UUID(pack_op_id(name)) for name in names]
        await self._connection.execute(PACK_GC["take_in_left_over_packs"], self._id, made_by, names, list(packs.values()))

    async def write(self, decisions: Sequence[PackDecision]) -> None:
        for action, statement in _STATEMENT_FOR.items():
            names = [decision.pack.name for decision in decisions if decision.action is action]
            if names:
                await self._connection.execute(PACK_GC[statement], self._id, names)


_STATEMENT_FOR: Mapping[Action, str] = {
    Action.CLEAR: "clear_pack_marks",
    Action.MARK: "mark_packs",
    Action.REMOVE: "begin_pack_removal",
}


async def _held(connection: Any, workspace_ids: Sequence[str], compared: StoreComparison) -> list[WorkspacePacks]:
    # Packs first, so that an operation that begins meanwhile is seen.
    packs: dict[str, list[GcPack]] = {}
    for row in await connection.fetch(PACK_GC["packs_of_holders"], workspace_ids):
        packs.setdefault(row["workspace_id"], []).append(
            GcPack(
                name=row["name"],
                size_bytes=row["size_bytes"],
                proven_at=row["proven_at"],
                is_named=row["is_named"],
                orphan_since=row["orphan_since"],
                removing_since=row["removing_since"],
            )
        )
    rows = await connection.fetch(GC["holders"], workspace_ids)
    return [WorkspacePacks(to_holder(row, compared), tuple(packs.get(row["id"], ())), row["read_at"]) for row in rows]
