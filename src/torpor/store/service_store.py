"""Read and write what the service layer needs.

Statements and rows only: `torpor.service.wishes` decides which wishes are allowed.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import asyncpg

from torpor.domain.access import Share
from torpor.domain.errors import Reason
from torpor.domain.idle import WorkLease
from torpor.domain.limits import RunningCounts
from torpor.domain.missing_homes_latch import Latch
from torpor.domain.names import is_id
from torpor.domain.records import Archive, ArchiveKey, Workspace
from torpor.domain.runtime_switch import RuntimeSwitch
from torpor.domain.sizes import NO_SIZE, WorkspaceSize
from torpor.domain.states import Operation, Outcome, Phase, Wish, WishOrigin
from torpor.domain.workspace_secrets import SealedSecret, SecretEntry
from torpor.store.archive_leases import ArchiveLease, reading
from torpor.store.controller_members import Member, members
from torpor.store.database import Database
from torpor.store.home_runtime import SwitchStore, read_home_runtime
from torpor.store.leader_lock import require_term
from torpor.store.queries import GC, HOME_RUNTIME, SERVICE_STORE
from torpor.store.rows import from_archive, from_recovery, to_workspace, to_workspace_or_none
from torpor.store.user_store import AuditEntry, User, write_audit


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt in a workspace's history."""

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
    """Of the last proof; with format 2 the oldest one among its packs."""
    made_at: datetime
    """The home had this state then."""
    format: int = 1
    new_bytes: int | None = None
    """What was written to the store for it; None: everything."""
    is_damaged: bool = False
    """A part of it could not be read back, or was different."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An entry of the audit log, as it is stored."""

    id: int
    at: datetime
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries of the audit log; None: any value."""

    concerns: str | None = None
    """The id of a user: their actions, and actions on their workspaces."""
    username: str | None = None
    workspace_id: str | None = None
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Creation:
    """A workspace that was created with an idempotency key."""

    workspace_id: str
    request: bytes
    """The digest of the request."""


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
    environment: Mapping[str, str] = field(default_factory=dict)
    size: WorkspaceSize = NO_SIZE
    image: str | None = None
    fork_source: Archive | None = None


@dataclass(frozen=True, slots=True)
class NewBeforeSleep:
    """The workspace's own command: None is the template's, an empty one is no command."""

    command: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class WorkspaceChange:
    """What a user changes in one request; None: unchanged."""

    name: str | None = None
    standby_ttl_s: int | None = None
    archive_ttl_s: int | None = None
    desired_state: Wish | None = None
    before_sleep: NewBeforeSleep | None = None
    environment: Mapping[str, str] | None = None
    """All variables, as they are after the change."""


@dataclass(frozen=True, slots=True)
class DueWorkspace:
    """A workspace that is due or nearly due, judged by its row."""

    workspace: Workspace
    now: datetime
    leases: Sequence[WorkLease] = ()


@dataclass(frozen=True, slots=True)
class SleepWarning:
    """When a workspace will be stopped, to warn its users; None: not soon."""

    workspace: Workspace
    """As it was read: a row with a newer wish or warning is not changed."""
    sleeps_at: datetime | None


@dataclass(frozen=True, slots=True)
class DuePage:
    """A page of workspaces that are due or nearly due, by due time."""

    due: Sequence[DueWorkspace]
    last: tuple[datetime, str] | None
    """The due time (UTC, without a time zone) and id of the last one, to get the next page; None: the page is empty."""


# The statement that finds the workspaces due for each state.
DUE_FOR: Mapping[Wish, str] = {Wish.STANDBY: "standby_due", Wish.ARCHIVED: "archive_due"}
NO_ID = uuid.UUID(int=0)


class ArchiveState(StrEnum):
    """Whether an archive can be relied on."""

    KEPT = "kept"
    MARKED = "marked"
    """It has no reference and is about to be removed."""
    NONE = "none"


class NameTaken(Exception):
    """Another existing workspace has this name."""


class NameReserved(Exception):
    """A workspace of another user had this name until recently."""

    def __init__(self, until: datetime) -> None:
        super().__init__(until)
        self.until = until


class ServiceStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def switches(self) -> SwitchStore:
        return SwitchStore(self._database)

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def by_id(self, workspace_id: str) -> Workspace | None:
        row = await self._database.fetchrow(SERVICE_STORE["workspace_by_id"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def by_name(self, name: str, *, seen_by: User | None = None, deleted_first: bool = False) -> Workspace | None:
        """Among the workspaces that this user owns or that are shared with them, or among all."""
        row = await self._database.fetchrow(
            SERVICE_STORE["workspace_by_name"],
            name,
            uuid.UUID(seen_by.id) if seen_by else None,
            deleted_first,
            seen_by.username if seen_by else None,
        )
        return to_workspace(row) if row else None

    async def living(self, name: str) -> Workspace | None:
        row = await self._database.fetchrow(SERVICE_STORE["living_by_name"], name)
        return to_workspace(row) if row else None

    async def page(
        self, *, seen_by: User | None, phase: Phase | None, after: tuple[datetime, str] | None, limit: int
    ) -> Sequence[Workspace]:
        """Of the workspaces that this user owns or that are shared with them, or of all."""
        created_at, workspace_id = after if after else (None, None)
        rows = await self._database.fetch(
            SERVICE_STORE["list_workspaces"],
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
            SERVICE_STORE["operations_of"],
            uuid.UUID(workspace_id),
            limit,
            started_at,
            uuid.UUID(op_id) if op_id else None,
            attempt,
        )
        return [_to_attempt(row) for row in rows]

    async def archives(self, workspace_id: str) -> Sequence[StoredArchive]:
        rows = await self._database.fetch(SERVICE_STORE["archives_of"], uuid.UUID(workspace_id))
        return [_to_stored_archive(row) for row in rows]

    def reading_archives(self, workspace_id: str, *, lease_s: float) -> contextlib.AbstractAsyncContextManager[ArchiveLease]:
        """None of its archives is removed while this context lasts and the lease is renewed."""
        return reading(self._database, workspace_id, "a user reads an archive", lease_s=lease_s)

    async def members(self) -> Sequence[Member]:
        """The live controllers."""
        return await members(self._database)

    async def has_workspaces(self) -> bool:
        """Also deleted ones count."""
        has: bool = (await self._database.fetchrow(SERVICE_STORE["has_workspaces"]))["has"]
        return has

    async def remember_key(self, key_id: str, *, is_accepted: bool) -> str:
        """The id of this installation's key file: this one, if none was stored before, or if it is accepted."""
        known: str = (await self._database.fetchrow(SERVICE_STORE["remember_key"], key_id, is_accepted))["secret_key_id"]
        return known

    async def latches(self) -> Sequence[Latch]:
        return [Latch(**row) for row in await self._database.fetch(SERVICE_STORE["latches"])]

    async def running_of(self, owner_id: str) -> Sequence[str]:
        """The names of the workspaces that count against the owner's limit."""
        return [row["name"] for row in await self._database.fetch(SERVICE_STORE["running_of"], uuid.UUID(owner_id))]

    async def secrets(self, workspace_id: str) -> Sequence[SecretEntry]:
        rows = await self._database.fetch(SERVICE_STORE["secrets_of"], uuid.UUID(workspace_id))
        return [_to_secret_entry(row) for row in rows]

    # ── audit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def audit(self, entry: AuditEntry) -> None:
        """Write an entry outside a transaction."""
        await write_audit(self._database, entry)

    async def audited(self, which: AuditFilter, *, before: int | None, limit: int) -> Sequence[AuditRecord]:
        rows = await self._database.fetch(
            SERVICE_STORE["audit_page"],
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
        now: datetime = (await self._database.fetchrow(SERVICE_STORE["now"]))["now"]
        return now

    async def due(self, to: Wish, *, after: tuple[datetime, str] | None, limit: int) -> DuePage:
        at, last_id = (after[0], uuid.UUID(after[1])) if after else (None, NO_ID)
        rows = await self._database.fetch(SERVICE_STORE[DUE_FOR[to]], at, last_id, limit)
        leases = await self._leases_of([row["id"] for row in rows]) if to is Wish.STANDBY and rows else {}
        due = [
            DueWorkspace(one, row["now"], leases.get(one.id, ()))
            for row in rows
            if (one := to_workspace_or_none(row)) is not None
        ]
        return DuePage(due, (rows[-1]["due"], str(rows[-1]["id"])) if rows else None)

    async def next_due_in_s(self) -> float | None:
        """Seconds until the next workspace is due or nearly due; None when there is none."""
        row = await self._database.fetchrow(SERVICE_STORE["next_standby_due"])
        return row["in_s"] if row else None

    async def _leases_of(self, workspace_ids: Sequence[uuid.UUID]) -> Mapping[str, Sequence[WorkLease]]:
        found: dict[str, list[WorkLease]] = {}
        for row in await self._database.fetch(SERVICE_STORE["work_leases_of_all"], workspace_ids):
            lease = _to_work_lease(row)
            found.setdefault(lease.workspace_id, []).append(lease)
        return found

    async def standby_ttls_s(self, workspace_ids: Collection[str]) -> Mapping[str, float]:
        """Of those that exist."""
        rows = await self._database.fetch(SERVICE_STORE["standby_ttls"], [uuid.UUID(one) for one in workspace_ids])
        return {row["id"]: row["standby_ttl_s"] for row in rows}

    async def work_leases(self, workspace_id: str) -> Sequence[WorkLease]:
        rows = await self._database.fetch(SERVICE_STORE["work_leases_of"], uuid.UUID(workspace_id))
        return [_to_work_lease(row) for row in rows]

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator["ServiceTransaction"]:
        """One transaction: every statement in it takes effect, or none."""
        async with self._database.transaction() as connection:
            yield ServiceTransaction(connection)


class ServiceTransaction:
    """The statements inside one transaction of the service layer."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def lock(self, workspace_id: str) -> Workspace | None:
        row = await self._connection.fetchrow(SERVICE_STORE["lock_workspace"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def lock_visible(self, id_or_name: str, *, seen_by: User | None, deleted_first: bool = False) -> Workspace | None:
        """Find by id or name, as `by_id` and `by_name` do, and lock in the same statement."""
        owner_id, username = (uuid.UUID(seen_by.id), seen_by.username) if seen_by else (None, None)
        if is_id(id_or_name):
            row = await self._connection.fetchrow(
                SERVICE_STORE["lock_visible_by_id"], uuid.UUID(id_or_name), owner_id, username
            )
        else:
            row = await self._connection.fetchrow(
                SERVICE_STORE["lock_visible_by_name"], id_or_name, owner_id, deleted_first, username
            )
        return to_workspace(row) if row else None

    async def lock_if_free(self, workspace_id: str) -> Workspace | None:
        """None also while another transaction has the row locked."""
        row = await self._connection.fetchrow(SERVICE_STORE["lock_workspace_if_free"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def create(self, new: NewWorkspace) -> Workspace:
        with _refusing_taken_names():
            row = await self._connection.fetchrow(
                SERVICE_STORE["create_workspace"],
                uuid.UUID(new.id),
                new.name,
                uuid.UUID(new.owner_id),
                new.template,
                list(new.command),
                new.desired_state,
                new.standby_ttl_s,
                new.archive_ttl_s,
                None if new.before_sleep is None else list(new.before_sleep),
                dict(new.environment),
                new.size.cpu,
                new.size.memory_mb,
                new.size.disk_mb,
                new.image,
                None if new.fork_source is None else _from_fork_source(new.fork_source),
            )
        return to_workspace(row)

    async def require_own_name(self, workspace_id: str, *, reserved_s: float) -> None:
        """Call it after this transaction wrote a name; NameReserved when another user freed the name less than that ago."""
        row = await self._connection.fetchrow(SERVICE_STORE["name_reserved_until"], uuid.UUID(workspace_id), reserved_s)
        if row is not None:
            raise NameReserved(row["until"])

    async def running_besides(self, workspace_id: str, *, owner_id: str | None = None) -> RunningCounts:
        """How many others run, of this or the workspace's owner. No other request is admitted until this transaction ends."""
        await self._connection.execute(SERVICE_STORE["hold_limits"])
        owner = uuid.UUID(owner_id) if owner_id else None
        row = await self._connection.fetchrow(SERVICE_STORE["count_running"], owner, uuid.UUID(workspace_id))
        return RunningCounts(of_user=row["of_user"], overall=row["overall"], allowed_of_user=row["allowed_of_user"])

    async def runtime_switch(self) -> RuntimeSwitch | None:
        """The move to another runtime that is in progress. None begins before this transaction ends."""
        await self._connection.execute(HOME_RUNTIME["hold_no_switch"])
        return (await read_home_runtime(self._connection)).switch

    async def audit(self, entry: AuditEntry) -> None:
        """Written if, and only if, the transaction succeeds."""
        await write_audit(self._connection, entry)

    async def creation(self, user_id: str, key: str) -> Creation | None:
        """The workspace created with this key. No other transaction can use the key until this one ends."""
        await self._connection.execute(SERVICE_STORE["hold_key"], uuid.UUID(user_id), key)
        row = await self._connection.fetchrow(SERVICE_STORE["creation_by_key"], uuid.UUID(user_id), key)
        return Creation(str(row["workspace_id"]), row["request"]) if row else None

    async def remember_creation(self, user_id: str, key: str, creation: Creation) -> None:
        await self._connection.execute(
            SERVICE_STORE["remember_creation"],
            uuid.UUID(user_id),
            key,
            creation.request,
            uuid.UUID(creation.workspace_id),
        )

    async def is_known_user(self, username: str) -> bool:
        """Whether there is an active user with this name."""
        return await self._connection.fetchrow(SERVICE_STORE["is_known_user"], username) is not None

    async def share(self, workspace_id: str, username: str, role: Share) -> None:
        await self._connection.execute(SERVICE_STORE["share_workspace"], uuid.UUID(workspace_id), username, role)

    async def unshare(self, workspace_id: str, username: str) -> None:
        """The user's leases end as well."""
        await self._connection.execute(SERVICE_STORE["unshare_workspace"], uuid.UUID(workspace_id), username)

    async def secrets(self, workspace_id: str) -> Sequence[SecretEntry]:
        rows = await self._connection.fetch(SERVICE_STORE["secrets_of"], uuid.UUID(workspace_id))
        return [_to_secret_entry(row) for row in rows]

    async def set_secret(self, secret: SealedSecret, size_bytes: int) -> SecretEntry:
        """Create it or replace it. The workspace's row is locked."""
        await self.remove_secret(secret.workspace_id, secret.name)
        row = await self._connection.fetchrow(
            SERVICE_STORE["add_secret"],
            uuid.UUID(secret.workspace_id),
            secret.name,
            secret.sealed,
            secret.key_id,
            size_bytes,
        )
        return _to_secret_entry(row)

    async def remove_secret(self, workspace_id: str, name: str) -> bool:
        """False if there is no such secret."""
        return await self._connection.fetchrow(SERVICE_STORE["remove_secret"], uuid.UUID(workspace_id), name) is not None

    async def remove_secrets(self, workspace_id: str) -> None:
        await self._connection.execute(SERVICE_STORE["remove_secrets"], uuid.UUID(workspace_id))

    async def release_latch(self, provider: str) -> bool:
        """An operator releases the latch; False when the provider has none."""
        return await self._connection.fetchrow(SERVICE_STORE["release_latch"], provider) is not None

    async def set_wish(
        self, workspace_id: str, wish: Wish, *, purge: bool = False, origin: WishOrigin = WishOrigin.PERSON
    ) -> Workspace:
        """The row as it is now."""
        # Undelete uses the name again, and another workspace may have it by now.
        with _refusing_taken_names():
            row = await self._connection.fetchrow(SERVICE_STORE["set_wish"], uuid.UUID(workspace_id), wish, purge, origin)
        return to_workspace(row)

    async def change(self, workspace_id: str, change: WorkspaceChange) -> Workspace:
        before_sleep = change.before_sleep.command if change.before_sleep is not None else None
        with _refusing_taken_names():
            row = await self._connection.fetchrow(
                SERVICE_STORE["change_workspace"],
                uuid.UUID(workspace_id),
                change.name,
                change.standby_ttl_s,
                change.archive_ttl_s,
                change.desired_state,
                change.before_sleep is not None,
                None if before_sleep is None else list(before_sleep),
                None if change.environment is None else dict(change.environment),
            )
        return to_workspace(row)

    async def set_recovery(self, workspace_id: str, archive: Archive | None, *, empty: bool, accept: bool) -> Workspace:
        row = await self._connection.fetchrow(
            SERVICE_STORE["set_recovery"],
            uuid.UUID(workspace_id),
            from_recovery(archive, empty=empty, accept=accept),
            archive is not None or empty or accept,
        )
        return to_workspace(row)

    async def set_restore(self, workspace_id: str, archive: Archive) -> Workspace:
        row = await self._connection.fetchrow(SERVICE_STORE["set_restore"], uuid.UUID(workspace_id), from_archive(archive))
        return to_workspace(row)

    async def cancel_restore(self, workspace_id: str) -> Workspace:
        row = await self._connection.fetchrow(SERVICE_STORE["cancel_restore"], uuid.UUID(workspace_id))
        return to_workspace(row)

    async def archives(self, workspace_id: str) -> Sequence[StoredArchive]:
        rows = await self._connection.fetch(SERVICE_STORE["archives_of"], uuid.UUID(workspace_id))
        return [_to_stored_archive(row) for row in rows]

    async def require_term(self, term: int) -> None:
        """Deposed when another controller leads. No other can start to lead before this transaction ends, which is soon."""
        await require_term(self._connection, term)

    async def now(self) -> datetime:
        now: datetime = (await self._connection.fetchrow(SERVICE_STORE["now"]))["now"]
        return now

    async def work_leases(self, workspace_id: str) -> Sequence[WorkLease]:
        rows = await self._connection.fetch(SERVICE_STORE["work_leases_of"], uuid.UUID(workspace_id))
        return [_to_work_lease(row) for row in rows]

    async def touch_access(self, seconds_ago: Mapping[str, float]) -> None:
        """Store when each was last used, if that is later than the stored time."""
        ids = [uuid.UUID(workspace_id) for workspace_id in seconds_ago]
        await self._connection.execute(SERVICE_STORE["touch_access"], ids, list(seconds_ago.values()))

    async def touch_in_use(self, workspace_ids: Collection[str], *, for_s: float) -> None:
        ids = [uuid.UUID(workspace_id) for workspace_id in workspace_ids]
        await self._connection.execute(SERVICE_STORE["touch_in_use"], ids, for_s)

    async def set_sleeps_at(self, warnings: Sequence[SleepWarning]) -> None:
        await self._connection.execute(
            SERVICE_STORE["set_sleeps_at"],
            [uuid.UUID(one.workspace.id) for one in warnings],
            [one.workspace.wish_version for one in warnings],
            [one.workspace.sleeps_at for one in warnings],
            [one.sleeps_at for one in warnings],
        )

    async def take_warning_back(self, workspace_id: str, *, held_until: datetime) -> None:
        await self._connection.execute(SERVICE_STORE["take_warning_back"], uuid.UUID(workspace_id), held_until)

    async def touch_stopped(self, workspace_ids: Collection[str], *, life: int) -> None:
        """Ignored if this life of a controller has expired."""
        ids = [uuid.UUID(workspace_id) for workspace_id in workspace_ids]
        await self._connection.execute(SERVICE_STORE["touch_stopped"], ids, life)

    async def create_work_lease(
        self, lease_id: str, workspace_id: str, *, reason: str, created_by: str, lives_s: float
    ) -> WorkLease:
        """Removes the workspace's expired leases."""
        await self._connection.execute(SERVICE_STORE["delete_expired_work_leases"], uuid.UUID(workspace_id))
        row = await self._connection.fetchrow(
            SERVICE_STORE["create_work_lease"], uuid.UUID(lease_id), uuid.UUID(workspace_id), reason, created_by, lives_s
        )
        return _to_work_lease(row)

    async def delete_work_leases(self, workspace_id: str, lease_id: str | None, *, made_by: str | None) -> int:
        """Delete this lease or all of them, of this user or of all; return how many."""
        one = uuid.UUID(lease_id) if lease_id else None
        return len(await self._connection.fetch(SERVICE_STORE["delete_work_leases"], uuid.UUID(workspace_id), one, made_by))

    async def archive_standing(self, workspace_id: str, key: str) -> ArchiveState:
        row = await self._connection.fetchrow(GC["archive_standing"], uuid.UUID(workspace_id), key)
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


def _from_fork_source(archive: Archive) -> dict[str, Any]:
    # The id for the index of garbage collection.
    return {**from_archive(archive), "workspace_id": archive.key.workspace_id}


def _to_stored_archive(row: Mapping[str, Any]) -> StoredArchive:
    return StoredArchive(
        Archive(ArchiveKey.parse(row["key"]), row["generation"], row["revision"], row["manifest_root"]),
        row["size_bytes"],
        row["home_bytes"],
        row["proven_at"],
        row["made_at"],
        row["format"],
        row["new_bytes"],
        row["is_damaged"],
    )


def _to_secret_entry(row: Mapping[str, Any]) -> SecretEntry:
    return SecretEntry(row["name"], row["set_at"], row["value_bytes"])


def _to_work_lease(row: Mapping[str, Any]) -> WorkLease:
    return WorkLease(
        str(row["id"]),
        str(row["workspace_id"]),
        row["reason"],
        row["created_by"],
        row["created_at"],
        row["expires_at"],
    )
