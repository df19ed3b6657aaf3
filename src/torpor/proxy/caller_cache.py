"""Cache who a credential belongs to, and close the connections of a caller whose access ends.

A recognized caller is cached for half a minute, unless a revocation arrives. Every open connection depends on a credential:
when it is revoked, the connection is closed, at once if a message arrives, and within half a minute if none does.
"""

import asyncio
import functools
import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from torpor.accounts import Accounts, Caller
from torpor.bus.revocations import Revocation, Revocations
from torpor.domain.access import LONGEST_TOKEN
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.records import Workspace
from torpor.loops import Loop, report_progress, run_until_first_ends
from torpor.proxy.knock import CallerAccess, caller_access
from torpor.proxy.usage import TrackedConnection, WorkspaceUse

log = structlog.get_logger()

KNOWN_FOR_S = 30.0
# An unknown credential is cached too, so that repeated guesses do not reach the database.
NOBODY_FOR_S = 5.0
# While the database is unavailable, no access can be revoked there either.
KNOWN_IN_AN_OUTAGE_S = 300.0
HOLDS = 10_000


class CachedCaller:
    """The caller that a credential belongs to."""

    __slots__ = ("caller", "digest", "good_until", "is_gone", "seen_at", "uses")

    def __init__(self, digest: bytes, caller: Caller | None, now: float) -> None:
        self.digest = digest
        self.caller = caller
        self.seen_at = now
        """When the database last confirmed it."""
        self.good_until = now
        """When the database is asked again."""
        self.is_gone = False
        """The credential is no longer valid."""
        self.uses: set[CallerUse] = set()
        """The open connections."""

    def asked(self, now: float) -> None:
        """The database was asked now, with or without success."""
        if self.caller is None:
            self.good_until = now + NOBODY_FOR_S
            return
        left_s = KNOWN_FOR_S
        if self.caller.expires_at is not None:
            left_s = min(left_s, (self.caller.expires_at - datetime.now(UTC)).total_seconds())
        self.good_until = now + left_s


class CallerCache:
    def __init__(
        self,
        accounts: Accounts,
        revocations: Revocations,
        *,
        cut: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cut`: ends all connections of this bearer (see `bearer`)."""
        self._accounts = accounts
        self._revocations = revocations
        self._cut = cut
        self._now = now
        self._known: dict[bytes, CachedCaller] = {}
        self._asking: dict[bytes, asyncio.Task[CachedCaller]] = {}
        self._open: dict[str, set[CallerUse]] = {}
        """By workspace."""
        self._missed = asyncio.Event()

    # ── lookup ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, token: str) -> CachedCaller | None:
        """The caller, if cached and fresh; None: the database must be asked."""
        visitor = self._known.get(_digest(token))
        return visitor if visitor is not None and self._now() < visitor.good_until else None

    async def ask(self, token: str) -> CachedCaller:
        """The caller; concurrent calls share one query. Raises Unavailable if the database cannot answer."""
        digest = _digest(token)
        if not 0 < len(token) <= LONGEST_TOKEN:
            return CachedCaller(digest, None, self._now())
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(digest, token), name="visitor")
            asking.add_done_callback(functools.partial(self._has_asked, digest))
        return await asyncio.shield(asking)

    async def _ask(self, digest: bytes, token: str) -> CachedCaller:
        before = self._known.get(digest)
        try:
            caller = await self._accounts.recognise(token)
        except Refused:
            caller = None
        except Unavailable:
            # A credential that was revoked during the query stays revoked, although the query failed.
            if before is None or before.caller is None or before.is_gone:
                raise
            if self._now() - before.seen_at > KNOWN_IN_AN_OUTAGE_S:
                raise
            before.asked(self._now())
            return before
        if self._asking.get(digest) is not asyncio.current_task():
            # A revocation arrived during the query: the result may be older.
            return CachedCaller(digest, None, self._now()) if caller is None else await self.ask(token)
        return self._keep(digest, caller)

    def _has_asked(self, digest: bytes, done: "asyncio.Task[CachedCaller]") -> None:
        if self._asking.get(digest) is done:
            del self._asking[digest]
        if not done.cancelled():
            # Marks the exception as retrieved: the callers have got it, and without callers it does not matter.
            done.exception()

    def _keep(self, digest: bytes, caller: Caller | None) -> CachedCaller:
        visitor = self._known.pop(digest, None)
        if visitor is not None and _has_lost(visitor.caller, caller):
            self._end(visitor)
            visitor = None
        if visitor is None:
            visitor = CachedCaller(digest, caller, self._now())
        visitor.caller = caller
        visitor.seen_at = self._now()
        visitor.asked(visitor.seen_at)
        if caller is None and len(self._known) >= HOLDS // 2:
            # Guesses must not push known callers out of the cache.
            return visitor
        while len(self._known) >= HOLDS:
            self._known.pop(next(iter(self._known))).good_until = float("-inf")
        self._known[digest] = visitor
        return visitor

    # ── open connections ──────────────────────────────────────────────────────────────────────────────────────────────

    def use(self, visitor: CachedCaller, workspace_id: str, use: WorkspaceUse) -> "CallerUse":
        """Wraps a use of a workspace, so that its connections are known here."""
        return CallerUse(self, visitor, workspace_id, use)

    def opened(self, use: "CallerUse") -> None:
        use.visitor.uses.add(use)
        self._open.setdefault(use.workspace_id, set()).add(use)
        if use.visitor.is_gone:
            # Revoked while the request was being forwarded: the connection ends as soon as it has begun.
            asyncio.get_running_loop().call_soon(self._cut, use.bearer)

    def closed(self, use: "CallerUse") -> None:
        use.visitor.uses.discard(use)
        among = self._open.get(use.workspace_id)
        if among is not None:
            among.discard(use)
            if not among:
                del self._open[use.workspace_id]

    def has_open(self, workspace_id: str) -> bool:
        return workspace_id in self._open

    def look_at(self, workspace_id: str, workspace: Workspace | None) -> None:
        """The sharing of the workspace may have changed: close the connections of callers who have no access any more."""
        for use in tuple(self._open.get(workspace_id, ())):
            if caller_access(use.visitor.caller, workspace) is not CallerAccess.MAY_USE:
                self._cut(use.bearer)

    # ── revocation ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until canceled."""
        await run_until_first_ends(
            Loop("visitors", self._ask_again, interval_s=KNOWN_FOR_S, wake=self._missed).run(),
            self._revocations.listen(self.revoked, self.forget, name="visitor-revocations"),
        )

    def revoked(self, revoked: Revocation) -> None:
        for visitor in self._known_or_open():
            if visitor.caller is not None and revoked.concerns(visitor.caller.credential_id, visitor.caller.user.id):
                self._drop(visitor)
        # The result of a query in progress may be older than the revocation.
        self._asking.clear()

    def forget(self) -> None:
        """Revocations may have been lost."""
        self._asking.clear()
        for visitor in self._known.values():
            visitor.good_until = float("-inf")
        self._missed.set()

    async def _ask_again(self) -> None:
        """Check all callers with open connections again: there may be no further request that would do so."""
        for visitor in [one for one in self._known_or_open() if one.uses]:
            report_progress()
            try:
                if visitor.caller is not None:
                    visitor.caller = await self._accounts.check_rights(visitor.caller)
            except Refused:
                self._drop(visitor)
            except Unavailable as out:
                log.warning("visitor_not_asked", why=out.message)
            except Exception:
                log.exception("visitor_not_asked")

    def _known_or_open(self) -> set[CachedCaller]:
        """Including callers with open connections that were evicted from the cache."""
        return {*self._known.values(), *(use.visitor for among in self._open.values() for use in among)}

    def _drop(self, visitor: CachedCaller) -> None:
        if self._known.get(visitor.digest) is visitor:
            del self._known[visitor.digest]
        self._end(visitor)

    def _end(self, visitor: CachedCaller) -> None:
        visitor.is_gone = True
        visitor.good_until = float("-inf")
        for use in list(visitor.uses):
            self._cut(use.bearer)


class CallerUse:
    """Implements `proxy.usage.WorkspaceUse`: the use of one workspace by one caller."""

    __slots__ = ("bearer", "count", "inner", "visitor", "visitors", "workspace_id")

    def __init__(self, visitors: CallerCache, visitor: CachedCaller, workspace_id: str, inner: WorkspaceUse) -> None:
        assert visitor.caller is not None, "a use has a caller"
        self.visitors = visitors
        self.visitor = visitor
        self.workspace_id = workspace_id
        self.inner = inner
        self.bearer = f"{visitor.caller.credential_id} {workspace_id}"
        self.count = 0

    def requested(self) -> TrackedConnection:
        return CallerConnection(self, self.inner.requested())

    def connected(self) -> TrackedConnection:
        return CallerConnection(self, self.inner.connected())


class CallerConnection:
    """Registers an open connection."""

    __slots__ = ("_inner", "_use", "carried")

    def __init__(self, use: CallerUse, inner: TrackedConnection) -> None:
        self._use: CallerUse | None = use
        self._inner = inner
        self.carried = inner.carried
        use.count += 1
        if use.count == 1:
            use.visitors.opened(use)

    def is_no_use(self) -> None:
        # A revoked caller must not keep the stream either, so it stays registered.
        self._inner.is_no_use()

    def closed(self) -> None:
        self._inner.closed()
        use, self._use = self._use, None
        if use is not None:
            use.count -= 1
            if use.count == 0:
                use.visitors.closed(use)


def _has_lost(before: Caller | None, now: Caller | None) -> bool:
    """Whether the caller has less access than before. Otherwise open connections stay."""
    return before is not now if before is None or now is None else before.has_lost(now)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1", "replace")).digest()
