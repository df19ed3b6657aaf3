"""Keep workspaces awake while they are used, and put idle ones to sleep.

Callers find a workspace with `torpor.service.wishes` first, which checks that they may see it.
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
from torpor.service.activity import BusOut, ReadUse, Touch, discard_touch
from torpor.service.audit import audit_entry
from torpor.service.workspace_lookup import refuse_deleted
from torpor.store.service_store import DuePage, ServiceStore, SleepWarning

BUS_PATIENCE_S = 2.0
LONGEST_HOLD_S = 7 * 86_400
MOST_HOLDS = 20
LONGEST_REASON = 200


class UseService:
    def __init__(
        self,
        store: ServiceStore,
        *,
        new_id: Callable[[], str],
        hint: Callable[[str], None],
        touch: Touch = discard_touch,
        ask: ReadUse | None = None,
        lease_s: float,
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
            # `let_sleep` locks the same row, so the hold is made either before or after the workspace is put to sleep.
            workspace = await writing.lock(found.id)
            if workspace is None:
                raise workspace_not_found(found.name)
            _check_near(caller, workspace)
            refuse_deleted(workspace)
            if len(await writing.work_leases(workspace.id)) >= MOST_HOLDS:
                raise Refused("bad_lease", f"{workspace.name!r} has {MOST_HOLDS} holds already; end one of them first")
            lease = await writing.create_work_lease(
                self._new_id(), workspace.id, reason=reason, created_by=caller.user.username, lives_s=seconds
            )
            await writing.take_warning_back(workspace.id, held_until=lease.expires_at)
            stays = is_about_to_sleep(workspace)
            if stays:
                await writing.set_wish(workspace.id, Wish.RUNNING, origin=WishOrigin.WAKE)
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_HOLD, workspace, reason=reason, seconds=seconds))
        if stays:
            self._hint(workspace.id)
        return lease

    async def holds(self, found: Workspace) -> Sequence[WorkLease]:
        return await self._store.work_leases(found.id)

    async def end_hold(self, caller: Caller, found: Workspace, lease_id: str | None = None) -> None:
        """End this hold, or all that the caller may end: their own, and those of all users if they may manage the workspace."""
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
                await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_UNHOLD, found, ended=ended))
            elif lease_id is not None:
                if any(one.id == lease_id for one in await writing.work_leases(found.id)):
                    raise _anothers(found, has)
                raise _not_held(found, lease_id)

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def keeping_awake(self, workspace: Workspace) -> AsyncIterator[None]:
        """The workspace counts as used while this context is open, for example while a command runs in it. An automatic stop
        that waits for `before_sleep` is canceled."""
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
        """Record in the database that these are in use, for as long as a lease on the bus would count: for a process that
        cannot reach the bus."""
        if workspace_ids:
            async with self._store.writing() as writing:
                await writing.touch_in_use(workspace_ids, for_s=self._lease_s)

    async def ttls_s(self, workspace_ids: Collection[str]) -> Mapping[str, float]:
        """How long each of these may be idle now."""
        return await self._store.standby_ttls_s(workspace_ids)

    async def stay(self, found: Workspace) -> Workspace:
        """Cancel an automatic stop because the workspace is used, unless it is stopping already. Returns the current row."""
        if not is_about_to_sleep(found):
            return found
        async with self._store.writing() as writing:
            workspace = await writing.lock(found.id)
            if workspace is None or not is_about_to_sleep(workspace):
                return workspace or found
            # The workspace runs, so the limits count it already: no other one is refused because this one stays.
            workspace = await writing.set_wish(found.id, Wish.RUNNING, origin=WishOrigin.WAKE)
        self._hint(found.id)
        return workspace

    # ── sleep ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def due(self, to: Wish, *, after: tuple[datetime, str] | None, limit: int) -> DuePage:
        """Workspaces that are idle long enough for this step, or soon will be, judged by their rows alone, in that order."""
        return await self._store.due(to, after=after, limit=limit)

    async def next_due_in_s(self) -> float | None:
        """Seconds until the next workspace must be stopped or warned; None when there is none."""
        return await self._store.next_due_in_s()

    async def warn(self, warnings: Sequence[SleepWarning], *, term: int) -> None:
        """Record when these workspaces will be stopped, or that this is no longer soon. A warning does not count as use."""
        if warnings:
            async with self._store.writing() as writing:
                await writing.require_term(term)
                await writing.set_sleeps_at(warnings)

    async def used(self, seconds_ago: Mapping[str, float], *, term: int) -> None:
        """Record when each was last used, as the leader of this term read it from the bus."""
        if seconds_ago:
            async with self._store.writing() as writing:
                await writing.require_term(term)
                await writing.touch_access(seconds_ago)

    async def stopped(self, workspace_ids: Collection[str], *, life: int) -> None:
        """Record, for this life of a controller, that these programs were just stopped: until now they could be used."""
        async with self._store.writing() as writing:
            await writing.touch_stopped(workspace_ids, life=life)

    async def let_sleep(self, workspace_id: str, *, term: int, to: Wish, ask: ReadUse, lease_s: float) -> bool:
        """Put a workspace to sleep if this is still the leader's term and no reason against it is left; whether it was."""
        async with self._store.writing() as writing:
            await writing.require_term(term)
            # A transaction that writes the row now is a use of the workspace. It is checked again later.
            workspace = await writing.lock_if_free(workspace_id)
            if workspace is None:
                return False
            leases = await writing.work_leases(workspace_id)
            now = await writing.now()
            # The bus is asked last: a connection that this answer misses is younger than the commit takes.
            bus = await _ask_soon(ask, workspace_id) if to is Wish.STANDBY else None
            match decide(IdleFacts(workspace, leases, bus, lease_s, now)):
                case GoToSleep(wish) if wish is to:
                    await writing.set_wish(workspace_id, wish, origin=WishOrigin.IDLE)
                case _:
                    return False
        self._hint(workspace_id)
        return True

    # ── explanation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def why_awake(self, workspace: Workspace) -> tuple[StayAwake, ...] | None:
        """What keeps the workspace from its next automatic step; None where there is no such step."""
        if not has_step_down(workspace):
            return None
        leases = await self._store.work_leases(workspace.id)
        bus = await self._ask_quietly(workspace.id) if workspace.phase is Phase.RUNNING else None
        return reasons_to_stay(IdleFacts(workspace, leases, bus, self._lease_s, await self._store.now()))

    async def _ask_quietly(self, workspace_id: str) -> UseReport | None:
        """None when the bus cannot be asked: the explanation then says so."""
        if self._ask is None:
            return None
        try:
            return await _ask_soon(self._ask, workspace_id)
        except BusOut:
            return None


async def _ask_soon(ask: ReadUse, workspace_id: str) -> UseReport:
    """Limited to BUS_PATIENCE_S, because other callers wait for the row or for an answer."""
    try:
        async with asyncio.timeout(BUS_PATIENCE_S):
            return (await ask([workspace_id]))[workspace_id]
    except TimeoutError:
        raise BusOut(f"Redis did not respond within {BUS_PATIENCE_S:g} s") from None


def _check_near(caller: Caller, workspace: Workspace) -> Access:
    """The caller's access, checked with the row locked, because it may have changed since the workspace was found."""
    username, is_admin = caller.user.username, caller.is_admin
    check_access(workspace, username, Permission.HOLD, is_admin=is_admin)
    return access(workspace, username, is_admin=is_admin)


def _not_held(found: Workspace, lease_id: str) -> Refused:
    return Refused("not_found", f"{found.name!r} has no hold {lease_id!r}", kind="lease", workspace=found.name)


def _anothers(found: Workspace, has: Access) -> Refused:
    return Refused(
        "forbidden",
        f"another user keeps {found.name!r} awake; that user, the owner, or a user with the role `manage` can end this hold",
        workspace=found.name,
        has=has.name.lower(),
        needs=Access.MANAGE.name.lower(),
    )


def _check_hold(reason: str, seconds: float) -> None:
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise Refused("bad_lease", f"reason must have 1 to {LONGEST_REASON} characters; this one has {len(reason)}")
    if not 1 <= seconds <= LONGEST_HOLD_S:
        raise Refused("bad_lease", f"seconds is {seconds:g}; allowed are 1 to {LONGEST_HOLD_S} (7 days)")
