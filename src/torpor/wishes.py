"""What may be wished, and how is it written down?

The one writer of `desired_state` and of everything else that people decide: whoever wishes something comes through here.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from torpor.domain.errors import Reason, Refused
from torpor.domain.explain import Explanation, explain
from torpor.domain.latch import Latch
from torpor.domain.limits import RunningLimits, admit
from torpor.domain.names import check_name, is_id, is_name
from torpor.domain.records import Archive, ErrorInfo, Workspace
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.store.for_service import (
    ArchiveStanding,
    Attempt,
    NameTaken,
    NewWorkspace,
    ServiceStore,
    StoredArchive,
    User,
    WorkspaceChange,
    Writing,
)
from torpor.templates.catalogue import DEFAULT, program, template
from torpor.using import Using

# Wishes a person may say of a workspace that is there; DELETED has its own verb, because it can be taken back.
SAYABLE = (Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED)


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
        using: Using | None = None,
    ) -> None:
        self.using = using or Using(store, new_id=new_id, hint=hint)
        self._store = store
        self._limits = limits
        self._ttls = ttls
        self._new_id = new_id
        self._hint = hint

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
            self.using.touch(new.id, new.standby_ttl_s)
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
        _check_ttl("archive_ttl", archive_ttl_s, found.archive_ttl_s)
        change = WorkspaceChange(name, standby_ttl_s, archive_ttl_s, desired_state)
        async with self._naming(name or found.name) as writing:
            workspace = await self._locked(writing, found)
            if workspace.deleted_at is not None:
                raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
            # Limits before names, as in `create`: two that wait for each other's would never end. What was admitted already
            # counts as it is: a limit that was lowered since must not keep anybody from clearing an error.
            if desired_state is Wish.RUNNING and workspace.desired_state is not Wish.RUNNING:
                admit(await writing.running_besides(found.id), self._limits)
            if change != WorkspaceChange():
                await writing.change(found.id, change)
        if desired_state is Wish.RUNNING:
            self.using.touch(found.id, standby_s)
        return await self._wished(user, found)

    async def wake(self, user: User, id_or_name: str) -> Workspace:
        """Somebody knocked. Many at once wish once; a refusal leaves the wish, and an error is for a person to clear."""
        found = await self.find(user, id_or_name)
        # Judged while the row is held: who finds it awake must not find out later that it was just put to sleep.
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, found)
            _check_wakeable(workspace)
            is_awake = workspace.desired_state is Wish.RUNNING
            if is_awake:
                await writing.touch_access({found.id: 0.0})
            else:
                admit(await writing.running_besides(found.id), self._limits)
                await writing.set_wish(found.id, Wish.RUNNING, origin=WishOrigin.WAKE)
        if not is_awake:
            self._hint(found.id)
        self.using.touch(found.id, workspace.standby_ttl_s)
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

    async def explained(self, user: User, id_or_name: str) -> tuple[Workspace, Explanation]:
        found = await self.find(user, id_or_name)
        keys = tuple(str(one.archive.key) for one in await self._store.archives(found.id))
        held_back_at = tuple(latch.provider for latch in await self._store.latches() if latch.released_at is None)
        can_be_undeleted = await self._can_be_undeleted(found, keys)
        return found, explain(found, keys, held_back_at, await self.using.why_awake(found), can_be_undeleted)

    async def _can_be_undeleted(self, workspace: Workspace, kept_keys: tuple[str, ...]) -> bool:
        """Whether `undelete` would be accepted just now."""
        if workspace.deleted_at is None or workspace.purge:
            return False
        if workspace.archive is not None and str(workspace.archive.key) not in kept_keys:
            return False
        bearer = await self._store.by_name(workspace.name)
        return bearer is None or bearer.deleted_at is not None

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


def _check_wakeable(workspace: Workspace) -> None:
    if workspace.deleted_at is not None:
        raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
    if workspace.error is not None and workspace.error.is_terminal:
        raise Refused(
            "in_error",
            f"{workspace.name!r} is in ERROR, and waking does not clear that: {workspace.error.message}",
            workspace=workspace.name,
        )


def _check_ttl(what: str, seconds: int | None, default: int) -> int:
    if seconds is None:
        return default
    if not 1 <= seconds <= 10 * 365 * 86_400:
        raise Refused("bad_ttl", f"{what} is {seconds}; allowed are 1 to {10 * 365 * 86_400} seconds")
    return seconds
