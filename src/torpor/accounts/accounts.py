"""Manage users, sessions, API tokens and the sign-in at workspaces' own hosts.

Every change is written in one transaction with its audit entry. Revocations are then published to all processes.
"""

import dataclasses
import hmac
import itertools
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import structlog

from torpor.accounts.access_watch import RevocationWatch
from torpor.accounts.callers import AuthMethod, Caller, to_caller
from torpor.accounts.passwords import Passwords
from torpor.accounts.secret import digest, new_token
from torpor.bus.login_throttle import Throttle, TooManySignIns
from torpor.bus.revocations import Revocations
from torpor.domain.access import EVERY_SCOPE, Scope
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.names import is_id
from torpor.domain.unconfined import CONFINED, ControllerConfinement, admit_sign_in, admit_user
from torpor.domain.usernames import check_password, check_username, usernames
from torpor.store.database import retry_deadlock
from torpor.store.user_store import (
    Account,
    AuditEntry,
    Credential,
    DoorCode,
    NewCredential,
    NewUser,
    User,
    UserStore,
    UserTransaction,
)

log = structlog.get_logger()

DOOR_CODE_LIVES_S = 30.0
SIGN_IN_CODE_LIVES_S = 15 * 60.0
SESSIONS_AT_MOST = 50
"""Of one user. A new one ends the oldest."""
DOORS_AT_MOST = 20
"""Workspace cookies of one session at one workspace, which has a host for each of its ports. A new one ends the oldest."""
DOOR_CODES_AT_MOST = 50
"""Of one session. A new one ends the oldest."""
TOKENS_AT_MOST = 100
LONGEST_TOKEN_LIFE_S = 10 * 365 * 86_400
LONGEST_LABEL = 100
LONGEST_USER_AGENT = 200
LONGEST_SUBJECT = 255
"""The limit of OpenID Connect."""
NAMES_AT_ONCE = 100

BY_SESSION = frozenset({AuthMethod.SESSION, AuthMethod.DOOR})
BY_ANYTHING = frozenset(AuthMethod)


class Unchanged(Enum):
    SAME = auto()
    """Keep the current value."""


SAME = Unchanged.SAME


@dataclass(frozen=True, slots=True)
class UserChange:
    """The fields that an administrator changes in one request."""

    is_admin: bool | Unchanged = SAME
    is_active: bool | Unchanged = SAME
    max_running: int | Unchanged | None = SAME
    password: str | Unchanged = SAME


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """A user as an OpenID Connect provider identifies them."""

    issuer: str
    subject: str
    names: tuple[str, ...] = ()
    """Proposals for the user name, the best first."""
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The address and the user agent of a browser."""

    came_from: str = ""
    user_agent: str = ""


class Accounts:
    def __init__(
        self,
        store: UserStore,
        revocations: Revocations,
        throttle: Throttle,
        *,
        session_ttl_s: float,
        passwords: Passwords | None = None,
        confinement: ControllerConfinement = CONFINED,
    ) -> None:
        """`confinement`: of this process's own engine. It counts even while its controller is not registered."""
        self.session_ttl_s = session_ttl_s
        self._store = store
        self._revocations = revocations
        self._throttle = throttle
        self._passwords = passwords or Passwords()
        self.confinement = confinement
        self._watching = RevocationWatch(revocations, self.check_rights)

    # ── callers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def recognise(self, token: str, *, came_from: str = "") -> Caller:
        """Refused `unauthorized` if the token is unknown, expired or revoked, or its user is not active."""
        known = await self._store.recognise(digest(token))
        if known is None:
            raise _unknown()
        return to_caller(*known, came_from=came_from)

    async def recognise_again(self, caller: Caller) -> Caller:
        """The caller with the current rights; Refused `unauthorized` when the credential or the user is no longer valid."""
        known = await self._store.recognise_again(caller.credential_id)
        if known is None:
            raise _unknown()
        return to_caller(*known, came_from=caller.came_from)

    async def check_rights(self, caller: Caller) -> Caller:
        """Like `recognise_again`, and Refused `unauthorized` also when the caller has lost a right."""
        now = await self.recognise_again(caller)
        if caller.has_lost(now):
            raise _unknown()
        return now

    async def until_ended(self, caller: Caller) -> None:
        """Return once this caller is signed out or has lost a right; at once while `run` runs."""
        await self._watching.until_ended(caller)

    async def run(self) -> None:
        """Listen for revocations until cancelled."""
        await self._watching.run()

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @retry_deadlock
    async def sign_in(self, username: str, password: str, *, came_from: str = "", user_agent: str = "") -> str:
        """Check the password and return the token of a new session."""
        name = username.strip().lower()
        await self._admit(name, came_from)
        account = await self._store.by_name(name)
        stored = account.password if account is not None and account.user.is_active else None
        checked = await self._passwords.check(password, stored, came_from=came_from)
        if account is None or not checked.is_right:
            refused = AuditEntry(
                "session.refused",
                username=name,
                user_id=account.user.id if account is not None else None,
                came_from=came_from,
                outcome="bad_credentials",
            )
            await self._store.audit(refused)
            raise _bad_credentials()
        await self._throttle.forgive(name, came_from)
        async with self._store.writing() as writing:
            now = await writing.lock_user(account.user.id)
            # The password was changed while this one was checked.
            if now is None or now.password != stored or not now.user.is_active:
                raise _bad_credentials()
            if now.is_one_time:
                await writing.set_password(account.user.id, None)
            elif checked.newer is not None:
                await writing.set_password(account.user.id, checked.newer)
            token, ended = await self._begin_session(writing, now.user, ClientInfo(came_from, user_agent), "password")
        await self._revocations.revoked(*ended)
        await self._tidy()
        return token

    @retry_deadlock
    async def sign_in_with(self, identity: ProviderIdentity, *, came_from: str = "", user_agent: str = "") -> str:
        """Return the token of a new session for an identity that the provider confirmed. The first sign-in creates the user."""
        if not 1 <= len(identity.subject) <= LONGEST_SUBJECT or not identity.subject.isprintable():
            await self.not_vouched_for("bad_subject", came_from=came_from)
            raise Refused("sign_in_refused", "the sign-in provider sent no valid subject for this user")
        try:
            known = (await self._of(identity)).user
        except Refused as refused:
            await self.not_vouched_for(refused.code, came_from=came_from)
            raise
        if not known.is_active:
            await self.not_vouched_for("unauthorized", known, came_from=came_from)
            raise _not_any_more()
        async with self._store.writing() as writing:
            account = await writing.lock_user(known.id)
            if account is None or not account.user.is_active:
                raise _not_any_more()
            user = account.user
            if identity.is_admin and not user.is_admin:
                user = (await writing.change_user(dataclasses.replace(user, is_admin=True))).user
                detail = {**_told(account.user, user, has_password=False), "by": "oidc"}
                await writing.audit(_by_itself("user.change", user, came_from, detail))
            token, ended = await self._begin_session(writing, user, ClientInfo(came_from, user_agent), "oidc")
        await self._revocations.revoked(*ended)
        await self._tidy()
        return token

    async def sign_in_code(self, user: User) -> str:
        """A code that signs one browser in as this user: once, within minutes."""
        code = new_token()
        async with self._store.writing() as writing:
            await writing.create_sign_in_code(digest(code), user.id, lives_s=SIGN_IN_CODE_LIVES_S)
        return code

    @retry_deadlock
    async def sign_in_by_code(self, code: str, *, came_from: str = "", user_agent: str = "") -> str:
        """Return the token of a new session; Refused `bad_sign_in_link`. A code works once, even when it is refused."""
        token: str | None = None
        ended: frozenset[str] = frozenset()
        async with self._store.writing() as writing:
            user_id = await writing.take_sign_in_code(digest(code))
            account = await writing.lock_user(user_id) if user_id is not None else None
            if account is not None and account.user.is_active:
                token, ended = await self._begin_session(writing, account.user, ClientInfo(came_from, user_agent), "link")
        await self._revocations.revoked(*ended)
        if token is None:
            raise Refused("bad_sign_in_link", "this sign-in link was used already or has expired; sign in with your password")
        await self._tidy()
        return token

    async def not_vouched_for(self, outcome: str, user: User | None = None, *, came_from: str = "") -> None:
        """Write an audit entry for a refused sign-in with a provider. Limited for each address, so it cannot fill the log."""
        name = user.username if user is not None else ""
        try:
            await self._throttle.admit(name, came_from)
        except TooManySignIns:
            return
        refused = AuditEntry(
            "session.refused",
            username=name,
            user_id=user.id if user is not None else None,
            came_from=came_from,
            outcome=outcome,
            detail={"by": "oidc"},
        )
        await self._store.audit(refused)

    async def sign_out(self, caller: Caller) -> None:
        """End the caller's session. An API token does not end by this."""
        if caller.how is AuthMethod.SESSION:
            await self.end_session(caller, caller.credential_id)

    async def sessions(self, caller: Caller) -> Sequence[Credential]:
        return await self._store.credentials(caller.user.id, AuthMethod.SESSION)

    async def end_session(self, caller: Caller, session_id: str) -> None:
        """End one of the caller's sessions, with its workspace cookies."""
        await self._end(caller, session_id, AuthMethod.SESSION, "session.end", f"you have no session {session_id!r}")

    @retry_deadlock
    async def end_all(self, caller: Caller, id_or_name: str) -> None:
        """End all sessions and API tokens of a user, so that stolen ones stop working.

        The caller's own credential stays, because administrators may do this to themselves.
        """
        user = (await self.user(id_or_name)).user
        async with self._store.writing() as writing:
            await writing.lock_user(user.id)
            ended = await writing.end_credentials(user.id, BY_ANYTHING, but=caller.credential_id)
            detail = {"user_id": user.id, "username": user.username, "sessions": "all", "tokens": "all"}
            await writing.audit(caller.entry("session.end", detail=detail))
        await self._revocations.revoked(*ended)

    # ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def make_token(
        self, caller: Caller, label: str, scopes: Collection[Scope], lives_s: float | None
    ) -> tuple[Credential, str]:
        """Return the token's row, and the token itself, which is not stored.

        A token cannot create one with more scopes or a longer life than its own. Revoking a token revokes those it created.
        """
        label = label.strip()
        if not 1 <= len(label) <= LONGEST_LABEL or not label.isprintable():
            raise Refused("bad_token", f"the label of an API token must have 1 to {LONGEST_LABEL} printable characters")
        if lives_s is not None and not 1 <= lives_s <= LONGEST_TOKEN_LIFE_S:
            raise Refused("bad_token", f"expires_in must be 1 to {LONGEST_TOKEN_LIFE_S} seconds, or null for no expiry")
        if not scopes:
            raise Refused("bad_token", f"an API token needs at least one scope: {', '.join(Scope)}")
        secret = new_token()
        async with self._store.writing() as writing:
            account = await writing.lock_user(caller.user.id)
            creator = await writing.hold_credential(caller.credential_id)
            if account is None or creator is None:
                raise _unknown()
            # With the current rights: they may have changed since the caller was authenticated.
            beyond = sorted(set(scopes) - to_caller(account.user, creator).scopes)
            if beyond:
                raise Refused(
                    "scope_missing", f"an API token cannot create one with more scopes than its own: {', '.join(beyond)}"
                )
            if len(await writing.credentials(caller.user.id, AuthMethod.TOKEN)) >= TOKENS_AT_MOST:
                raise Refused(
                    "too_many_tokens", f"a user has at most {TOKENS_AT_MOST} API tokens; revoke one that you do not use"
                )
            new = NewCredential(
                caller.user.id,
                AuthMethod.TOKEN,
                label,
                digest(secret),
                scopes=frozenset(scopes),
                made_from=caller.came_from,
                lives_s=lives_s,
                until=creator.expires_at if caller.how is AuthMethod.TOKEN else None,
                creator_id=creator.id if caller.how is AuthMethod.TOKEN else None,
            )
            made = await writing.create_credential(new)
            await writing.audit(caller.entry("token.create", detail={"id": made.id, "label": label, "scopes": sorted(scopes)}))
        return made, secret

    async def tokens(self, caller: Caller) -> Sequence[Credential]:
        return await self._store.credentials(caller.user.id, AuthMethod.TOKEN)

    async def revoke(self, caller: Caller, token_id: str) -> None:
        """Revoke one of the caller's API tokens, with those that it created."""
        await self._end(caller, token_id, AuthMethod.TOKEN, "token.revoke", f"you have no API token {token_id!r}")

    # ── users ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def users(self, *, after: str = "", limit: int = 100) -> Sequence[Account]:
        """Sorted by name, beginning after this one."""
        return await self._store.page(after=after, limit=limit)

    async def user(self, id_or_name: str) -> Account:
        find = self._store.by_id if is_id(id_or_name) else self._store.by_name
        account = await find(id_or_name)
        if account is None:
            raise _no_such_user(id_or_name)
        return account

    async def create_user(
        self,
        caller: Caller,
        username: str,
        *,
        password: str | None = None,
        is_admin: bool = False,
        max_running: int | None = None,
    ) -> Account:
        check_username(username)
        hashed = await self._passwords.hash(check_password(password)) if password is not None else None
        async with self._store.writing() as writing:
            made = await writing.create_user(NewUser(username, is_admin, hashed, max_running))
            if made is None:
                raise Refused("name_taken", f"there is already a user {username!r}", name=username)
            admit_user(*await self._users_and_confinements(writing), failed=f"user {username!r} was not created")
            detail = {"user_id": made.user.id, "username": username, "is_admin": is_admin}
            await writing.audit(caller.entry("user.create", detail=detail))
        return made

    @retry_deadlock
    async def change_user(self, caller: Caller, id_or_name: str, change: UserChange) -> Account:
        """Change a user. Deactivating a user, or setting another password, ends the user's sessions at once.

        Another password ends the API tokens, too, because the administrator cannot know who created them. The tokens of a user
        who is not active do not work, and work again when the user is active again.
        """
        user_id = (await self.user(id_or_name)).user.id
        hashed: str | None = None
        if not isinstance(change.password, Unchanged):
            hashed = await self._passwords.hash(check_password(change.password))
        async with self._store.writing() as writing:
            administrators = await writing.lock_administrators()
            account = await writing.lock_user(user_id)
            if account is None:
                raise _no_such_user(id_or_name)
            before, wished = account.user, _changed(account.user, change)
            is_given_up = (before.is_admin and before.is_active) and not (wished.is_admin and wished.is_active)
            if is_given_up and administrators <= {user_id}:
                raise Refused(
                    "last_administrator",
                    f"{before.username!r} is the only administrator who can sign in; make another user an administrator first",
                )
            after = await writing.change_user(wished)
            if wished.is_active > before.is_active:
                failed = f"user {before.username!r} was not activated"
                admit_user(*await self._users_and_confinements(writing), failed=failed)
            if hashed is not None:
                await writing.set_password(user_id, hashed)
            ended: frozenset[str] = frozenset()
            if hashed is not None or not wished.is_active:
                kinds = BY_ANYTHING if hashed is not None else BY_SESSION
                ended = await writing.end_credentials(user_id, kinds, but=caller.credential_id if wished.is_active else None)
            await writing.audit(caller.entry("user.change", detail=_told(before, wished, has_password=hashed is not None)))
        await self._revocations.revoked(*ended)
        # A user who gets more rights keeps the open connections; the new rights count from the next request on.
        if before.is_active > wished.is_active or before.is_admin > wished.is_admin:
            await self._revocations.of_user(user_id)
        return after

    @retry_deadlock
    async def change_password(self, caller: Caller, old: str | None, new: str, *, ends_tokens: bool = False) -> None:
        """Set the caller's own password and end the caller's other sessions. `old` is needed only if there is a password."""
        # Otherwise an API token could set a first password and sign in as the user.
        if caller.how is not AuthMethod.SESSION:
            raise Refused("forbidden", "an API token cannot set the password; sign in with a browser to do it")
        check_password(new)
        name = caller.user.username
        account = await self.user(caller.user.id)
        if account.password is not None:
            await self._admit(name, caller.came_from)
            checked = await self._passwords.check(old or "", account.password, came_from=caller.came_from)
            if not checked.is_right:
                await self._store.audit(caller.entry("user.change", outcome="bad_credentials", detail={"password": True}))
                raise Refused("wrong_password", "the current password is wrong")
            await self._throttle.forgive(name, caller.came_from)
        hashed = await self._passwords.hash(new)
        async with self._store.writing() as writing:
            now = await writing.lock_user(caller.user.id)
            if now is None or now.password != account.password:
                raise Refused("wrong_password", "your password was changed just now; try again")
            await writing.set_password(caller.user.id, hashed)
            kinds = BY_ANYTHING if ends_tokens else BY_SESSION
            ended = await writing.end_credentials(caller.user.id, kinds, but=caller.credential_id)
            detail = {**_told(now.user, now.user, has_password=True), **({"tokens": "all"} if ends_tokens else {})}
            await writing.audit(caller.entry("user.change", detail=detail))
        await self._revocations.revoked(*ended)

    # ── sign-in at workspaces' own hosts ──────────────────────────────────────────────────────────────────────────────

    @retry_deadlock
    async def door_code(self, caller: Caller, workspace_id: str, nonce_digest: bytes) -> str:
        """A code that signs the browser with this nonce in at this workspace's host: once, within seconds."""
        if caller.how is not AuthMethod.SESSION:
            raise Refused(
                "unauthorized", "only a browser session can open a workspace's address; programs send their API token"
            )
        code = new_token()
        async with self._store.writing() as writing:
            asked = DoorCode(caller.credential_id, workspace_id, nonce_digest, is_fresh=True)
            made = await writing.create_door_code(digest(code), asked, lives_s=DOOR_CODE_LIVES_S, keep=DOOR_CODES_AT_MOST)
            if not made:
                raise _unknown()
        return code

    @retry_deadlock
    async def redeem(
        self, code: str, nonce: str, workspace_id: str, *, came_from: str = "", user_agent: str = ""
    ) -> tuple[str, Caller]:
        """Return the value of the cookie on the workspace's host, and its caller; Refused `bad_door_code`.

        A code works once, even when it is refused. `nonce` is what the browser was given on that host before.
        """
        token = new_token()
        ended: frozenset[str] = frozenset()
        async with self._store.writing() as writing:
            asked = await writing.take_door_code(digest(code))
            is_good = (
                asked is not None
                and asked.is_fresh
                and asked.workspace_id == workspace_id
                and hmac.compare_digest(asked.nonce, digest(nonce))
                and await writing.create_door(
                    digest(token), asked, made_from=came_from, user_agent=user_agent[:LONGEST_USER_AGENT]
                )
            )
            if asked is not None and is_good:
                ended = await writing.end_oldest_doors(asked, keep=DOORS_AT_MOST)
        await self._revocations.revoked(*ended)
        if not is_good:
            raise Refused(
                "bad_door_code",
                "this sign-in was used already, has expired, or belongs to another browser; open the page again",
            )
        return token, await self.recognise(token, came_from=came_from)

    # ── the first user ────────────────────────────────────────────────────────────────────────────────────────────────

    async def knows(self, username: str, password: str) -> bool:
        """Whether this is the password of this user."""
        account = await self._store.by_name(username)
        return account is not None and (await self._passwords.check(password, account.password)).is_right

    async def ensure_admin(self, username: str, password: str) -> User:
        """Create the first user of an installation. An existing user keeps the password."""
        account = await self._store.by_name(username)
        if account is None:
            new = NewUser(username, is_admin=True, password=await self._passwords.hash(password))
            async with self._store.writing() as writing:
                await writing.create_user(new)
                admit_user(*await self._users_and_confinements(writing), failed=f"user {username!r} was not created")
                await writing.audit(AuditEntry("user.create", username=username, how="SYSTEM", detail={"username": username}))
            account = await self._store.by_name(username)
        assert account is not None, "the user exists"
        return account.user

    async def ensure_token(self, user: User, label: str, token: str) -> None:
        """Make this the only token with this label, with every scope."""
        async with self._store.writing() as writing:
            ended = await writing.ensure_token(user.id, label, digest(token), EVERY_SCOPE)
        await self._revocations.revoked(*ended)

    # ── ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _admit(self, name: str, came_from: str) -> None:
        try:
            await self._throttle.admit(name, came_from)
        except TooManySignIns as refused:
            # Only the first refusal is written: the others would fill the log.
            if refused.is_news:
                await self._store.audit(AuditEntry("session.refused", username=name, came_from=came_from, outcome=refused.code))
            raise

    async def _users_and_confinements(self, writing: UserTransaction) -> tuple[int, Sequence[ControllerConfinement]]:
        """Called after the user is written, so that the count includes it."""
        users, confinements = await writing.users_and_confinements()
        return users, [self.confinement, *confinements]

    async def _tidy(self) -> None:
        """Delete expired credentials. A failure does not fail the request that called this."""
        try:
            await self._store.delete_expired()
        except Unavailable as out:
            log.warning("expired_not_deleted", why=out.message)

    async def _begin_session(
        self, writing: UserTransaction, user: User, visit: ClientInfo, by: str
    ) -> tuple[str, frozenset[str]]:
        """The token of a new session, and the ids of the sessions that it ended."""
        token = new_token()
        new = NewCredential(
            user.id,
            AuthMethod.SESSION,
            "session",
            digest(token),
            made_from=visit.came_from,
            user_agent=visit.user_agent[:LONGEST_USER_AGENT],
            lives_s=self.session_ttl_s,
        )
        made = await writing.create_credential(new)
        ended = await writing.end_oldest_sessions(user.id, keep=SESSIONS_AT_MOST)
        begun = Caller(user, AuthMethod.SESSION, made.id, EVERY_SCOPE, made.label, came_from=visit.came_from)
        await writing.audit(begun.entry("session.begin", detail={"by": by, "user_agent": new.user_agent}))
        return token, ended

    async def _of(self, identity: ProviderIdentity) -> Account:
        """The account of this identity. Found by issuer and subject only, so a name never gives access to another user."""
        known = await self._store.by_subject(identity.issuer, identity.subject)
        if known is not None:
            return known
        async for name in self._free_names(identity.names):
            new = NewUser(name, is_admin=identity.is_admin, issuer=identity.issuer, subject=identity.subject)
            async with self._store.writing() as writing:
                made = await writing.create_user(new)
                if made is not None:
                    admit_sign_in(*await self._users_and_confinements(writing))
                    detail = {"user_id": made.user.id, "username": name, "issuer": identity.issuer}
                    await writing.audit(AuditEntry("user.create", username=name, how="SYSTEM", detail=detail))
            # The same user may sign in twice at once.
            known = made or await self._store.by_subject(identity.issuer, identity.subject)
            if known is not None:
                return known
        raise AssertionError("there is always another name to propose")

    async def _free_names(self, wanted: Iterable[str]) -> AsyncIterator[str]:
        """Names that are free now, the best first, without end. Another sign-in may take them meanwhile."""
        tried = usernames(wanted)
        while True:
            some = list(itertools.islice(tried, NAMES_AT_ONCE))
            taken = await self._store.taken(some)
            for name in some:
                if name not in taken:
                    yield name

    @retry_deadlock
    async def _end(self, caller: Caller, credential_id: str, how: AuthMethod, action: str, unknown: str) -> None:
        if not is_id(credential_id):
            raise Refused("not_found", unknown, kind=how.lower())
        async with self._store.writing() as writing:
            ended = await writing.end(caller.user.id, credential_id, how)
            if ended is None:
                raise Refused("not_found", unknown, kind=how.lower())
            also = [one for one in ended.ids if one != credential_id] if how is AuthMethod.TOKEN else []
            detail = {"id": credential_id, "label": ended.label, **({"also_revoked": also} if also else {})}
            await writing.audit(caller.entry(action, detail=detail))
        await self._revocations.revoked(*ended.ids)


def _changed(user: User, change: UserChange) -> User:
    values: dict[str, Any] = {
        name: value
        for name in ("is_admin", "is_active", "max_running")
        if not isinstance(value := getattr(change, name), Unchanged)
    }
    return dataclasses.replace(user, **values)


def _told(before: User, after: User, *, has_password: bool) -> dict[str, Any]:
    """The detail of an audit entry: the user, and the changed fields. For a password only that it changed."""
    changes = {
        name: getattr(after, name)
        for name in ("is_admin", "is_active", "max_running")
        if getattr(before, name) != getattr(after, name)
    }
    return {"user_id": before.id, "username": before.username, **changes, **({"password": True} if has_password else {})}


def _by_itself(action: str, user: User, came_from: str, detail: dict[str, Any]) -> AuditEntry:
    """An audit entry for a change that no caller requested."""
    return AuditEntry(action, username=user.username, user_id=user.id, how="SYSTEM", came_from=came_from, detail=detail)


def _not_any_more() -> Refused:
    return Refused("unauthorized", "this user is deactivated; ask an administrator")


def _unknown() -> Refused:
    return Refused("unauthorized", "this session or API token is unknown, expired or revoked; sign in again")


def _bad_credentials() -> Refused:
    return Refused("bad_credentials", "username or password is wrong")


def _no_such_user(id_or_name: str) -> Refused:
    return Refused("not_found", f"there is no user {id_or_name!r}", kind="user")
