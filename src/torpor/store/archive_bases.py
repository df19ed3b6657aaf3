"""Read in which format the next archive of a workspace is written, and what it can take over from the last one."""

import uuid

from torpor.domain.archive_formats import written_format
from torpor.domain.errors import Code, Failed
from torpor.domain.records import Archive, ArchiveKey, ProvenArchive
from torpor.ports import ArchiveBase
from torpor.store.database import Database
from torpor.store.queries import CONTROLLER_STORE


class ArchiveBases:
    """`newest`: the format to write if all controllers support it.

    `proof_age_s`: a pack that was read back at most so many seconds ago is not read back again; 0: always.
    """

    def __init__(self, database: Database, *, newest: int, proof_age_s: float) -> None:
        self._database = database
        self._proof_age_s = proof_age_s
        self._newest = newest

    async def format(self) -> int:
        if self._newest == 1:
            return 1  # every controller supports it
        rows = await self._database.fetch(CONTROLLER_STORE["archive_formats"])
        return written_format((row["archive_formats"] for row in rows), self._newest)

    async def base(self, archive: Archive | None) -> ArchiveBase | None:
        """None: there is no archive whose content can be taken over."""
        if archive is None:
            return None
        found = await self._database.fetchrow(CONTROLLER_STORE["base_archive"], str(archive.key))
        if found is None:
            return None
        packs = await self._database.fetch(CONTROLLER_STORE["base_packs"], str(archive.key), self._proof_age_s)
        return ArchiveBase(
            ArchiveKey.parse(found["key"]),
            found["manifest_root"],
            trusted={row["name"]: row["store_version"] for row in packs if row["is_trusted"] and not row["is_unusable"]},
            unusable=frozenset(row["name"] for row in packs if row["is_unusable"]),
        )

    async def refuse_unusable(self, proven: ProvenArchive) -> None:
        """Failed READBACK_MISMATCH if a pack that was taken over is damaged or being removed by now: the next attempt writes
        its content again. The database refuses such an archive, too."""
        taken_over = [pack.name for pack in proven.packs if not pack.is_read_back]
        if not taken_over:
            return
        key = proven.archive.key
        rows = await self._database.fetch(CONTROLLER_STORE["unusable_packs"], uuid.UUID(key.workspace_id), taken_over)
        if rows:
            raise Failed(
                Code.READBACK_MISMATCH,
                f"the archive {key} cannot be used: its pack {rows[0]['name']} is damaged or was removed meanwhile",
                archive=str(key),
                packs=len(rows),
            )
