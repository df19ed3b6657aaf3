"""Workspaces with archives for tests, written directly into a real database."""

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from tests.support.users import person
from torpor.accounts import Caller
from torpor.control.gc import GarbageCollector
from torpor.domain.limits import RunningLimits
from torpor.domain.records import ArchiveKey
from torpor.domain.retention import Retention
from torpor.domain.states import Wish
from torpor.ports import Archives, Home, ListedArchive
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.database import Database, Role
from torpor.store.gc import GcStore
from torpor.store.pack_gc import PackGcStore
from torpor.store.service_store import ServiceStore
from torpor.testing.defaults import DEFAULTS

TERM = 7
RETENTION = Retention(keep=2, grace=timedelta(hours=2), undelete_grace=timedelta(days=7), keep_daily=0, keep_weekly=0)
ERROR = {
    "reason": "DataLost",
    "message": "the volume is gone",
    "is_terminal": True,
    "operation": "NONE",
    "error_count": 1,
    "occurred_at": "2026-03-01T12:00:00+00:00",
    "wish_version": 1,
    "context": {},
}
IN_ERROR = {"phase": "'ERROR'", "error_info": f"'{json.dumps(ERROR)}'"}
ARCHIVING = {
    "operation": "'ARCHIVING'",
    "stage": "'CALL'",
    "op_started_at": "now()",
    "deadline_at": "now() + interval '1 hour'",
}


def deleted(**ago: float) -> dict[str, str]:
    """Deleted this long ago, and the deletion has ended."""
    at = f"now() - interval '{timedelta(**ago).total_seconds()} seconds'"
    return {"desired_state": "'DELETED'", "phase": "'DELETED'", "deleted_at": at, "phase_changed_at": at}


@dataclass
class GcStage:
    owner: Any
    """A connection with all rights, to change rows from outside."""
    wishes: Wishes
    user: Caller
    store: GcStore
    seen: GcStore
    """As the service sees it."""
    service: ServiceStore
    archives: Archives
    packs: PackGcStore

    async def workspace(self, name: str, **columns: str) -> str:
        """At rest and ARCHIVED, except for the SQL in `columns`."""
        workspace_id = (await self.wishes.create(self.user, name=name, desired_state=Wish.ARCHIVED)).id
        await self.change(workspace_id, **{"phase": "'ARCHIVED'", "op_id": "gen_random_uuid()", **columns})
        return workspace_id

    async def change(self, workspace_id: str, **columns: str) -> None:
        assignments = ", ".join(f"{column} = {value}" for column, value in columns.items())
        await self.owner.execute(f"UPDATE workspaces SET {assignments} WHERE id = $1", uuid.UUID(workspace_id))

    async def archive(
        self, workspace_id: str, *, hours: float, in_store: bool = True, in_table: bool = True, **columns: str
    ) -> str:
        """An archive that was verified this many hours ago."""
        key = ArchiveKey(workspace_id, str(uuid.uuid4()))
        if in_store:
            await self.archives.create_empty(key, self.home(workspace_id), 0)
        if in_table:
            await self.owner.execute(
                "INSERT INTO archives (key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes,"
                " proven_at) VALUES ($1, $2, $3, 1, 0, 'root', 1000, 0, now() - make_interval(secs => $4))",
                str(key), uuid.UUID(workspace_id), uuid.UUID(key.op_id), hours * 3600,
            )  # fmt: skip
            await self.mark(str(key), **columns)
        return str(key)

    def home(self, workspace_id: str) -> Home:
        return Home(workspace_id, 1)

    async def mark(self, *keys: str, **columns: str) -> None:
        if columns:
            assignments = ", ".join(f"{column} = {value}" for column, value in columns.items())
            await self.owner.execute(f"UPDATE archives SET {assignments} WHERE key = ANY ($1)", list(keys))

    async def point(self, workspace_id: str, key: str) -> None:
        await self.change(
            workspace_id, archive_key=f"'{key}'", archive_generation="1", archive_revision="0", archive_root="'root'"
        )

    async def grace_passes(self) -> None:
        await self.owner.execute("UPDATE archives SET orphan_since = orphan_since - interval '3 hours'")

    async def rows(self) -> dict[str, tuple[bool, bool]]:
        """(is marked, is going) of each archive in the table."""
        rows = await self.owner.fetch("SELECT key, orphan_since IS NOT NULL, removing_since IS NOT NULL FROM archives")
        return {row[0]: (row[1], row[2]) for row in rows}

    async def everything(self) -> list[Any]:
        return [tuple(row) for row in await self.owner.fetch("SELECT * FROM archives ORDER BY key")]

    async def objects(self) -> set[str]:
        return {str(found.key) async for found in self.archives.listing() if isinstance(found, ListedArchive)}

    def collector(self, retention: Retention = RETENTION, *, every_s: float = 3600) -> GarbageCollector:
        return GarbageCollector(self.store, self.packs, self.archives, retention=retention, every_s=every_s)

    async def collect(self, retention: Retention = RETENTION) -> dict[str, Any]:
        await self.collector(retention).collect(TERM)
        return await self.report()

    async def report(self) -> dict[str, Any]:
        """The report of the last collection, complete or not."""
        standing = await self.seen.housekeeping()
        report = standing.skipped or standing.report
        assert report is not None
        return dict(report)

    async def operation(self, key: str, kind: str = "ARCHIVING", outcome: str | None = "TURNED") -> None:
        """In the history: the operation that wrote this key, and its outcome (None: it has not ended)."""
        made = ArchiveKey.parse(key)
        await self.owner.execute(
            "INSERT INTO operations (workspace_id, op_id, attempt, kind, generation, epoch, started_at, ended_at, outcome)"
            " VALUES ($1, $2, 1, $3, 1, 1, now(), CASE WHEN $4::text IS NOT NULL THEN now() END, $4)",
            uuid.UUID(made.workspace_id), uuid.UUID(made.op_id), kind, outcome,
        )  # fmt: skip

    async def depose(self) -> None:
        await self.owner.execute("UPDATE system_locks SET epoch = epoch + 1")


@contextlib.asynccontextmanager
async def gc_stage(database_url: str, archives: Archives) -> AsyncIterator[GcStage]:
    owner = await asyncpg.connect(database_url)
    as_service = await Database.open(database_url, Role.SERVICE)
    as_controller = await Database.open(database_url, Role.CONTROLLER)
    try:
        await owner.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)
        # Collections were regular until now.
        await owner.execute("UPDATE housekeeping SET gc_ended_at = now()")
        service = ServiceStore(as_service)
        ada = await person(as_service, "ada", is_admin=True)
        wishes = Wishes(
            service,
            limits=RunningLimits(per_user=1000, overall=1000),
            ttls=DEFAULTS.ttls,
            new_id=lambda: str(uuid.uuid4()),
            hint=lambda _workspace_id: None,
            using=UseService(
                service, new_id=lambda: str(uuid.uuid4()), hint=lambda _workspace_id: None, lease_s=DEFAULTS.connection_lease
            ),
        )
        yield GcStage(
            owner, wishes, ada, GcStore(as_controller), GcStore(as_service), service, archives, PackGcStore(as_controller)
        )
    finally:
        await as_service.close()
        await as_controller.close()
        await owner.close()
