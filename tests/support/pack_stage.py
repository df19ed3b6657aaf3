"""Archives of format 2 for tests: in a real database, and in a store that the test writes pack by pack."""

import uuid
from dataclasses import dataclass
from typing import Any

from tests.contracts.archives_contract import PackWriter
from tests.support.gc_stage import GcStage
from torpor.domain.records import ArchiveKey, ProvenArchive
from torpor.ports import ListedPack


@dataclass(frozen=True)
class StoredArchive2:
    key: ArchiveKey
    packs: tuple[str, ...]


@dataclass
class PackStage:
    gc: GcStage
    writer: PackWriter

    async def archive(
        self, workspace_id: str, *contents: bytes, taken_over: tuple[str, ...] = (), hours: float = 1.0
    ) -> StoredArchive2:
        """An archive that was verified this many hours ago: a new pack for each content, and packs of earlier archives."""
        key = ArchiveKey(workspace_id, str(uuid.uuid4()))
        names = (*[await self.writer.write(key, content) for content in contents], *taken_over)
        await self.writer.finish(key, self.gc.home(workspace_id), names)
        facts = await self.gc.archives.root_packs(key)
        owner, ago = self.gc.owner, f"now() - interval '{hours} hours'"
        await owner.execute(
            "INSERT INTO archives (key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes,"
            f" proven_at, format, new_bytes) VALUES ($1, $2, $3, 1, 0, $4, 1000, 0, {ago}, 2, 10)",
            str(key), uuid.UUID(workspace_id), uuid.UUID(key.op_id), facts.manifest_root,
        )  # fmt: skip
        for name, size_bytes in facts.packs.items():
            await owner.execute(
                "INSERT INTO packs (workspace_id, name, size_bytes, proven_at, store_version)"
                f" VALUES ($1, $2, $3, {ago}, '1') ON CONFLICT DO NOTHING",
                uuid.UUID(workspace_id), name, size_bytes,
            )  # fmt: skip
            await owner.execute("INSERT INTO archive_packs VALUES ($1, $2, $3)", str(key), uuid.UUID(workspace_id), name)
        return StoredArchive2(key, names)

    async def record(self, proven: ProvenArchive, hours: float) -> None:
        """Write an archive that a job has made into the tables, as verified this many hours ago."""
        made, owner, ago = proven.archive, self.gc.owner, f"now() - interval '{hours} hours'"
        workspace_id = uuid.UUID(made.key.workspace_id)
        await owner.execute(
            "INSERT INTO archives (key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes,"
            f" proven_at, format, new_bytes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {ago}, 2, $9)",
            str(made.key), workspace_id, uuid.UUID(made.key.op_id), made.generation, made.revision, made.manifest_root,
            proven.size_bytes, proven.home_bytes, proven.new_bytes,
        )  # fmt: skip
        for pack in proven.packs:
            await owner.execute(
                "INSERT INTO packs (workspace_id, name, size_bytes, proven_at, store_version)"
                f" VALUES ($1, $2, $3, {ago}, $4) ON CONFLICT DO NOTHING",
                workspace_id, pack.name, pack.size_bytes, pack.store_version,
            )  # fmt: skip
            await owner.execute("INSERT INTO archive_packs VALUES ($1, $2, $3)", str(made.key), workspace_id, pack.name)

    async def point(self, archive: StoredArchive2) -> None:
        await self.gc.point(archive.key.workspace_id, str(archive.key))

    async def superseded(self, name: str, **columns: str) -> tuple[str, StoredArchive2, list[StoredArchive2]]:
        """A workspace with an archive that is not needed any more, and two that are and that share a pack with it."""
        workspace_id = await self.gc.workspace(name, **columns)
        old = await self.archive(workspace_id, b"own of the old one", b"shared", hours=30)
        shared = (old.packs[1],)
        kept = [await self.archive(workspace_id, b"new %d" % number, taken_over=shared, hours=number) for number in (2, 1)]
        await self.point(kept[-1])
        return workspace_id, old, kept

    async def change_packs(self, *names: str, **columns: str) -> None:
        assignments = ", ".join(f"{column} = {value}" for column, value in columns.items())
        await self.gc.owner.execute(f"UPDATE packs SET {assignments} WHERE name = ANY ($1)", list(names))

    async def grace_passes(self) -> None:
        await self.gc.grace_passes()
        await self.gc.owner.execute("UPDATE packs SET orphan_since = orphan_since - interval '3 hours'")

    async def rows(self) -> dict[str, tuple[bool, bool]]:
        """(is marked, is going) of each pack in the table."""
        rows = await self.gc.owner.fetch("SELECT name, orphan_since IS NOT NULL, removing_since IS NOT NULL FROM packs")
        return {row[0]: (row[1], row[2]) for row in rows}

    async def stored(self) -> set[str]:
        return {found.name async for found in self.gc.archives.listing() if isinstance(found, ListedPack)}

    async def collect(self) -> dict[str, Any]:
        """The part of the report that concerns packs."""
        packs: dict[str, Any] = (await self.gc.collect())["packs"]
        return packs

    async def require_whole(self, *archives: StoredArchive2) -> None:
        """These archives have all their packs, in the table and in the store."""
        rows, stored = await self.rows(), await self.stored()
        for archive in archives:
            assert set(archive.packs) <= rows.keys()
            assert set(archive.packs) <= stored
            await self.gc.archives.manifest_root(archive.key)
