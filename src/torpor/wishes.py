"""What may be wished, and how is it written down?

The one writer of `desired_state` and of everything else that people decide: whoever wishes something comes through here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from torpor.activity import Ask, Touch, ignored
from torpor.domain.errors import Reason, Refused, Unavailable
from torpor.domain.explain import Explanation, explain
from torpor.domain.idle import BusSays, Facts, GoDown, StayAwake, WorkLease, decide, has_step_down, reasons_to_stay
from torpor.domain.latch import Latch
from torpor.domain.limits import RunningLimits, admit
from torpor.domain.names import check_name, is_id, is_name
from torpor.domain.records import Archive, ErrorInfo, Workspace
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.store.for_service import (
    ArchiveStanding,
    Attempt,
    Due,
    NameTaken,
    NewWorkspace,
    ServiceStore,
    StoredArchive,
    User,
    Writing,
)
from torpor.templates.catalogue import DEFAULT, program, template

# Wishes a person may say of a workspace that is there; DELETED has its own verb, because it can be taken back.
SAYABLE = (Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED)

BUS_PATIENCE_S = 2.0
LONGEST_HOLD_S = 7 * 86_400
MOST_HOLDS = 20
LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class Ttls:
    standby_s: int = 300
    archive_s: int = 86_400


@dataclass(frozen=True, slots=True)
class Page:
    items: Sequence[Workspace]
    next_after: tuple[datetime, str] | None


class Wishes:
    def __init__(
        self,
        store: ServiceStore,
        *,
        limits: RunningLimits,
        ttls: Ttls,
        new_id: Callable[[], str],
        hint: Callable[[str], None],
        touch: Touch = ignored,
        ask: Ask | None = None,
        lease_s: float = 30,
    ) -> None:
        self._store = store
        self._limits = limits
        self._ttls = ttls
        self._new_id = new_id
        self._hint = hint
        self._touch = touch
        self._ask = ask
        self._lease_s = lease_s

    async def create(
        self,
        user: User,
        *,
        name: str,
        template_name: str = DEFAULT,
        command: tuple[str, ...] = (),
        desired_state: Wish = Wish.RUNNING,
        standby_ttl_s: int | None = None,
        archive_ttl_s: int | None = None,
    ) -> Workspace:
        check_name(name)
        program(template(template_name), command or None)
        _check_sayable(desired_state)
        new = NewWorkspace(
            id=self._new_id(),
            name=name,
            owner_id=user.id,
            template=template_name,
            command=command,
            desired_state=desired_state,
            standby_ttl_s=_check_ttl("standby_ttl", standby_ttl_s, self._ttls.standby_s),
            archive_ttl_s=_check_ttl("archive_ttl", archive_ttl_s, self._ttls.archive_s),
        )
        async with self._naming(name) as writing:
            if desired_state is Wish.RUNNING:
                admit(await writing.running_besides(new.id, owner_id=user.id), self._limits)
            await writing.create(new)
        self._hint(new.id)
        if desired_state is Wish.RUNNING:
            self._touch(new.id, new.standby_ttl_s)
        return await self.find(user, new.id)

    async def find(self, user: User, id_or_name: str, *, deleted_first: bool = False) -> Workspace:
        """The workspace, if it is this user's to see; what is not is not revealed."""
        if is_id(id_or_name):
            found = await self._store.by_id(id_or_name)
        elif is_name(id_or_name):
            owner_id = None if user.is_admin else user.id
            found = await self._store.by_name(id_or_name, owner_id=owner_id, deleted_first=deleted_first)
        else:
            found = None
        if found is None or (found.owner != user.username and not user.is_admin):
            raise Refused("not_found", f"there is no workspace {id_or_name!r}", workspace=id_or_name)
        return found

    async def page(
        self, user: User, *, phase: Phase | None = None, after: tuple[datetime, str] | None = None, limit: int = 100
    ) -> Page:
        owner_id = None if user.is_admin else user.id
        items = await self._store.page(owner_id=owner_id, phase=phase, after=after, limit=limit + 1)
        more = items[limit - 1] if len(items) > limit else None
        return Page(items[:limit], (more.created_at, more.id) if more else None)

    async def wish(self, user: User, id_or_name: str, desired_state: Wish) -> Workspace:
        return await self.change(user, id_or_name, desired_state=desired_state)

    async def change(
        self,
        user: User,
        id_or_name: str,
        *,
        name: str | None = None,
        desired_state: Wish | None = None,
        standby_ttl_s: int | None = None,
        archive_ttl_s: int | None = None,
    ) -> Workspace:
        """All of it or nothing. A wish is accepted whatever is under way; the same one again clears its error."""
        found = await self.find(user, id_or_name)
        if name is not None:
            check_name(name)
        if desired_state is not None:
            _check_sayable(desired_state)
        standby_s = _check_ttl("standby_ttl", standby_ttl_s, found.standby_ttl_s)
        archive_s = _check_ttl("archive_ttl", archive_ttl_s, found.archive_ttl_s)
        async with self._naming(name or found.name) as writing:
            workspace = await self._locked(writing, found)
            if workspace.deleted_at is not None:
                raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
            # Limits before names, as in `create`: two that wait for each other's would never end.
            if desired_state is Wish.RUNNING:
                admit(await writing.running_besides(found.id), self._limits)
            if name is not None:
                await writing.set_name(found.id, name)
            if (standby_ttl_s, archive_ttl_s) != (None, None):
                await writing.set_ttls(found.id, standby_ttl_s=standby_s, archive_ttl_s=archive_s)
            if desired_state is not None:
                await writing.set_wish(found.id, desired_state)
        if desired_state is Wish.RUNNING:
            self._touch(found.id, standby_s)
        return await self._wished(user, found)

    async def wake(self, user: User, id_or_name: str) -> Workspace:
        """Somebody knocked. Many at once wish once; a refusal leaves the wish, and an error is for a person to clear."""
        found = await self.find(user, id_or_name)
        if not _is_awake(found):
            async with self._store.writing() as writing:
                workspace = await self._locked(writing, found)
                _check_wakeable(workspace)
                if workspace.desired_state is not Wish.RUNNING:
                    admit(await writing.running_besides(found.id), self._limits)
                    await writing.set_wish(found.id, Wish.RUNNING, origin=WishOrigin.WAKE)
            self._hint(found.id)
        self._touch(found.id, found.standby_ttl_s)
        return await self.find(user, found.id)

    async def delete(self, user: User, id_or_name: str, *, purge: bool = False) -> Workspace:
        """Accepted from every state. A last archive is kept for `undelete`, unless it is purged."""
        found = await self.find(user, id_or_name)
        async with self._store.writing() as writing:
            await self._locked(writing, found)
            await writing.set_wish(found.id, Wish.DELETED, purge=purge)
        return await self._wished(user, found)

    async def undelete(self, user: User, id_or_name: str) -> Workspace:
        found = await self.find(user, id_or_name, deleted_first=True)
        async with self._naming(found.name) as writing:
            workspace = await self._locked(writing, found)
            if workspace.deleted_at is None:
                raise Refused("not_deleted", f"{workspace.name!r} is not deleted", workspace=workspace.name)
            if workspace.purge:
                raise Refused("purged", f"{workspace.name!r} was purged; its home was given up", workspace=workspace.name)
            await _require_kept(writing, workspace)
            await writing.set_wish(workspace.id, Wish.ARCHIVED)
        return await self._wished(user, found)

    async def recover(self, user: User, id_or_name: str, *, archive_key: str | None = None, empty: bool = False) -> Workspace:
        """Leave ERROR. Where the home is lost, say which way: an older archive, or an empty home."""
        found = await self.find(user, id_or_name)
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, found)
            error = workspace.error
            if error is None or not error.is_terminal:
                raise Refused("not_in_error", f"{workspace.name!r} is not in ERROR; there is nothing to recover from")
            kept = await writing.archives(workspace.id)
            await _refuse_marked(writing, workspace, archive_key)
            archive = _way_out(workspace, error, kept, archive_key=archive_key, empty=empty)
            await writing.set_recovery(workspace.id, archive, empty=empty)
        return await self._wished(user, found)

    async def history(self, user: User, id_or_name: str, *, limit: int = 100) -> Sequence[Attempt]:
        return await self._store.history((await self.find(user, id_or_name)).id, limit=limit)

    async def archives(self, user: User, id_or_name: str) -> Sequence[StoredArchive]:
        return await self._store.archives((await self.find(user, id_or_name)).id)

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, user: User, id_or_name: str, *, reason: str, seconds: float) -> WorkLease:
        """Keep it awake while it is: a hold wakes nobody, and outlives no expiry."""
        reason = reason.strip()
        _check_hold(reason, seconds)
        found = await self.find(user, id_or_name)
        async with self._store.writing() as writing:
            # Whoever puts it to sleep holds the same row meanwhile, so this comes before that or after it.
            workspace = await self._locked(writing, found)
            if workspace.deleted_at is not None:
                raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
            if len(await writing.work_leases(workspace.id)) >= MOST_HOLDS:
                raise Refused("bad_lease", f"{workspace.name!r} is held {MOST_HOLDS} times already; end one of them first")
            return await writing.create_work_lease(
                self._new_id(), workspace.id, reason=reason, created_by=user.username, lives_s=seconds
            )

    async def holds(self, user: User, id_or_name: str) -> Sequence[WorkLease]:
        return await self._store.work_leases((await self.find(user, id_or_name)).id)

    async def end_hold(self, user: User, id_or_name: str, lease_id: str | None = None) -> None:
        """This one, or all there are."""
        found = await self.find(user, id_or_name)
        ended = 0
        if lease_id is None or is_id(lease_id):
            async with self._store.writing() as writing:
                ended = await writing.delete_work_leases(found.id, lease_id)
        if lease_id is not None and not ended:
            raise Refused("not_found", f"{found.name!r} is not held by {lease_id!r}", workspace=found.name)

    @contextlib.asynccontextmanager
    async def using(self, workspace: Workspace) -> AsyncIterator[None]:
        """It is used for as long as this takes, a command that runs in it, for one."""
        touching = asyncio.create_task(self._keep_touching(workspace))
        try:
            yield
        finally:
            touching.cancel()
            self._touch(workspace.id, workspace.standby_ttl_s)

    async def _keep_touching(self, workspace: Workspace) -> None:
        while True:
            self._touch(workspace.id, workspace.standby_ttl_s)
            await asyncio.sleep(workspace.standby_ttl_s / 3)

    async def due(self, to: Wish, *, after: Due | None, limit: int) -> Sequence[Due]:
        """Those whose time for this step down is up as far as their rows can tell, in that order."""
        return await self._store.due(to, after=after, limit=limit)

    async def used(self, seconds_ago: Mapping[str, float], *, term: int) -> None:
        """When each was last used, as the leader of this term learned it from the bus."""
        if seconds_ago:
            async with self._store.writing() as writing:
                await writing.require_term(term)
                await writing.touch_access(seconds_ago)

    async def stopped(self, workspace_ids: Sequence[str]) -> None:
        """Their programs have just been stopped: until now they could be used."""
        async with self._store.writing() as writing:
            await writing.touch_access(dict.fromkeys(workspace_ids, 0.0))

    async def let_sleep(self, workspace_id: str, *, term: int, to: Wish, ask: Ask, lease_s: float) -> bool:
        """Put it to sleep, if this term stands and nothing at all speaks against it any more; whether it was."""
        async with self._store.writing() as writing:
            await writing.require_term(term)
            workspace = await writing.lock(workspace_id)
            if workspace is None:
                return False
            leases = await writing.work_leases(workspace_id)
            now = await writing.now()
            # Last of all: who connects after this has been there for less time than the commit takes.
            bus = await _ask_soon(ask, workspace_id) if to is Wish.STANDBY else None
            match decide(Facts(workspace, leases, bus, lease_s, now)):
                case GoDown(wish) if wish is to:
                    await writing.set_wish(workspace_id, wish, origin=WishOrigin.IDLE)
                case _:
                    return False
        self._hint(workspace_id)
        return True

    async def explained(self, user: User, id_or_name: str) -> tuple[Workspace, Explanation]:
        found = await self.find(user, id_or_name)
        keys = tuple(str(one.archive.key) for one in await self._store.archives(found.id))
        held_back_at = tuple(latch.provider for latch in await self._store.latches() if latch.released_at is None)
        return found, explain(found, keys, held_back_at, await self._why_awake(found))

    async def _why_awake(self, workspace: Workspace) -> tuple[StayAwake, ...] | None:
        """What keeps it from going down a step by itself; None where there is no such step."""
        if not has_step_down(workspace):
            return None
        leases = await self._store.work_leases(workspace.id)
        bus = await self._ask_quietly(workspace.id) if workspace.phase is Phase.RUNNING else None
        return reasons_to_stay(Facts(workspace, leases, bus, self._lease_s, await self._store.now()))

    async def _ask_quietly(self, workspace_id: str) -> BusSays | None:
        """That the bus cannot be asked is a fact like any other."""
        if self._ask is None:
            return None
        try:
            return (await self._ask([workspace_id]))[workspace_id]
        except Unavailable:
            return None

    async def latches(self) -> Sequence[Latch]:
        """Providers at which nothing is touched, because too much has disappeared there at once."""
        return await self._store.latches()

    async def release(self, user: User, provider: str) -> None:
        """An operator has looked: what is missing there is really gone."""
        if not user.is_admin:
            raise Refused("forbidden", "only an administrator may say that homes are really gone")
        if not await self._store.release_latch(provider):
            raise Refused("not_found", f"nothing is held back at {provider!r}")

    async def _locked(self, writing: Writing, found: Workspace) -> Workspace:
        workspace = await writing.lock(found.id)
        if workspace is None:
            raise Refused("not_found", f"there is no workspace {found.name!r}", workspace=found.name)
        return workspace

    async def _wished(self, user: User, found: Workspace) -> Workspace:
        self._hint(found.id)
        return await self.find(user, found.id)

    @contextlib.asynccontextmanager
    async def _naming(self, name: str) -> AsyncIterator[Writing]:
        """A transaction that puts a name to use."""
        try:
            async with self._store.writing() as writing:
                yield writing
        except NameTaken as taken:
            raise Refused("name_taken", f"there is already a workspace {name!r}", name=name) from taken


def _way_out(
    workspace: Workspace,
    error: ErrorInfo,
    kept: Sequence[StoredArchive],
    *,
    archive_key: str | None,
    empty: bool,
) -> Archive | None:
    if archive_key is not None and empty:
        raise Refused("bad_recovery", "say either archive_key or empty, not both")
    if error.reason is not Reason.DATA_LOST:
        if archive_key is not None or empty:
            raise Refused("bad_recovery", f"the home of {workspace.name!r} is not lost; recover without archive_key and empty")
        return None
    keys = [str(one.archive.key) for one in kept]
    if archive_key is None:
        if empty:
            return None
        ways = [f"archive_key={key}" for key in keys] + ["empty=true (an empty home)"]
        raise Refused(
            "say_which_way",
            f"the home of {workspace.name!r} is lost; say how to go on: {', or '.join(ways)}",
            archive_keys=keys,
        )
    for one in kept:
        if str(one.archive.key) == archive_key:
            return one.archive
    raise Refused("no_such_archive", f"{archive_key!r} is not an archive of {workspace.name!r}", archive_keys=keys)


async def _require_kept(writing: Writing, workspace: Workspace) -> None:
    """Its last archive is still there, and will be: the row is held, so nobody marks it meanwhile."""
    if workspace.archive is None:
        return
    key = str(workspace.archive.key)
    if await writing.archive_standing(workspace.id, key) is not ArchiveStanding.KEPT:
        raise Refused(
            "archive_collected",
            f"{workspace.name!r} was deleted too long ago: its archive is no longer kept",
            workspace=workspace.name,
            archive_key=key,
        )


async def _refuse_marked(writing: Writing, workspace: Workspace, archive_key: str | None) -> None:
    if archive_key is not None and await writing.archive_standing(workspace.id, archive_key) is ArchiveStanding.MARKED:
        raise Refused(
            "archive_collected", f"{archive_key!r} is about to be removed; choose a newer archive", archive_key=archive_key
        )


def _check_sayable(desired_state: Wish) -> None:
    if desired_state not in SAYABLE:
        raise Refused("bad_wish", f"{desired_state} cannot be wished like this; use DELETE", allowed=list(SAYABLE))


async def _ask_soon(ask: Ask, workspace_id: str) -> BusSays:
    """Others wait for the row meanwhile."""
    try:
        async with asyncio.timeout(BUS_PATIENCE_S):
            return (await ask([workspace_id]))[workspace_id]
    except TimeoutError:
        raise Unavailable(f"the bus did not answer within {BUS_PATIENCE_S:g} s") from None


def _is_awake(workspace: Workspace) -> bool:
    return workspace.desired_state is Wish.RUNNING and workspace.error is None


def _check_wakeable(workspace: Workspace) -> None:
    if workspace.deleted_at is not None:
        raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
    if workspace.error is not None and workspace.error.is_terminal:
        raise Refused(
            "in_error",
            f"{workspace.name!r} is in ERROR, and waking does not clear that: {workspace.error.message}",
            workspace=workspace.name,
        )


def _check_hold(reason: str, seconds: float) -> None:
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise Refused("bad_lease", f"say why, in 1 to {LONGEST_REASON} characters; these are {len(reason)}")
    if not 1 <= seconds <= LONGEST_HOLD_S:
        raise Refused("bad_lease", f"seconds is {seconds:g}; allowed are 1 to {LONGEST_HOLD_S} (7 days)")


def _check_ttl(what: str, seconds: int | None, default: int) -> int:
    if seconds is None:
        return default
    if not 1 <= seconds <= 10 * 365 * 86_400:
        raise Refused("bad_ttl", f"{what} is {seconds}; allowed are 1 to {10 * 365 * 86_400} seconds")
    return seconds
