"""How does use keep a workspace awake, and who puts the others to sleep?

The same layer of the service as `torpor.service.wishes`: what is found here has been found for somebody who may see it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime

from torpor.accounts import Caller
from torpor.domain.access import Access, Permission, access, check_access, workspace_not_found
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Refused
from torpor.domain.idle import (
    GoToSleep,
    IdleFacts,
    StayAwake,
    UseReport,
    WorkLease,
    decide,
    has_step_down,
    is_about_to_sleep,
    reasons_to_stay,
)
from torpor.domain.names import is_id
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.service.activity import Ask, BusOut, Touch, discard_touch
from torpor.store.service_store import DuePage, ServiceStore, SleepWarning
from torpor.store.user_store import AuditEntry

BUS_PATIENCE_S = 2.0
LONGEST_HOLD_S = 7 * 86_400
MOST_HOLDS = 20
LONGEST_REASON = 200


def done(caller: Caller, action: AuditAction, workspace: Workspace, **detail: object) -> AuditEntry:
    """The line of the audit log that tells what somebody did with a workspace."""
    return caller.entry(action, workspace_id=workspace.id, workspace=workspace.name, detail=detail)


class UseService:
    def __init__(
        self,
        store: ServiceStore,
        *,
        new_id: Callable[[], str],
        hint: Callable[[str], None],
        touch: Touch = discard_touch,
        ask: Ask | None = None,
        lease_s: float = 30,
    ) -> None:
        self.touch = touch
        self._store = store
        self._new_id = new_id
        self._hint = hint
        self._ask = ask
        self._lease_s = lease_s

    # ── holding ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, caller: Caller, found: Workspace, *, reason: str, seconds: float) -> WorkLease:
        """Keep a running workspace awake until the hold expires. No workspace is woken; a stop that is near is taken back."""
        reason = reason.strip()
        _check_hold(reason, seconds)
        async with self._store.writing() as writing:
            # Whoever puts it to sleep holds the same row meanwhile, so this comes before that or after it.
            workspace = await writing.lock(found.id)
            if workspace is None:
                raise workspace_not_found(found.name)
            _check_near(caller, workspace)
            if workspace.deleted_at is not None:
                raise Refused("is_deleted", f"{found.name!r} is deleted; undelete it first", workspace=found.name)
            if len(await writing.work_leases(workspace.id)) >= MOST_HOLDS:
                raise Refused("bad_lease", f"{workspace.name!r} is held {MOST_HOLDS} times already; end one of them first")
            lease = await writing.create_work_lease(
                self._new_id(), workspace.id, reason=reason, created_by=caller.user.username, lives_s=seconds
            )
            await writing.take_warning_back(workspace.id, held_until=lease.expires_at)
            stays = is_about_to_sleep(workspace)
            if stays:
                await writing.set_wish(workspace.id, Wish.RUNNING, origin=WishOrigin.WAKE)
            await writing.audit(done(caller, AuditAction.WORKSPACE_HOLD, workspace, reason=reason, seconds=seconds))
        if stays:
            self._hint(workspace.id)
        return lease

    async def holds(self, found: Workspace) -> Sequence[WorkLease]:
        return await self._store.work_leases(found.id)

    async def end_hold(self, caller: Caller, found: Workspace, lease_id: str | None = None) -> None:
        """This one, or all that are this caller's to end: their own, and everybody's for whoever manages it."""
        if lease_id is not None and not is_id(lease_id):
            raise _not_held(found, lease_id)
        async with self._store.writing() as writing:
            workspace = await writing.lock(found.id)
            if workspace is None:
                raise workspace_not_found(found.name)
            has = _check_near(caller, workspace)
            made_by = None if has >= Access.MANAGE else caller.user.username
            ended = await writing.delete_work_leases(found.id, lease_id, made_by=made_by)
            if ended:
                await writing.audit(done(caller, AuditAction.WORKSPACE_UNHOLD, found, ended=ended))
            elif lease_id is not None:
                if any(one.id == lease_id for one in await writing.work_leases(found.id)):
                    raise _anothers(found, has)
                raise _not_held(found, lease_id)

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def keeping_awake(self, workspace: Workspace) -> AsyncIterator[None]:
        """It is used for as long as this takes, a command that runs in it, for one. An automatic stop that waits for
        `before_sleep` is taken back."""
        await self.stay(workspace)
        touching = asyncio.create_task(self._keep_touching(workspace))
        try:
            yield
        finally:
            touching.cancel()
            self.touch(workspace.id, workspace.standby_ttl_s)

    async def _keep_touching(self, workspace: Workspace) -> None:
        # Part of one request. It catches nothing, so it cannot lose a cancellation.
        while True:
            self.touch(workspace.id, workspace.standby_ttl_s)
            await asyncio.sleep(workspace.standby_ttl_s / 3)

    async def seen_in_use(self, workspace_ids: Collection[str]) -> None:
        """These are in use, says somebody who cannot tell the bus: for as long as a lease there would count."""
        if workspace_ids:
            async with self._store.writing() as writing:
                await writing.touch_in_use(workspace_ids, for_s=self._lease_s)

    async def ttls_s(self, workspace_ids: Collection[str]) -> Mapping[str, float]:
        """How long each of these may be idle, as of now."""
        return await self._store.standby_ttls_s(workspace_ids)

    async def stay(self, found: Workspace) -> Workspace:
        """Somebody came just as it was put to sleep: it stays, unless it is already being stopped. The row as it is now."""
        if not is_about_to_sleep(found):
            return found
        async with self._store.writing() as writing:
            workspace = await writing.lock(found.id)
            is_still_so = workspace is not None and is_about_to_sleep(workspace)
            if is_still_so:
                # It runs, so it is among those that are counted: there is nobody to be refused for it.
                await writing.set_wish(found.id, Wish.RUNNING, origin=WishOrigin.WAKE)
        if is_still_so:
            self._hint(found.id)
        return await self._store.by_id(found.id) or found

    # ── going to sleep ────────────────────────────────────────────────────────────────────────────────────────────────

    async def due(self, to: Wish, *, after: tuple[datetime, str] | None, limit: int) -> DuePage:
        """Those whose time for this step down is up, or near to be stopped, as far as their rows can tell, in that order."""
        return await self._store.due(to, after=after, limit=limit)

    async def next_due_in_s(self) -> float | None:
        """Until there is one more to be stopped or warned of; None when there is none."""
        return await self._store.next_due_in_s()

    async def warn(self, warnings: Sequence[SleepWarning], *, term: int) -> None:
        """Tell the users of these when they are stopped, or that it is no longer near. To be warned is not to be used."""
        if warnings:
            async with self._store.writing() as writing:
                await writing.require_term(term)
                await writing.set_sleeps_at(warnings)

    async def used(self, seconds_ago: Mapping[str, float], *, term: int) -> None:
        """When each was last used, as the leader of this term learned it from the bus."""
        if seconds_ago:
            async with self._store.writing() as writing:
                await writing.require_term(term)
                await writing.touch_access(seconds_ago)

    async def stopped(self, workspace_ids: Collection[str], *, life: int) -> None:
        """Their programs have just been stopped, says this life of a controller: until now they could be used."""
        async with self._store.writing() as writing:
            await writing.touch_stopped(workspace_ids, life=life)

    async def let_sleep(self, workspace_id: str, *, term: int, to: Wish, ask: Ask, lease_s: float) -> bool:
        """Put it to sleep, if this term stands and nothing at all speaks against it any more; whether it was."""
        async with self._store.writing() as writing:
            await writing.require_term(term)
            # Somebody who writes it just now does something with it: its turn comes again.
            workspace = await writing.lock_if_free(workspace_id)
            if workspace is None:
                return False
            leases = await writing.work_leases(workspace_id)
            now = await writing.now()
            # Last of all: who connects after this has been there for less time than the commit takes.
            bus = await _ask_soon(ask, workspace_id) if to is Wish.STANDBY else None
            match decide(IdleFacts(workspace, leases, bus, lease_s, now)):
                case GoToSleep(wish) if wish is to:
                    await writing.set_wish(workspace_id, wish, origin=WishOrigin.IDLE)
                case _:
                    return False
        self._hint(workspace_id)
        return True

    # ── explaining ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def why_awake(self, workspace: Workspace) -> tuple[StayAwake, ...] | None:
        """What keeps it from going down a step by itself; None where there is no such step."""
        if not has_step_down(workspace):
            return None
        leases = await self._store.work_leases(workspace.id)
        bus = await self._ask_quietly(workspace.id) if workspace.phase is Phase.RUNNING else None
        return reasons_to_stay(IdleFacts(workspace, leases, bus, self._lease_s, await self._store.now()))

    async def _ask_quietly(self, workspace_id: str) -> UseReport | None:
        """That the bus cannot be asked is a fact like any other."""
        if self._ask is None:
            return None
        try:
            return await _ask_soon(self._ask, workspace_id)
        except BusOut:
            return None


async def _ask_soon(ask: Ask, workspace_id: str) -> UseReport:
    """Others wait meanwhile, for the row or for an answer."""
    try:
        async with asyncio.timeout(BUS_PATIENCE_S):
            return (await ask([workspace_id]))[workspace_id]
    except TimeoutError:
        raise BusOut(f"the bus did not answer within {BUS_PATIENCE_S:g} s") from None


def _check_near(caller: Caller, workspace: Workspace) -> Access:
    """How near they are, now that the row is held: it may have been taken from them since it was found."""
    username, is_admin = caller.user.username, caller.is_admin
    check_access(workspace, username, Permission.HOLD, is_admin=is_admin)
    return access(workspace, username, is_admin=is_admin)


def _not_held(found: Workspace, lease_id: str) -> Refused:
    return Refused("not_found", f"{found.name!r} is not held by {lease_id!r}", kind="lease", workspace=found.name)


def _anothers(found: Workspace, has: Access) -> Refused:
    return Refused(
        "forbidden",
        f"somebody else holds {found.name!r} awake: they may end that, its owner, or somebody it is shared with to manage it",
        workspace=found.name,
        has=has.name.lower(),
        needs=Access.MANAGE.name.lower(),
    )


def _check_hold(reason: str, seconds: float) -> None:
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise Refused("bad_lease", f"say why, in 1 to {LONGEST_REASON} characters; these are {len(reason)}")
    if not 1 <= seconds <= LONGEST_HOLD_S:
        raise Refused("bad_lease", f"seconds is {seconds:g}; allowed are 1 to {LONGEST_HOLD_S} (7 days)")
