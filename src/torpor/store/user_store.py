"""Read and write users and their credentials.

Statements and rows only: `torpor.accounts` decides who can sign in. Of every secret only a digest reaches this module.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from torpor.domain.unconfined import ControllerConfinement
from torpor.store.controller_members import members
from torpor.store.database import Database
from torpor.store.queries import USER_STORE


@dataclass(frozen=True, slots=True)
class User:
    id: str
    username: str
    is_admin: bool
    is_active: bool = True
    max_running: int | None = None
    """How many workspaces can run at the same time; None: the default of the settings."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user, with data that other users do not see."""

    user: User
    password: str | None
    """The argon2id hash; None: the user cannot sign in with a password."""
    created_at: datetime
    is_from_provider: bool
    """Whether the user signs in with an OIDC provider."""
    is_one_time: bool = False
    """The password is valid for one sign-in."""


@dataclass(frozen=True, slots=True)
class NewUser:
    username: str
    is_admin: bool = False
    password: str | None = None
    max_running: int | None = None
    issuer: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    """What identifies a user: a session, a token or a door."""

    id: str
    user_id: str
    kind: str
    label: str
    scopes: tuple[str, ...]
    workspace_id: str | None
    made_from: str
    user_agent: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewCredential:
    user_id: str
    kind: str
    label: str
    digest: bytes
    scopes: Collection[str] = ()
    made_from: str = ""
    user_agent: str = ""
    lives_s: float | None = None
    until: datetime | None = None
    """It expires at this time at the latest."""
    creator_id: str | None = None
    """The token that created it; it is revoked together with that one."""


@dataclass(frozen=True, slots=True)
class EndedCredential:
    """A credential that was deleted."""

    label: str
    ids: tuple[str, ...]
    """Its own, and those of the doors and tokens that were created with it."""


@dataclass(frozen=True, slots=True)
class DoorCode:
    session_id: str
    workspace_id: str
    nonce: bytes
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A new entry of the audit log."""

    action: str
    username: str
    user_id: str | None = None
    how: str = "NOBODY"
    token_label: str = ""
    came_from: str = ""
    workspace_id: str | None = None
    workspace: str = ""
    outcome: str = "ok"
    detail: Mapping[str, Any] = field(default_factory=dict)


async def write_audit(connection: Any, entry: AuditEntry) -> None:
    """`connection`: any connection or database, so that the entry is in the same transaction as the action."""
    await connection.execute(
        USER_STORE["audit"],
        entry.username,
        _id(entry.user_id),
        entry.how,
        entry.token_label,
        entry.came_from,
        entry.action,
        _id(entry.workspace_id),
        entry.workspace,
        entry.outcome,
        dict(entry.detail),
    )


class UserStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def by_id(self, user_id: str) -> Account | None:
        return _account(await self._database.fetchrow(USER_STORE["user_by_id"], uuid.UUID(user_id)))

    async def by_name(self, username: str) -> Account | None:
        # No user has such a name, and the database refuses some of these characters in a query.
        if not username.isprintable():
            return None
        return _account(await self._database.fetchrow(USER_STORE["user_by_name"], username))

    async def by_subject(self, issuer: str, subject: str) -> Account | None:
        return _account(await self._database.fetchrow(USER_STORE["user_by_subject"], issuer, subject))

    async def taken(self, usernames: Collection[str]) -> frozenset[str]:
        """Which of these names are in use."""
        rows = await self._database.fetch(USER_STORE["taken_names"], list(usernames))
        return frozenset(row["username"] for row in rows)

    async def page(self, *, after: str, limit: int) -> Sequence[Account]:
        """Users by name, after this one."""
        return [_to_account(row) for row in await self._database.fetch(USER_STORE["list_users"], after, limit)]

    async def recognise(self, digest: bytes) -> tuple[User, Credential] | None:
        """The user; None if the credential is unknown or expired, or the user is deactivated."""
        row = await self._database.fetchrow(USER_STORE["recognise"], digest)
        if row is not None and row["is_used_anew"]:
            await self._database.execute(USER_STORE["used_now"], row["id"])
        return _recognised(row)

    async def recognise_again(self, credential_id: str) -> tuple[User, Credential] | None:
        return _recognised(await self._database.fetchrow(USER_STORE["recognise_again"], uuid.UUID(credential_id)))

    async def credentials(self, user_id: str, kind: str) -> Sequence[Credential]:
        rows = await self._database.fetch(USER_STORE["credentials_of"], uuid.UUID(user_id), kind)
        return [_to_credential(row) for row in rows]

    async def delete_expired(self) -> None:
        await self._database.execute(USER_STORE["delete_expired"])
        await self._database.execute(USER_STORE["delete_expired_codes"])
        await self._database.execute(USER_STORE["delete_expired_sign_in_codes"])

    async def audit(self, entry: AuditEntry) -> None:
        await write_audit(self._database, entry)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator["UserTransaction"]:
        """One transaction: the actions and their audit entries are written together, or not at all."""
        async with self._database.transaction() as connection:
            yield UserTransaction(connection)


class UserTransaction:
    """The statements inside one transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def audit(self, entry: AuditEntry) -> None:
        await write_audit(self._connection, entry)

    async def create_user(self, new: NewUser) -> Account | None:
        """None when the name or the provider's subject has a user already."""
        row = await self._connection.fetchrow(
            USER_STORE["create_user"],
            uuid.uuid4(),
            new.username,
            new.is_admin,
            new.password,
            new.max_running,
            new.issuer,
            new.subject,
        )
        return _account(row)

    async def lock_user(self, user_id: str) -> Account | None:
        return _account(await self._connection.fetchrow(USER_STORE["lock_user"], uuid.UUID(user_id)))

    async def lock_administrators(self) -> frozenset[str]:
        """The ids of the administrators that can sign in."""
        return frozenset(str(row["id"]) for row in await self._connection.fetch(USER_STORE["lock_administrators"]))

    async def administrators(self) -> frozenset[str]:
        """The names of the active administrators, with or without a password."""
        return frozenset(row["username"] for row in await self._connection.fetch(USER_STORE["administrators"]))

    async def hold_registry(self) -> None:
        """No other user can sign in and no controller joins until this transaction ends."""
        await self._connection.execute(USER_STORE["hold_registry"])

    async def users_and_confinements(self) -> tuple[int, Sequence[ControllerConfinement]]:
        """How many users can sign in, and what each living controller confines; both are fixed until this transaction ends."""
        await self.hold_registry()
        users: int = await self._connection.fetchval(USER_STORE["count_users"])
        return users, [one.confinement for one in await members(self._connection)]

    async def change_user(self, user: User) -> Account:
        row = await self._connection.fetchrow(
            USER_STORE["change_user"], uuid.UUID(user.id), user.is_admin, user.is_active, user.max_running
        )
        return _to_account(row)

    async def set_password(self, user_id: str, password: str | None, *, is_one_time: bool = False) -> None:
        await self._connection.execute(USER_STORE["set_password"], uuid.UUID(user_id), password, is_one_time)

    async def create_credential(self, new: NewCredential) -> Credential:
        row = await self._connection.fetchrow(
            USER_STORE["create_credential"],
            uuid.uuid4(),
            uuid.UUID(new.user_id),
            new.kind,
            new.label,
            new.digest,
            sorted(new.scopes),
            new.made_from,
            new.user_agent,
            new.lives_s,
            new.until,
            _id(new.creator_id),
        )
        return _to_credential(row)

    async def hold_credential(self, credential_id: str) -> Credential | None:
        """The credential, if it is still valid; it stays valid until this transaction ends."""
        row = await self._connection.fetchrow(USER_STORE["hold_credential"], uuid.UUID(credential_id))
        return _to_credential(row) if row else None

    async def credentials(self, user_id: str, kind: str) -> Sequence[Credential]:
        rows = await self._connection.fetch(USER_STORE["credentials_of"], uuid.UUID(user_id), kind)
        return [_to_credential(row) for row in rows]

    async def end(self, user_id: str, credential_id: str, kind: str) -> EndedCredential | None:
        """Delete a credential of this user; None when there is none of this kind."""
        await self._lock_credentials(user_id)
        row = await self._connection.fetchrow(USER_STORE["end_credential"], uuid.UUID(credential_id), uuid.UUID(user_id), kind)
        return EndedCredential(row["label"], (str(row["id"]), *map(str, row["created"]))) if row else None

    async def end_credentials(self, user_id: str, kinds: Collection[str], *, but: str | None = None) -> frozenset[str]:
        await self._lock_credentials(user_id)
        if but is not None:
            await self._connection.execute(USER_STORE["forget_creator"], uuid.UUID(but), uuid.UUID(user_id))
        await self._connection.execute(USER_STORE["drop_sign_in_codes"], uuid.UUID(user_id))
        ended = await self._connection.fetch(USER_STORE["end_credentials"], uuid.UUID(user_id), list(kinds), _id(but))
        return _ids(ended)

    async def create_sign_in_code(self, digest: bytes, user_id: str, *, lives_s: float) -> None:
        await self._connection.execute(USER_STORE["create_sign_in_code"], digest, uuid.UUID(user_id), lives_s)

    async def take_sign_in_code(self, digest: bytes) -> str | None:
        """The id of the user; None when the code is unknown, used or expired."""
        row = await self._connection.fetchrow(USER_STORE["take_sign_in_code"], digest)
        return str(row["user_id"]) if row is not None and row["is_fresh"] else None

    async def end_oldest_sessions(self, user_id: str, *, keep: int) -> frozenset[str]:
        await self._lock_credentials(user_id)
        return _ids(await self._connection.fetch(USER_STORE["end_oldest_sessions"], uuid.UUID(user_id), keep))

    async def ensure_token(self, user_id: str, label: str, digest: bytes, scopes: Collection[str]) -> frozenset[str]:
        """Make this token valid, and delete all others with this label; return their ids."""
        await self._lock_credentials(user_id)
        ended = await self._connection.fetch(USER_STORE["delete_tokens_labelled"], uuid.UUID(user_id), label, digest)
        await self._connection.execute(
            USER_STORE["ensure_token"], uuid.uuid4(), uuid.UUID(user_id), label, digest, sorted(scopes)
        )
        return _ids(ended)

    async def create_door_code(self, digest: bytes, code: DoorCode, *, lives_s: float, keep: int) -> bool:
        """False when the session has ended meanwhile. The session's oldest codes beyond `keep` are deleted."""
        row = await self._connection.fetchrow(
            USER_STORE["create_door_code"],
            digest,
            uuid.UUID(code.session_id),
            uuid.UUID(code.workspace_id),
            code.nonce,
            lives_s,
        )
        await self._connection.execute(USER_STORE["drop_oldest_codes"], uuid.UUID(code.session_id), keep)
        return row is not None

    async def take_door_code(self, digest: bytes) -> DoorCode | None:
        await self._connection.execute(USER_STORE["hold_session_of_code"], digest)
        row = await self._connection.fetchrow(USER_STORE["take_door_code"], digest)
        if row is None:
            return None
        return DoorCode(str(row["session_id"]), str(row["workspace_id"]), row["nonce"], row["is_fresh"])

    async def create_door(self, digest: bytes, code: DoorCode, *, made_from: str, user_agent: str) -> bool:
        """False when the session has ended meanwhile."""
        row = await self._connection.fetchrow(
            USER_STORE["create_door"],
            uuid.uuid4(),
            digest,
            uuid.UUID(code.workspace_id),
            made_from,
            user_agent,
            uuid.UUID(code.session_id),
        )
        return row is not None

    async def end_oldest_doors(self, code: DoorCode, *, keep: int) -> frozenset[str]:
        session_id, workspace_id = uuid.UUID(code.session_id), uuid.UUID(code.workspace_id)
        return _ids(await self._connection.fetch(USER_STORE["end_oldest_doors"], session_id, workspace_id, keep))

    async def _lock_credentials(self, user_id: str) -> None:
        """Otherwise a door or token created meanwhile would end with its creator without an announcement."""
        await self._connection.execute(USER_STORE["lock_user"], uuid.UUID(user_id))
        await self._connection.execute(USER_STORE["lock_credentials"], uuid.UUID(user_id))


def _id(text: str | None) -> uuid.UUID | None:
    return uuid.UUID(text) if text else None


def _ids(rows: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(str(row["id"]) for row in rows)


def _recognised(row: Mapping[str, Any] | None) -> tuple[User, Credential] | None:
    if row is None:
        return None
    user = User(str(row["user_id"]), row["username"], row["is_admin"], row["is_active"], row["max_running"])
    return user, _to_credential(row)


def _account(row: Mapping[str, Any] | None) -> Account | None:
    return _to_account(row) if row else None


def _to_account(row: Mapping[str, Any]) -> Account:
    return Account(
        User(str(row["id"]), row["username"], row["is_admin"], row["is_active"], row["max_running"]),
        row["password"],
        row["created_at"],
        row["issuer"] is not None,
        row["is_one_time"],
    )


def _to_credential(row: Mapping[str, Any]) -> Credential:
    return Credential(
        id=str(row["id"]),
        user_id=str(row["user_id"]),
        kind=row["kind"],
        label=row["label"],
        scopes=tuple(row["scopes"]),
        workspace_id=str(row["workspace_id"]) if row["workspace_id"] else None,
        made_from=row["made_from"],
        user_agent=row["user_agent"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
    )
