"""Who may come in, and what becomes of it when they may not any more?

Every change here is written together with the line of the audit log that tells of it, and then said to everybody at once.
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

SESSION_LIVES_S = 30 * 86_400.0
DOOR_CODE_LIVES_S = 30.0
SIGN_IN_CODE_LIVES_S = 15 * 60.0
SESSIONS_AT_MOST = 50
"""Of one user; the oldest makes room."""
DOORS_AT_MOST = 20
"""By leave of one session at one workspace, which has a host for each of its ports; the oldest makes room."""
DOOR_CODES_AT_MOST = 50
"""Of one session; the oldest makes room."""
TOKENS_AT_MOST = 100
LONGEST_TOKEN_LIFE_S = 10 * 365 * 86_400
LONGEST_LABEL = 100
LONGEST_USER_AGENT = 200
LONGEST_SUBJECT = 255
"""As OpenID Connect has it."""
NAMES_AT_ONCE = 100

BY_SESSION = frozenset({AuthMethod.SESSION, AuthMethod.DOOR})
BY_ANYTHING = frozenset(AuthMethod)


class Unchanged(Enum):
    SAME = auto()
    """That stays as it is."""


SAME = Unchanged.SAME


@dataclass(frozen=True, slots=True)
class UserChange:
    """What an administrator changes at once."""

    is_admin: bool | Unchanged = SAME
    is_active: bool | Unchanged = SAME
    max_running: int | Unchanged | None = SAME
    password: str | Unchanged = SAME


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """Whom an OIDC provider vouches for."""

    issuer: str
    subject: str
    names: tuple[str, ...] = ()
    """What this person may like to be called, the best first."""
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Where a browser is, and what it says it is."""

    came_from: str = ""
    user_agent: str = ""


class Accounts:
    def __init__(
        self,
        store: UserStore,
        revocations: Revocations,
        throttle: Throttle,
        *,
        session_ttl_s: float = SESSION_LIVES_S,
        passwords: Passwords | None = None,
        confinement: ControllerConfinement = CONFINED,
    ) -> None:
        """`confinement`: of this process's own engine, which counts even while its controller is between two lives."""
        self.session_ttl_s = session_ttl_s
        self._store = store
        self._revocations = revocations
        self._throttle = throttle
        self._passwords = passwords or Passwords()
        self._confinement = confinement
        self._watching = RevocationWatch(revocations, self.recognise_again)

    # ── who is asking ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def recognise(self, token: str, *, came_from: str = "") -> Caller:
        """Refused `unauthorized` for what is unknown, has expired, was revoked, or is of somebody who may not come in."""
        known = await self._store.recognise(digest(token))
        if known is None:
            raise _unknown()
        return to_caller(*known, came_from=came_from)

    async def recognise_again(self, caller: Caller) -> Caller:
        """As they are now; Refused `unauthorized` when they may not be here any more."""
        known = await self._store.recognise_again(caller.credential_id)
        if known is None:
            raise _unknown()
        return to_caller(*known, came_from=caller.came_from)

    async def until_ended(self, caller: Caller) -> None:
        """Returns once this caller may not be here any more, or not as they were; at once where `run` runs."""
        await self._watching.until_ended(caller)

    async def run(self) -> None:
        """Hears of whatever ends anywhere, until cancelled."""
        await self._watching.run()

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @retry_deadlock
    async def sign_in(self, username: str, password: str, *, came_from: str = "", user_agent: str = "") -> str:
        """A new session's token."""
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
            # It was changed while this one was being looked at.
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
        """A new session's token, for somebody a provider vouches for; the first time makes a user of them."""
        if not 1 <= len(identity.subject) <= LONGEST_SUBJECT or not identity.subject.isprintable():
            await self.not_vouched_for("bad_subject", came_from=came_from)
            raise Refused("sign_in_refused", "the sign-in provider did not say who this is")
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
        """A code by which one browser is signed in as this user: once, within minutes."""
        code = new_token()
        async with self._store.writing() as writing:
            await writing.create_sign_in_code(digest(code), user.id, lives_s=SIGN_IN_CODE_LIVES_S)
        return code

    @retry_deadlock
    async def sign_in_by_code(self, code: str, *, came_from: str = "", user_agent: str = "") -> str:
        """A new session's token; Refused `bad_sign_in_link`. The code is used up by this, also when it is refused."""
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
        """Writes down that somebody did not come in by a provider; of one address only so often that it fills no log."""
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
        """A session ends; a token that a person made for programs does not end by this."""
        if caller.how is AuthMethod.SESSION:
            await self.end_session(caller, caller.credential_id)

    async def sessions(self, caller: Caller) -> Sequence[Credential]:
        return await self._store.credentials(caller.user.id, AuthMethod.SESSION)

    async def end_session(self, caller: Caller, session_id: str) -> None:
        """One of their own, with every door that was opened by its leave."""
        await self._end(caller, session_id, AuthMethod.SESSION, "session.end", f"there is no session {session_id!r} of yours")

    @retry_deadlock
    async def end_all(self, caller: Caller, id_or_name: str) -> None:
        """Everything a user is recognised by, tokens as well: what was stolen is worth nothing then.

        But for what the caller is recognised by, who may do this to themselves.
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
        """The token's row, and the token itself, which nobody can be told again.

        A token creates none with more scopes or a longer life than its own, and those it has created are revoked with it.
        """
        label = label.strip()
        if not 1 <= len(label) <= LONGEST_LABEL or not label.isprintable():
            raise Refused("bad_token", f"a token's label has 1 to {LONGEST_LABEL} printable characters")
        if lives_s is not None and not 1 <= lives_s <= LONGEST_TOKEN_LIFE_S:
            raise Refused("bad_token", f"a token lives for 1 to {LONGEST_TOKEN_LIFE_S} seconds, or without end")
        if not scopes:
            raise Refused("bad_token", f"say what the token is for: {', '.join(Scope)}")
        secret = new_token()
        async with self._store.writing() as writing:
            account = await writing.lock_user(caller.user.id)
            creator = await writing.hold_credential(caller.credential_id)
            if account is None or creator is None:
                raise _unknown()
            # As they are now: the caller was recognised a moment ago.
            beyond = sorted(set(scopes) - to_caller(account.user, creator).scopes)
            if beyond:
                raise Refused("scope_missing", f"a token cannot make one that may more than itself: {', '.join(beyond)}")
            if len(await writing.credentials(caller.user.id, AuthMethod.TOKEN)) >= TOKENS_AT_MOST:
                raise Refused("too_many_tokens", f"a user has at most {TOKENS_AT_MOST} tokens; revoke one that is not used")
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
        """One of their own, with every token that was created with it."""
        await self._end(caller, token_id, AuthMethod.TOKEN, "token.revoke", f"there is no token {token_id!r} of yours")

    # ── users ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def users(self, *, after: str = "", limit: int = 100) -> Sequence[Account]:
        """By their names, beginning after this one."""
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
                raise Refused("name_taken", f"there is a user {username!r} already", name=username)
            admit_user(*await self._users_and_confinements(writing), failed=f"user {username!r} was not created")
            detail = {"user_id": made.user.id, "username": username, "is_admin": is_admin}
            await writing.audit(caller.entry("user.create", detail=detail))
        return made

    @retry_deadlock
    async def change_user(self, caller: Caller, id_or_name: str, change: UserChange) -> Account:
        """Whoever may not come in any more, or has another password, is gone from everywhere at once.

        Another password ends their tokens as well: whoever sets it for somebody else does not know who made them. Who may
        not come in has no use of their tokens, and finds them again when they may.
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
                raise Refused("last_administrator", f"besides {before.username!r} there is no administrator that can sign in")
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
        # Who is given more goes on as they are; they have it all when they come again.
        if before.is_active > wished.is_active or before.is_admin > wished.is_admin:
            await self._revocations.of_user(user_id)
        return after

    @retry_deadlock
    async def change_password(self, caller: Caller, old: str | None, new: str, *, ends_tokens: bool = False) -> None:
        """Their own; every other session of theirs ends. `old` is not asked for where there is none."""
        # Where no old one is asked for, a program could make itself a person by setting the first.
        if caller.how is not AuthMethod.SESSION:
            raise Refused("forbidden", "a password is set by whoever is signed in, not by a token")
        check_password(new)
        name = caller.user.username
        account = await self.user(caller.user.id)
        if account.password is not None:
            await self._admit(name, caller.came_from)
            checked = await self._passwords.check(old or "", account.password, came_from=caller.came_from)
            if not checked.is_right:
                await self._store.audit(caller.entry("user.change", outcome="bad_credentials", detail={"password": True}))
                raise Refused("wrong_password", "that is not your present password")
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

    # ── doors ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @retry_deadlock
    async def door_code(self, caller: Caller, workspace_id: str, nonce_digest: bytes) -> str:
        """A code by which the browser that holds the nonce may come in at this workspace's host: once, within seconds."""
        if caller.how is not AuthMethod.SESSION:
            raise Refused("unauthorized", "a workspace's door is opened by a session; programs bring their token along")
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
        """What the cookie on the workspace's host holds, and whom it lets in; Refused `bad_door_code`.

        The code is used up by this, whatever comes of it. `nonce` is what the browser was given on that host before.
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
            raise Refused("bad_door_code", "this way in was used already, is too old, or is another browser's; open it again")
        return token, await self.recognise(token, came_from=came_from)

    # ── the first user ────────────────────────────────────────────────────────────────────────────────────────────────

    async def knows(self, username: str, password: str) -> bool:
        """Whether this password is really the one of this user."""
        account = await self._store.by_name(username)
        return account is not None and (await self._passwords.check(password, account.password)).is_right

    async def ensure_admin(self, username: str, password: str) -> User:
        """The first user of an installation; one that is there already keeps its password."""
        account = await self._store.by_name(username)
        if account is None:
            new = NewUser(username, is_admin=True, password=await self._passwords.hash(password))
            async with self._store.writing() as writing:
                await writing.create_user(new)
                admit_user(*await self._users_and_confinements(writing), failed=f"user {username!r} was not created")
                await writing.audit(AuditEntry("user.create", username=username, how="SYSTEM", detail={"username": username}))
            account = await self._store.by_name(username)
        assert account is not None, "just created, or there before"
        return account.user

    async def ensure_token(self, user: User, label: str, token: str) -> None:
        """This very token is good for everything, and no other under this label."""
        async with self._store.writing() as writing:
            ended = await writing.ensure_token(user.id, label, digest(token), EVERY_SCOPE)
        await self._revocations.revoked(*ended)

    # ── ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _admit(self, name: str, came_from: str) -> None:
        try:
            await self._throttle.admit(name, came_from)
        except TooManySignIns as refused:
            # The others are more of the same, and would fill the log.
            if refused.is_news:
                await self._store.audit(AuditEntry("session.refused", username=name, came_from=came_from, outcome=refused.code))
            raise

    async def _users_and_confinements(self, writing: UserTransaction) -> tuple[int, Sequence[ControllerConfinement]]:
        """After the user was written, so that the count is the one that is about to be."""
        users, confinements = await writing.users_and_confinements()
        return users, [self._confinement, *confinements]

    async def _tidy(self) -> None:
        """What has expired makes room; whoever came by does not wait for it to succeed."""
        try:
            await self._store.delete_expired()
        except Unavailable as out:
            log.warning("expired_not_deleted", why=out.message)

    async def _begin_session(
        self, writing: UserTransaction, user: User, visit: ClientInfo, by: str
    ) -> tuple[str, frozenset[str]]:
        """A new session's token, and what had to make room for it."""
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
        """Never somebody else's user, whatever their name is."""
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
            # The same person may have come twice at once.
            known = made or await self._store.by_subject(identity.issuer, identity.subject)
            if known is not None:
                return known
        raise AssertionError("there are names without end")

    async def _free_names(self, wanted: Iterable[str]) -> AsyncIterator[str]:
        """The best first, without end; somebody else may take them meanwhile."""
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
    said: dict[str, Any] = {
        name: value
        for name in ("is_admin", "is_active", "max_running")
        if not isinstance(value := getattr(change, name), Unchanged)
    }
    return dataclasses.replace(user, **said)


def _told(before: User, after: User, *, has_password: bool) -> dict[str, Any]:
    """What an audit says of a change: whom it was about, and what is another now. Of a password only that."""
    changes = {
        name: getattr(after, name)
        for name in ("is_admin", "is_active", "max_running")
        if getattr(before, name) != getattr(after, name)
    }
    return {"user_id": before.id, "username": before.username, **changes, **({"password": True} if has_password else {})}


def _by_itself(action: str, user: User, came_from: str, detail: dict[str, Any]) -> AuditEntry:
    """What happened to somebody without anybody's asking for it."""
    return AuditEntry(action, username=user.username, user_id=user.id, how="SYSTEM", came_from=came_from, detail=detail)


def _not_any_more() -> Refused:
    return Refused("unauthorized", "this user may not sign in any more; an administrator can change that")


def _unknown() -> Refused:
    return Refused("unauthorized", "this is not known here, or has expired, or was revoked; sign in again")


def _bad_credentials() -> Refused:
    return Refused("bad_credentials", "username or password is wrong")


def _no_such_user(id_or_name: str) -> Refused:
    return Refused("not_found", f"there is no user {id_or_name!r}", kind="user")
