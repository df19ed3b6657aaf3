"""What does the service layer read and write?

Statements and rows only: what may be wished is decided in `torpor.service.wishes`.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import asyncpg

from torpor.domain.access import Share
from torpor.domain.errors import Reason
from torpor.domain.idle import WorkLease
from torpor.domain.limits import RunningCounts
from torpor.domain.missing_homes_latch import Latch
from torpor.domain.records import Archive, ArchiveKey, Workspace
from torpor.domain.states import Operation, Outcome, Phase, Wish, WishOrigin
from torpor.store.controller_members import Member, members
from torpor.store.database import Database
from torpor.store.leader_lock import require_term
from torpor.store.queries import COLLECTING, FOR_SERVICE
from torpor.store.rows import from_recovery, to_workspace, to_workspace_or_none
from torpor.store.user_store import AuditEntry, User, write_audit


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of a workspace's history."""

    op_id: str
    kind: Operation
    attempt: int
    generation: int
    started_at: datetime
    ended_at: datetime | None
    outcome: Outcome | None
    reason: Reason | None
    message: str
    done_bytes: int


@dataclass(frozen=True, slots=True)
class StoredArchive:
    archive: Archive
    size_bytes: int
    home_bytes: int
    proven_at: datetime


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A line of the audit log, as it was written down."""

    id: int
    at: datetime
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which lines of the audit log; None: that does not matter."""

    concerns: str | None = None
    """The id of a user: what they did, and what was done to what they own."""
    username: str | None = None
    workspace_id: str | None = None
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Creation:
    """A workspace that was asked for with a key."""

    workspace_id: str
    request: bytes
    """The digest of what was asked for."""


@dataclass(frozen=True, slots=True)
class NewWorkspace:
    id: str
    name: str
    owner_id: str
    template: str
    command: tuple[str, ...]
    desired_state: Wish
    standby_ttl_s: int
    archive_ttl_s: int
    before_sleep: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class NewBeforeSleep:
    """What the workspace says itself from now on: None is the template's command, an empty one is none."""

    command: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class WorkspaceChange:
    """What a person changes at once; None: that stays as it is."""

    name: str | None = None
    standby_ttl_s: int | None = None
    archive_ttl_s: int | None = None
    desired_state: Wish | None = None
    before_sleep: NewBeforeSleep | None = None


@dataclass(frozen=True, slots=True)
class DueWorkspace:
    """One whose time is up or near, as far as the row can tell."""

    workspace: Workspace
    now: datetime
    leases: Sequence[WorkLease] = ()


@dataclass(frozen=True, slots=True)
class SleepWarning:
    """When a workspace is stopped, as its users are to be told; None: that is no longer near."""

    workspace: Workspace
    """As it was read: a row that was wished or warned meanwhile is left alone."""
    sleeps_at: datetime | None


@dataclass(frozen=True, slots=True)
class DuePage:
    """Some of those whose time is up or near, in that order."""

    due: Sequence[DueWorkspace]
    last: tuple[datetime, str] | None
    """Since when (in UTC, without saying so) and who, to ask for those after it; None: there was nobody."""


# Which statement tells who is due for each step down.
DUE_FOR: Mapping[Wish, str] = {Wish.STANDBY: "standby_due", Wish.ARCHIVED: "archive_due"}
NO_ID = uuid.UUID(int=0)


class ArchiveState(StrEnum):
    """Whether an archive can be relied on."""

    KEPT = "kept"
    MARKED = "marked"
    """Nobody referred to it: it is about to be removed."""
    NONE = "none"


class NameTaken(Exception):
    """Another living workspace bears this name."""


class NameReserved(Exception):
    """A workspace of another user had this name a short time ago."""

    def __init__(self, until: datetime) -> None:
        super().__init__(until)
        self.until = until


class ServiceStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def by_id(self, workspace_id: str) -> Workspace | None:
        row = await self._database.fetchrow(FOR_SERVICE["workspace_by_id"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def by_name(self, name: str, *, seen_by: User | None = None, deleted_first: bool = False) -> Workspace | None:
        """Among what this user owns or is granted, or among all."""
        row = await self._database.fetchrow(
            FOR_SERVICE["workspace_by_name"],
            name,
            uuid.UUID(seen_by.id) if seen_by else None,
            deleted_first,
            seen_by.username if seen_by else None,
        )
        return to_workspace(row) if row else None

    async def living(self, name: str) -> Workspace | None:
        row = await self._database.fetchrow(FOR_SERVICE["living_by_name"], name)
        return to_workspace(row) if row else None

    async def page(
        self, *, seen_by: User | None, phase: Phase | None, after: tuple[datetime, str] | None, limit: int
    ) -> Sequence[Workspace]:
        """Of what this user owns or is granted, or of all."""
        created_at, workspace_id = after if after else (None, None)
        rows = await self._database.fetch(
            FOR_SERVICE["list_workspaces"],
            uuid.UUID(seen_by.id) if seen_by else None,
            phase,
            created_at,
            uuid.UUID(workspace_id) if workspace_id else None,
            limit,
            seen_by.username if seen_by else None,
        )
        return [to_workspace(row) for row in rows]

    async def history(
        self, workspace_id: str, *, after: tuple[datetime, str, int] | None = None, limit: int
    ) -> Sequence[Attempt]:
        started_at, op_id, attempt = after if after else (None, None, None)
        rows = await self._database.fetch(
            FOR_SERVICE["operations_of"],
            uuid.UUID(workspace_id),
            limit,
            started_at,
            uuid.UUID(op_id) if op_id else None,
            attempt,
        )
        return [_to_attempt(row) for row in rows]

    async def archives(self, workspace_id: str) -> Sequence[StoredArchive]:
        rows = await self._database.fetch(FOR_SERVICE["archives_of"], uuid.UUID(workspace_id))
        return [_to_stored_archive(row) for row in rows]

    async def members(self) -> Sequence[Member]:
        """The live controllers."""
        return await members(self._database)

    async def latches(self) -> Sequence[Latch]:
        return [Latch(**row) for row in await self._database.fetch(FOR_SERVICE["latches"])]

    async def running_of(self, owner_id: str) -> Sequence[str]:
        """The names of those that count against the limit."""
        return [row["name"] for row in await self._database.fetch(FOR_SERVICE["running_of"], uuid.UUID(owner_id))]

    # ── audit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def audit(self, entry: AuditEntry) -> None:
        """What has no transaction of its own."""
        await write_audit(self._database, entry)

    async def audited(self, which: AuditFilter, *, before: int | None, limit: int) -> Sequence[AuditRecord]:
        rows = await self._database.fetch(
            FOR_SERVICE["audit_page"],
            before,
            uuid.UUID(which.concerns) if which.concerns else None,
            which.username,
            uuid.UUID(which.workspace_id) if which.workspace_id else None,
            which.workspace,
            limit,
        )
        return [_to_audited(row) for row in rows]

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def now(self) -> datetime:
        now: datetime = (await self._database.fetchrow(FOR_SERVICE["now"]))["now"]
        return now

    async def due(self, to: Wish, *, after: tuple[datetime, str] | None, limit: int) -> DuePage:
        at, last_id = (after[0], uuid.UUID(after[1])) if after else (None, NO_ID)
        rows = await self._database.fetch(FOR_SERVICE[DUE_FOR[to]], at, last_id, limit)
        leases = await self._leases_of([row["id"] for row in rows]) if to is Wish.STANDBY and rows else {}
        due = [
            DueWorkspace(one, row["now"], leases.get(one.id, ()))
            for row in rows
            if (one := to_workspace_or_none(row)) is not None
        ]
        return DuePage(due, (rows[-1]["due"], str(rows[-1]["id"])) if rows else None)

    async def next_due_in_s(self) -> float | None:
        """Until the time of the next workspace is up or near; None when there is none."""
        row = await self._database.fetchrow(FOR_SERVICE["next_standby_due"])
        return row["in_s"] if row else None

    async def _leases_of(self, workspace_ids: Sequence[uuid.UUID]) -> Mapping[str, Sequence[WorkLease]]:
        found: dict[str, list[WorkLease]] = {}
        for row in await self._database.fetch(FOR_SERVICE["work_leases_of_all"], workspace_ids):
            lease = _to_work_lease(row)
            found.setdefault(lease.workspace_id, []).append(lease)
        return found

    async def standby_ttls_s(self, workspace_ids: Collection[str]) -> Mapping[str, float]:
        """Of those of them that there are."""
        rows = await self._database.fetch(FOR_SERVICE["standby_ttls"], [uuid.UUID(one) for one in workspace_ids])
        return {row["id"]: row["standby_ttl_s"] for row in rows}

    async def work_leases(self, workspace_id: str) -> Sequence[WorkLease]:
        rows = await self._database.fetch(FOR_SERVICE["work_leases_of"], uuid.UUID(workspace_id))
        return [_to_work_lease(row) for row in rows]

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator["ServiceTransaction"]:
        """One transaction: everything in it is accepted together, or nothing."""
        async with self._database.transaction() as connection:
            yield ServiceTransaction(connection)


class ServiceTransaction:
    """The verbs inside one transaction of the service layer."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def lock(self, workspace_id: str) -> Workspace | None:
        row = await self._connection.fetchrow(FOR_SERVICE["lock_workspace"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def lock_if_free(self, workspace_id: str) -> Workspace | None:
        """None also while somebody else is writing it."""
        row = await self._connection.fetchrow(FOR_SERVICE["lock_workspace_if_free"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def create(self, new: NewWorkspace) -> None:
        with _refusing_taken_names():
            await self._connection.execute(
                FOR_SERVICE["create_workspace"],
                uuid.UUID(new.id),
                new.name,
                uuid.UUID(new.owner_id),
                new.template,
                list(new.command),
                new.desired_state,
                new.standby_ttl_s,
                new.archive_ttl_s,
                None if new.before_sleep is None else list(new.before_sleep),
            )

    async def require_own_name(self, workspace_id: str, *, reserved_s: float) -> None:
        """After a name was put to use in this transaction; NameReserved when another user gave it up less than that ago."""
        row = await self._connection.fetchrow(FOR_SERVICE["name_reserved_until"], uuid.UUID(workspace_id), reserved_s)
        if row is not None:
            raise NameReserved(row["until"])

    async def running_besides(self, workspace_id: str, *, owner_id: str | None = None) -> RunningCounts:
        """Who else runs, of this owner or of this workspace's; nobody else is admitted before this transaction has ended."""
        await self._connection.execute(FOR_SERVICE["hold_limits"])
        owner = uuid.UUID(owner_id) if owner_id else None
        row = await self._connection.fetchrow(FOR_SERVICE["count_running"], owner, uuid.UUID(workspace_id))
        return RunningCounts(of_user=row["of_user"], overall=row["overall"], allowed_of_user=row["allowed_of_user"])

    async def audit(self, entry: AuditEntry) -> None:
        """Written down if, and only if, it was done."""
        await write_audit(self._connection, entry)

    async def creation(self, user_id: str, key: str) -> Creation | None:
        """What was made with this key; until this transaction has ended nobody else makes anything with it."""
        await self._connection.execute(FOR_SERVICE["hold_key"], uuid.UUID(user_id), key)
        row = await self._connection.fetchrow(FOR_SERVICE["creation_by_key"], uuid.UUID(user_id), key)
        return Creation(str(row["workspace_id"]), row["request"]) if row else None

    async def remember_creation(self, user_id: str, key: str, creation: Creation) -> None:
        await self._connection.execute(
            FOR_SERVICE["remember_creation"],
            uuid.UUID(user_id),
            key,
            creation.request,
            uuid.UUID(creation.workspace_id),
        )

    async def is_known_user(self, username: str) -> bool:
        """One that may come in."""
        return await self._connection.fetchrow(FOR_SERVICE["is_known_user"], username) is not None

    async def share(self, workspace_id: str, username: str, role: Share) -> None:
        await self._connection.execute(FOR_SERVICE["share_workspace"], uuid.UUID(workspace_id), username, role)

    async def unshare(self, workspace_id: str, username: str) -> None:
        """What they held awake by it is no longer held."""
        await self._connection.execute(FOR_SERVICE["unshare_workspace"], uuid.UUID(workspace_id), username)

    async def release_latch(self, provider: str) -> bool:
        """An operator says go; False when nothing is latched there."""
        return await self._connection.fetchrow(FOR_SERVICE["release_latch"], provider) is not None

    async def set_wish(
        self, workspace_id: str, wish: Wish, *, purge: bool = False, origin: WishOrigin = WishOrigin.PERSON
    ) -> None:
        # Undelete takes the name back into use, and somebody else may bear it by now.
        with _refusing_taken_names():
            await self._connection.execute(FOR_SERVICE["set_wish"], uuid.UUID(workspace_id), wish, purge, origin)

    async def change(self, workspace_id: str, change: WorkspaceChange) -> None:
        before_sleep = change.before_sleep.command if change.before_sleep is not None else None
        with _refusing_taken_names():
            await self._connection.execute(
                FOR_SERVICE["change_workspace"],
                uuid.UUID(workspace_id),
                change.name,
                change.standby_ttl_s,
                change.archive_ttl_s,
                change.desired_state,
                change.before_sleep is not None,
                None if before_sleep is None else list(before_sleep),
            )

    async def set_recovery(self, workspace_id: str, archive: Archive | None, *, empty: bool, accept: bool) -> None:
        await self._connection.execute(
            FOR_SERVICE["set_recovery"], uuid.UUID(workspace_id), from_recovery(archive, empty=empty, accept=accept)
        )

    async def archives(self, workspace_id: str) -> Sequence[StoredArchive]:
        rows = await self._connection.fetch(FOR_SERVICE["archives_of"], uuid.UUID(workspace_id))
        return [_to_stored_archive(row) for row in rows]

    async def require_term(self, term: int) -> None:
        """Deposed when somebody else leads by now; nobody else can before this transaction ends, which it does soon."""
        await require_term(self._connection, term)

    async def now(self) -> datetime:
        now: datetime = (await self._connection.fetchrow(FOR_SERVICE["now"]))["now"]
        return now

    async def work_leases(self, workspace_id: str) -> Sequence[WorkLease]:
        rows = await self._connection.fetch(FOR_SERVICE["work_leases_of"], uuid.UUID(workspace_id))
        return [_to_work_lease(row) for row in rows]

    async def touch_access(self, seconds_ago: Mapping[str, float]) -> None:
        """When each was last used; written where that is news."""
        ids = [uuid.UUID(workspace_id) for workspace_id in seconds_ago]
        await self._connection.execute(FOR_SERVICE["touch_access"], ids, list(seconds_ago.values()))

    async def touch_in_use(self, workspace_ids: Collection[str], *, for_s: float) -> None:
        ids = [uuid.UUID(workspace_id) for workspace_id in workspace_ids]
        await self._connection.execute(FOR_SERVICE["touch_in_use"], ids, for_s)

    async def set_sleeps_at(self, warnings: Sequence[SleepWarning]) -> None:
        await self._connection.execute(
            FOR_SERVICE["set_sleeps_at"],
            [uuid.UUID(one.workspace.id) for one in warnings],
            [one.workspace.wish_version for one in warnings],
            [one.workspace.sleeps_at for one in warnings],
            [one.sleeps_at for one in warnings],
        )

    async def take_warning_back(self, workspace_id: str, *, held_until: datetime) -> None:
        await self._connection.execute(FOR_SERVICE["take_warning_back"], uuid.UUID(workspace_id), held_until)

    async def touch_stopped(self, workspace_ids: Collection[str], *, life: int) -> None:
        """Unless this life of a controller is over."""
        ids = [uuid.UUID(workspace_id) for workspace_id in workspace_ids]
        await self._connection.execute(FOR_SERVICE["touch_stopped"], ids, life)

    async def create_work_lease(
        self, lease_id: str, workspace_id: str, *, reason: str, created_by: str, lives_s: float
    ) -> WorkLease:
        """What has expired here makes room."""
        await self._connection.execute(FOR_SERVICE["delete_expired_work_leases"], uuid.UUID(workspace_id))
        row = await self._connection.fetchrow(
            FOR_SERVICE["create_work_lease"], uuid.UUID(lease_id), uuid.UUID(workspace_id), reason, created_by, lives_s
        )
        return _to_work_lease(row)

    async def delete_work_leases(self, workspace_id: str, lease_id: str | None, *, made_by: str | None) -> int:
        """How many there were: this one, or all of them; if this user made them, or whoever did."""
        one = uuid.UUID(lease_id) if lease_id else None
        return len(await self._connection.fetch(FOR_SERVICE["delete_work_leases"], uuid.UUID(workspace_id), one, made_by))

    async def archive_standing(self, workspace_id: str, key: str) -> ArchiveState:
        row = await self._connection.fetchrow(COLLECTING["archive_standing"], uuid.UUID(workspace_id), key)
        if row is None:
            return ArchiveState.NONE
        return ArchiveState.MARKED if row["is_marked"] else ArchiveState.KEPT


@contextlib.contextmanager
def _refusing_taken_names() -> Any:
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise NameTaken from error


def _to_audited(row: Mapping[str, Any]) -> AuditRecord:
    entry = AuditEntry(
        action=row["action"],
        username=row["username"],
        user_id=str(row["user_id"]) if row["user_id"] else None,
        how=row["how"],
        token_label=row["token_label"],
        came_from=row["came_from"],
        workspace_id=str(row["workspace_id"]) if row["workspace_id"] else None,
        workspace=row["workspace"],
        outcome=row["outcome"],
        detail=row["detail"],
    )
    return AuditRecord(row["id"], row["at"], entry)


def _to_attempt(row: Mapping[str, Any]) -> Attempt:
    return Attempt(
        op_id=str(row["op_id"]),
        kind=Operation(row["kind"]),
        attempt=row["attempt"],
        generation=row["generation"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        reason=Reason(row["reason"]) if row["reason"] else None,
        message=row["message"],
        done_bytes=row["done_bytes"],
    )


def _to_stored_archive(row: Mapping[str, Any]) -> StoredArchive:
    return StoredArchive(
        Archive(ArchiveKey.parse(row["key"]), row["generation"], row["revision"], row["manifest_root"]),
        row["size_bytes"],
        row["home_bytes"],
        row["proven_at"],
    )


def _to_work_lease(row: Mapping[str, Any]) -> WorkLease:
    return WorkLease(
        str(row["id"]),
        str(row["workspace_id"]),
        row["reason"],
        row["created_by"],
        row["created_at"],
        row["expires_at"],
    )
