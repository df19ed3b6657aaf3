"""What does the service layer read and write?

Statements and rows only: what may be wished is decided in `torpor.wishes`.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import asyncpg

from torpor.domain.errors import Reason
from torpor.domain.idle import WorkLease
from torpor.domain.latch import Latch
from torpor.domain.limits import RunningNow
from torpor.domain.records import Archive, ArchiveKey, Workspace
from torpor.domain.states import Operation, Outcome, Phase, Wish, WishOrigin
from torpor.store.database import Database
from torpor.store.leader import require_term
from torpor.store.queries import COLLECTING, FOR_SERVICE
from torpor.store.rows import from_recovery, readable, to_workspace


@dataclass(frozen=True, slots=True)
class User:
    id: str
    username: str
    is_admin: bool


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
class NewWorkspace:
    id: str
    name: str
    owner_id: str
    template: str
    command: tuple[str, ...]
    desired_state: Wish
    standby_ttl_s: int
    archive_ttl_s: int


@dataclass(frozen=True, slots=True)
class WorkspaceChange:
    """What a person changes at once; None: that stays as it is."""

    name: str | None = None
    standby_ttl_s: int | None = None
    archive_ttl_s: int | None = None
    desired_state: Wish | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """One whose time is up, as far as the row can tell."""

    workspace: Workspace
    now: datetime


@dataclass(frozen=True, slots=True)
class DuePage:
    """Some of those whose time is up, in that order."""

    due: Sequence[Due]
    last: tuple[datetime, str] | None
    """Since when (in UTC, without saying so) and who, to ask for those after it; None: there was nobody."""


# Which statement tells who is due for each step down.
DUE_FOR: Mapping[Wish, str] = {Wish.STANDBY: "standby_due", Wish.ARCHIVED: "archive_due"}
NO_ID = uuid.UUID(int=0)


class ArchiveStanding(StrEnum):
    """Whether an archive can be relied on."""

    KEPT = "kept"
    MARKED = "marked"
    """Nobody referred to it: it is about to be removed."""
    NONE = "none"


class NameTaken(Exception):
    """Another living workspace bears this name."""


class ServiceStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    # ── people ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_user(self, username: str, *, is_admin: bool, password: str | None) -> None:
        await self._database.execute(FOR_SERVICE["create_user"], uuid.uuid4(), username, is_admin, password)

    async def user_by_name(self, username: str) -> tuple[User, str | None] | None:
        row = await self._database.fetchrow(FOR_SERVICE["user_by_name"], username)
        return (_to_user(row), row["password"]) if row else None

    async def create_token(self, user_id: str, label: str, digest: bytes, *, lives_s: float | None) -> None:
        await self._database.execute(FOR_SERVICE["create_token"], uuid.uuid4(), uuid.UUID(user_id), label, digest, lives_s)

    async def end_session(self, digest: bytes) -> None:
        await self._database.execute(FOR_SERVICE["end_session"], digest)

    async def delete_expired_tokens(self) -> None:
        await self._database.execute(FOR_SERVICE["delete_expired_tokens"])

    async def delete_tokens_labelled(self, user_id: str, label: str) -> None:
        await self._database.execute(FOR_SERVICE["delete_tokens_labelled"], uuid.UUID(user_id), label)

    async def user_by_token(self, digest: bytes) -> User | None:
        row = await self._database.fetchrow(FOR_SERVICE["user_by_token"], digest)
        return _to_user(row) if row else None

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def by_id(self, workspace_id: str) -> Workspace | None:
        row = await self._database.fetchrow(FOR_SERVICE["workspace_by_id"], uuid.UUID(workspace_id))
        return to_workspace(row) if row else None

    async def by_name(self, name: str, *, owner_id: str | None = None, deleted_first: bool = False) -> Workspace | None:
        owner = uuid.UUID(owner_id) if owner_id else None
        row = await self._database.fetchrow(FOR_SERVICE["workspace_by_name"], name, owner, deleted_first)
        return to_workspace(row) if row else None

    async def living(self, name: str) -> Workspace | None:
        row = await self._database.fetchrow(FOR_SERVICE["living_by_name"], name)
        return to_workspace(row) if row else None

    async def page(
        self, *, owner_id: str | None, phase: Phase | None, after: tuple[datetime, str] | None, limit: int
    ) -> Sequence[Workspace]:
        created_at, workspace_id = after if after else (None, None)
        rows = await self._database.fetch(
            FOR_SERVICE["list_workspaces"],
            uuid.UUID(owner_id) if owner_id else None,
            phase,
            created_at,
            uuid.UUID(workspace_id) if workspace_id else None,
            limit,
        )
        return [to_workspace(row) for row in rows]

    async def history(self, workspace_id: str, *, limit: int) -> Sequence[Attempt]:
        rows = await self._database.fetch(FOR_SERVICE["operations_of"], uuid.UUID(workspace_id), limit)
        return [_to_attempt(row) for row in rows]

    async def archives(self, workspace_id: str) -> Sequence[StoredArchive]:
        rows = await self._database.fetch(FOR_SERVICE["archives_of"], uuid.UUID(workspace_id))
        return [_to_stored_archive(row) for row in rows]

    async def latches(self) -> Sequence[Latch]:
        return [Latch(**row) for row in await self._database.fetch(FOR_SERVICE["latches"])]

    async def release_latch(self, provider: str) -> bool:
        """An operator says go; False when nothing is latched there."""
        return await self._database.fetchrow(FOR_SERVICE["release_latch"], provider) is not None

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def now(self) -> datetime:
        now: datetime = (await self._database.fetchrow(FOR_SERVICE["now"]))["now"]
        return now

    async def due(self, to: Wish, *, after: tuple[datetime, str] | None, limit: int) -> DuePage:
        at, last_id = (after[0], uuid.UUID(after[1])) if after else (None, NO_ID)
        rows = await self._database.fetch(FOR_SERVICE[DUE_FOR[to]], at, last_id, limit)
        due = [Due(one, row["now"]) for row in rows if (one := readable(row)) is not None]
        return DuePage(due, (rows[-1]["due"], str(rows[-1]["id"])) if rows else None)

    async def standby_ttls_s(self, workspace_ids: Collection[str]) -> Mapping[str, float]:
        """Of those of them that there are."""
        rows = await self._database.fetch(FOR_SERVICE["standby_ttls"], [uuid.UUID(one) for one in workspace_ids])
        return {row["id"]: row["standby_ttl_s"] for row in rows}

    async def work_leases(self, workspace_id: str) -> Sequence[WorkLease]:
        rows = await self._database.fetch(FOR_SERVICE["work_leases_of"], uuid.UUID(workspace_id))
        return [_to_work_lease(row) for row in rows]

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator["Writing"]:
        """One transaction: everything in it is accepted together, or nothing."""
        async with self._database.transaction() as connection:
            yield Writing(connection)


class Writing:
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
            )

    async def running_besides(self, workspace_id: str, *, owner_id: str | None = None) -> RunningNow:
        """Who else runs, of this owner or of this workspace's; nobody else is admitted before this transaction has ended."""
        await self._connection.execute(FOR_SERVICE["hold_limits"])
        owner = uuid.UUID(owner_id) if owner_id else None
        row = await self._connection.fetchrow(FOR_SERVICE["count_running"], owner, uuid.UUID(workspace_id))
        return RunningNow(of_user=row["of_user"], overall=row["overall"])

    async def set_wish(
        self, workspace_id: str, wish: Wish, *, purge: bool = False, origin: WishOrigin = WishOrigin.PERSON
    ) -> None:
        # Undelete takes the name back into use, and somebody else may bear it by now.
        with _refusing_taken_names():
            await self._connection.execute(FOR_SERVICE["set_wish"], uuid.UUID(workspace_id), wish, purge, origin)

    async def change(self, workspace_id: str, change: WorkspaceChange) -> None:
        with _refusing_taken_names():
            await self._connection.execute(
                FOR_SERVICE["change_workspace"],
                uuid.UUID(workspace_id),
                change.name,
                change.standby_ttl_s,
                change.archive_ttl_s,
                change.desired_state,
            )

    async def set_recovery(self, workspace_id: str, archive: Archive | None, *, empty: bool) -> None:
        await self._connection.execute(
            FOR_SERVICE["set_recovery"], uuid.UUID(workspace_id), from_recovery(archive, empty=empty)
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

    async def delete_work_leases(self, workspace_id: str, lease_id: str | None) -> int:
        """How many there were: this one, or all of them."""
        one = uuid.UUID(lease_id) if lease_id else None
        return len(await self._connection.fetch(FOR_SERVICE["delete_work_leases"], uuid.UUID(workspace_id), one))

    async def archive_standing(self, workspace_id: str, key: str) -> ArchiveStanding:
        row = await self._connection.fetchrow(COLLECTING["archive_standing"], uuid.UUID(workspace_id), key)
        if row is None:
            return ArchiveStanding.NONE
        return ArchiveStanding.MARKED if row["is_marked"] else ArchiveStanding.KEPT


@contextlib.contextmanager
def _refusing_taken_names() -> Any:
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise NameTaken from error


def _to_user(row: Mapping[str, Any]) -> User:
    return User(str(row["id"]), row["username"], row["is_admin"])


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
