"""What may be wished, and how is it written down?

The one writer of `desired_state` and of everything else that people decide: whoever wishes something comes through here, and
what they did is written down in the same transaction.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from torpor.accounts import Caller
from torpor.domain.access import Permission, Share, check_access, workspace_not_found
from torpor.domain.audit import AuditAction
from torpor.domain.before_sleep import check_before_sleep
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason, Refused
from torpor.domain.explain import Explanation, explain
from torpor.domain.limits import RunningLimits, admit
from torpor.domain.missing_homes_latch import Latch
from torpor.domain.names import check_name, is_id, is_name
from torpor.domain.records import Archive, Workspace, WorkspaceError
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.domain.unconfined import port_warnings
from torpor.service.use import UseService, done
from torpor.store.controller_members import Member
from torpor.store.service_store import (
    ArchiveState,
    Attempt,
    AuditFilter,
    AuditRecord,
    Creation,
    NameReserved,
    NameTaken,
    NewBeforeSleep,
    NewWorkspace,
    ServiceStore,
    ServiceTransaction,
    StoredArchive,
    WorkspaceChange,
)
from torpor.store.user_store import AuditEntry
from torpor.templates.catalogue import DEFAULT, program, template, templates

# Wishes a person may say of a workspace that is there; DELETED has its own verb, because it can be taken back.
SAYABLE = (Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED)
# Every event carries them all.
MOST_SHARES = 100
LONGEST_TTL_S = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Ttls:
    standby_s: int = 300
    archive_s: int = 86_400


@dataclass(frozen=True, slots=True)
class WorkspaceListing:
    items: Sequence[Workspace]
    next_after: tuple[datetime, str] | None


@dataclass(frozen=True, slots=True)
class History:
    items: Sequence[Attempt]
    next_after: tuple[datetime, str, int] | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    items: Sequence[AuditRecord]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class RunningQuota:
    """How many may run, and which of somebody's do."""

    per_user: int
    default_per_user: int
    overall: int
    running: Sequence[str]


async def skip_disk_check(_needed_bytes: int) -> None:
    return None


class Wishes:
    def __init__(
        self,
        store: ServiceStore,
        *,
        limits: RunningLimits,
        ttls: Ttls,
        new_id: Callable[[], str],
        hint: Callable[[str], None],
        using: UseService | None = None,
        require_space: Callable[[int], Awaitable[None]] = skip_disk_check,
        name_reserved_s: float = 0,
    ) -> None:
        """`require_space`: returns when so many bytes more fit on the disk of the homes; Refused `disk_low` otherwise.
        `name_reserved_s`: how long a name that was given up is reserved for the owner of the workspace that had it.
        """
        self.using = using or UseService(store, new_id=new_id, hint=hint)
        self._store = store
        self._limits = limits
        self._ttls = ttls
        self._new_id = new_id
        self._hint = hint
        self._require_space = require_space
        self._name_reserved_s = name_reserved_s

    async def create(
        self,
        caller: Caller,
        *,
        name: str,
        template_name: str = DEFAULT,
        command: tuple[str, ...] = (),
        desired_state: Wish = Wish.RUNNING,
        standby_ttl_s: int | None = None,
        archive_ttl_s: int | None = None,
        before_sleep: tuple[str, ...] | None = None,
        key: str | None = None,
    ) -> Workspace:
        """The same `key` again makes nothing new: it is the same workspace."""
        check_name(name)
        program(template(template_name), command or None)
        _check_sayable(desired_state)
        check_before_sleep(before_sleep)
        new = NewWorkspace(
            id=self._new_id(),
            name=name,
            owner_id=caller.user.id,
            template=template_name,
            command=command,
            desired_state=desired_state,
            standby_ttl_s=_check_ttl("standby_ttl", standby_ttl_s, self._ttls.standby_s),
            archive_ttl_s=_check_ttl("archive_ttl", archive_ttl_s, self._ttls.archive_s),
            before_sleep=before_sleep,
        )
        if desired_state is Wish.RUNNING:
            await self._require_space(0)
        # As it was said: defaults may change between two attempts. What was not said changes no digest of an earlier version.
        said = (name, template_name, command, desired_state, standby_ttl_s, archive_ttl_s)
        asked = Creation(new.id, _digest(*said, *(() if before_sleep is None else (before_sleep,))))
        async with self._naming(name) as writing:
            made = await writing.creation(caller.user.id, key) if key is not None else None
            if made is None:
                if desired_state is Wish.RUNNING:
                    admit(await writing.running_besides(new.id, owner_id=caller.user.id), self._limits)
                await writing.create(new)
                await writing.require_own_name(new.id, reserved_s=self._name_reserved_s)
                if key is not None:
                    await writing.remember_creation(caller.user.id, key, asked)
                await writing.audit(
                    caller.entry(
                        AuditAction.WORKSPACE_CREATE,
                        workspace_id=new.id,
                        workspace=name,
                        detail={"template": template_name, "desired_state": desired_state},
                    )
                )
            elif made.request != asked.request:
                raise Refused("key_reused", "this Idempotency-Key was used for another creation; use a new one")
        if made is not None:
            return await self.find(caller, made.workspace_id)
        self._hint(new.id)
        if desired_state is Wish.RUNNING:
            self.using.touch(new.id, new.standby_ttl_s)
        return await self.find(caller, new.id)

    async def find(self, caller: Caller, id_or_name: str, *deeds: Permission, deleted_first: bool = False) -> Workspace:
        """The workspace, if it is this caller's to see and they may do this with it; what is not is not revealed."""
        if is_id(id_or_name):
            found = await self._store.by_id(id_or_name)
        elif is_name(id_or_name):
            seen_by = None if caller.is_admin else caller.user
            found = await self._store.by_name(id_or_name, seen_by=seen_by, deleted_first=deleted_first)
        else:
            found = None
        if found is None:
            raise workspace_not_found(id_or_name)
        _check(caller, found, *deeds, said=id_or_name)
        return found

    async def page(
        self, caller: Caller, *, phase: Phase | None = None, after: tuple[datetime, str] | None = None, limit: int = 100
    ) -> WorkspaceListing:
        seen_by = None if caller.is_admin else caller.user
        items = await self._store.page(seen_by=seen_by, phase=phase, after=after, limit=limit + 1)
        more = items[limit - 1] if len(items) > limit else None
        return WorkspaceListing(items[:limit], (more.created_at, more.id) if more else None)

    async def wish(self, caller: Caller, id_or_name: str, desired_state: Wish) -> Workspace:
        return await self.change(caller, id_or_name, desired_state=desired_state)

    async def change(
        self,
        caller: Caller,
        id_or_name: str,
        *,
        name: str | None = None,
        desired_state: Wish | None = None,
        standby_ttl_s: int | None = None,
        archive_ttl_s: int | None = None,
        before_sleep: NewBeforeSleep | None = None,
    ) -> Workspace:
        """All of it or nothing. A wish is accepted whatever is under way; the same one again clears its error."""
        # Whoever says nothing at all must be allowed to change something all the same.
        deeds = (Permission.CHANGE, Permission.WISH) if desired_state is not None else (Permission.CHANGE,)
        found = await self.find(caller, id_or_name, *deeds)
        if name is not None:
            check_name(name)
        if desired_state is not None:
            _check_sayable(desired_state)
        standby_s = _check_ttl("standby_ttl", standby_ttl_s, found.standby_ttl_s)
        _check_ttl("archive_ttl", archive_ttl_s, found.archive_ttl_s)
        if before_sleep is not None:
            check_before_sleep(before_sleep.command)
        if desired_state is not None:
            await self._require_space_for(found, desired_state)
        change = WorkspaceChange(name, standby_ttl_s, archive_ttl_s, desired_state, before_sleep)
        async with self._naming(name or found.name) as writing:
            workspace = await self._locked(writing, caller, found, *deeds)
            if workspace.deleted_at is not None:
                raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
            # Limits before names, as in `create`: two that wait for each other's would never end. What was admitted already
            # counts as it is: a limit that was lowered since must not keep anybody from clearing an error.
            if desired_state is Wish.RUNNING and workspace.desired_state is not Wish.RUNNING:
                admit(await writing.running_besides(found.id), self._limits)
            if change != WorkspaceChange():
                await writing.change(found.id, change)
            if name is not None and name != workspace.name:
                await writing.require_own_name(found.id, reserved_s=self._name_reserved_s)
            for entry in _audit_entries(caller, workspace, change):
                await writing.audit(entry)
        if desired_state is Wish.RUNNING:
            self.using.touch(found.id, standby_s)
        return await self._wished(caller, found)

    async def wake(self, caller: Caller, id_or_name: str) -> Workspace:
        """Somebody knocked. Many at once wish once; a refusal leaves the wish, and an error is for a person to clear."""
        found = await self.find(caller, id_or_name, Permission.OPEN)
        if found.desired_state is not Wish.RUNNING and found.deleted_at is None:
            await self._require_space_for(found, Wish.RUNNING)
        # Judged while the row is held: who finds it awake must not find out later that it was just put to sleep.
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, caller, found, Permission.OPEN)
            _check_wakeable(workspace)
            is_awake = workspace.desired_state is Wish.RUNNING
            if is_awake:
                await writing.touch_access({found.id: 0.0})
            else:
                admit(await writing.running_besides(found.id), self._limits)
                await writing.set_wish(found.id, Wish.RUNNING, origin=WishOrigin.WAKE)
                await writing.audit(done(caller, AuditAction.WORKSPACE_WAKE, workspace))
        if not is_awake:
            self._hint(found.id)
        self.using.touch(found.id, workspace.standby_ttl_s)
        return await self.find(caller, found.id)

    async def delete(self, caller: Caller, id_or_name: str, *, purge: bool = False) -> Workspace:
        """Accepted from every state. A last archive is kept for `undelete`, unless it is purged."""
        found = await self.find(caller, id_or_name, Permission.DELETE)
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, caller, found, Permission.DELETE)
            await writing.set_wish(found.id, Wish.DELETED, purge=purge)
            await writing.audit(done(caller, AuditAction.WORKSPACE_DELETE, workspace, purge=purge))
        return await self._wished(caller, found)

    async def undelete(self, caller: Caller, id_or_name: str) -> Workspace:
        found = await self.find(caller, id_or_name, Permission.DELETE, deleted_first=True)
        async with self._naming(found.name) as writing:
            workspace = await self._locked(writing, caller, found, Permission.DELETE)
            if workspace.deleted_at is None:
                raise Refused("not_deleted", f"{workspace.name!r} is not deleted", workspace=workspace.name)
            if workspace.purge:
                raise Refused("purged", f"{workspace.name!r} was purged; its home was given up", workspace=workspace.name)
            await _require_kept(writing, workspace)
            await writing.set_wish(workspace.id, Wish.ARCHIVED)
            await writing.require_own_name(workspace.id, reserved_s=self._name_reserved_s)
            await writing.audit(done(caller, AuditAction.WORKSPACE_UNDELETE, workspace))
        return await self._wished(caller, found)

    async def recover(
        self, caller: Caller, id_or_name: str, *, archive_key: str | None = None, empty: bool = False, accept: bool = False
    ) -> Workspace:
        """Leave ERROR. Where the home is lost, say which way: an older archive, or an empty home.

        A home that is there without a readable marker may be accepted as it is.
        """
        found = await self.find(caller, id_or_name, Permission.RECOVER)
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, caller, found, Permission.RECOVER)
            error = workspace.error
            if error is None or not error.is_terminal:
                raise Refused("not_in_error", f"{workspace.name!r} is not in ERROR; there is nothing to recover from")
            kept = await writing.archives(workspace.id)
            await _refuse_marked(writing, workspace, archive_key)
            archive = _recovery_archive(workspace, error, kept, archive_key=archive_key, empty=empty, accept=accept)
            await writing.set_recovery(workspace.id, archive, empty=empty, accept=accept)
            way = {"archive_key": archive_key, "empty": empty, "accept": accept}
            await writing.audit(done(caller, AuditAction.WORKSPACE_RECOVER, workspace, reason=error.reason, **way))
        return await self._wished(caller, found)

    # ── sharing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def share(self, caller: Caller, id_or_name: str, username: str, role: Share) -> Workspace:
        """From now on they may use it, or manage it."""
        found = await self.find(caller, id_or_name, Permission.SHARE)
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, caller, found, Permission.SHARE)
            if workspace.deleted_at is not None:
                raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)
            if username == workspace.owner:
                raise Refused("bad_share", f"{workspace.name!r} is {username}'s own", username=username)
            if username not in workspace.shares and len(workspace.shares) >= MOST_SHARES:
                raise Refused(
                    "bad_share", f"{workspace.name!r} is shared with {MOST_SHARES} users already; take it from one first"
                )
            if not await writing.is_known_user(username):
                raise Refused("unknown_user", f"there is nobody called {username!r} to share it with", username=username)
            if workspace.shares.get(username) != role:
                await writing.share(workspace.id, username, role)
                await writing.audit(done(caller, AuditAction.WORKSPACE_SHARE, workspace, username=username, role=role))
        return await self.find(caller, found.id)

    async def unshare(self, caller: Caller, id_or_name: str, username: str) -> Workspace:
        """It is no longer theirs to see; what they follow of it ends."""
        found = await self.find(caller, id_or_name, Permission.SHARE)
        async with self._store.writing() as writing:
            workspace = await self._locked(writing, caller, found, Permission.SHARE)
            if username not in workspace.shares:
                raise Refused(
                    "not_found", f"{workspace.name!r} is not shared with {username!r}", kind="share", username=username
                )
            await writing.unshare(workspace.id, username)
            await writing.audit(done(caller, AuditAction.WORKSPACE_UNSHARE, workspace, username=username))
        return await self.find(caller, found.id)

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enter(self, caller: Caller, id_or_name: str, action: AuditAction, **detail: object) -> Workspace:
        """Somebody runs something inside (WORKSPACE_EXEC, WORKSPACE_SHELL): written down before it begins."""
        found = await self.find(caller, id_or_name, Permission.RUN)
        if not found.container_present:
            raise Refused("not_running", f"{found.name!r} is {found.phase}; start it first", workspace=found.name)
        await self._store.audit(done(caller, action, found, **detail))
        return found

    async def room(self, caller: Caller) -> RunningQuota:
        """How many may run, and which of this caller's own do."""
        per_user = self._limits.of_user(caller.user.max_running)
        return RunningQuota(per_user, self._limits.per_user, self._limits.overall, await self._store.running_of(caller.user.id))

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def history(
        self, caller: Caller, id_or_name: str, *, after: tuple[datetime, str, int] | None = None, limit: int = 100
    ) -> History:
        found = await self.find(caller, id_or_name)
        items = await self._store.history(found.id, after=after, limit=limit + 1)
        more = items[limit - 1] if len(items) > limit else None
        return History(items[:limit], (more.started_at, more.op_id, more.attempt) if more else None)

    async def archives(self, caller: Caller, id_or_name: str) -> Sequence[StoredArchive]:
        return await self._store.archives((await self.find(caller, id_or_name)).id)

    async def explained(self, caller: Caller, id_or_name: str) -> tuple[Workspace, Explanation]:
        found = await self.find(caller, id_or_name)
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

    async def audited(
        self,
        caller: Caller,
        *,
        username: str | None = None,
        workspace: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> AuditPage:
        """Administrators see everything; others what they did, and what was done to what they own."""
        which = AuditFilter(
            concerns=None if caller.is_admin else caller.user.id,
            username=username,
            workspace_id=workspace if workspace is not None and is_id(workspace) else None,
            workspace=workspace if workspace is not None and not is_id(workspace) else None,
        )
        items = await self._store.audited(which, before=before, limit=limit + 1)
        shown = [one if caller.is_admin or one.entry.user_id == caller.user.id else _discreet(one) for one in items[:limit]]
        return AuditPage(shown, items[limit - 1].id if len(items) > limit else None)

    # ── running the installation ──────────────────────────────────────────────────────────────────────────────────────

    async def members(self) -> Sequence[Member]:
        """The live controllers, and what each of them confines."""
        return await self._store.members()

    async def warnings(self) -> Mapping[str, Sequence[str]]:
        """What users should know before they choose a template, by its name."""
        told = port_warnings(one.confinement for one in await self.members())
        return {one.name: told for one in templates().values() if one.takes_command}

    async def latches(self) -> Sequence[Latch]:
        """Providers at which nothing is touched, because too much has disappeared there at once."""
        return await self._store.latches()

    async def release(self, caller: Caller, provider: str) -> None:
        """An operator has looked: what is missing there is really gone."""
        if not caller.is_admin:
            raise Refused("forbidden", "only an administrator may say that homes are really gone")
        async with self._store.writing() as writing:
            if not await writing.release_latch(provider):
                raise Refused("not_found", f"nothing is held back at {provider!r}", kind="latch")
            await writing.audit(caller.entry(AuditAction.LATCH_RELEASE, detail={"provider": provider}))

    async def collection_requested(self, caller: Caller) -> None:
        """Somebody asked the leader to collect archives now."""
        await self._store.audit(caller.entry(AuditAction.GC_REQUEST))

    async def _require_space_for(self, found: Workspace, wish: Wish) -> None:
        """Asked before anything is locked. The loop asks again, before it starts or restores anything."""
        if wish in (Wish.RUNNING, Wish.STANDBY) and not found.volume_present and found.archive is not None:
            sizes = {one.archive.key: one.home_bytes for one in await self._store.archives(found.id)}
            await self._require_space(replace(found, archive_home_bytes=sizes.get(found.archive.key)).restore_bytes)
        elif wish is Wish.RUNNING and not found.container_present:
            await self._require_space(0)

    async def _locked(self, writing: ServiceTransaction, caller: Caller, found: Workspace, *deeds: Permission) -> Workspace:
        """The row, held; what may be done with it may have changed since it was found."""
        workspace = await writing.lock(found.id)
        if workspace is None:
            raise workspace_not_found(found.name)
        _check(caller, workspace, *deeds, said=found.name)
        return workspace

    async def _wished(self, caller: Caller, found: Workspace) -> Workspace:
        self._hint(found.id)
        return await self.find(caller, found.id)

    @contextlib.asynccontextmanager
    async def _naming(self, name: str) -> AsyncIterator[ServiceTransaction]:
        """A transaction that puts a name to use."""
        try:
            async with self._store.writing() as writing:
                yield writing
        except NameTaken as taken:
            raise Refused("name_taken", f"there is already a workspace {name!r}", name=name) from taken
        except NameReserved as reserved:
            # Not whose it was, and the same for administrators: what its pages left in browsers is as dangerous to them.
            raise Refused(
                "name_reserved",
                f"a workspace of another user was called {name!r} until recently; "
                f"the name is free again at {reserved.until:%Y-%m-%d %H:%M} UTC, or choose another name",
                name=name,
                until=reserved.until.isoformat(),
            ) from reserved


def _check(caller: Caller, workspace: Workspace, *deeds: Permission, said: str) -> None:
    # Who came in by a workspace's own door gets no further than that workspace.
    if caller.workspace_id not in (None, workspace.id):
        raise workspace_not_found(said)
    for deed in (Permission.SEE, *deeds):
        check_access(workspace, caller.user.username, deed, is_admin=caller.is_admin, said=said)


def _audit_entries(caller: Caller, workspace: Workspace, change: WorkspaceChange) -> Sequence[AuditEntry]:
    """A wish is told as such; whatever else was said at once, together."""
    said: Mapping[str, object] = {
        "name": change.name,
        "standby_ttl": change.standby_ttl_s,
        "archive_ttl": change.archive_ttl_s,
    }
    rest = {what: value for what, value in said.items() if value is not None}
    if change.before_sleep is not None:
        # What follows the program's name may be a password.
        rest["before_sleep"] = None if change.before_sleep.command is None else change.before_sleep.command[:1]
    entries = [done(caller, AuditAction.WORKSPACE_CHANGE, workspace, **rest)] if rest else []
    if change.desired_state is not None:
        entries.append(done(caller, AuditAction.WORKSPACE_WISH, workspace, desired_state=change.desired_state))
    return entries


def _discreet(line: AuditRecord) -> AuditRecord:
    """Who did it is an owner's to know; where they were and what their tokens are called is not."""
    return replace(line, entry=replace(line.entry, came_from="", token_label=""))


def _digest(*said: object) -> bytes:
    return hashlib.sha256(json.dumps(said).encode()).digest()


def _recovery_archive(
    workspace: Workspace,
    error: WorkspaceError,
    kept: Sequence[StoredArchive],
    *,
    archive_key: str | None,
    empty: bool,
    accept: bool,
) -> Archive | None:
    ways = (archive_key is not None) + empty + accept
    if ways > 1:
        raise Refused("bad_recovery", "say one of archive_key, empty and accept, not several")
    if error.reason not in ASKS_HOW_TO_GO_ON:
        if ways:
            raise Refused("bad_recovery", f"the home of {workspace.name!r} is not lost; recover without saying which way")
        return None
    if accept:
        _check_acceptable(workspace, error)
    # One that was lost is not offered; it is taken where it is named, because its store may have been repaired.
    keys = [key for one in kept if (key := str(one.archive.key)) != error.context.get("archive_key")]
    if archive_key is None:
        if empty or accept:
            return None
        raise _asks_which_way(workspace, error, keys)
    for one in kept:
        if str(one.archive.key) == archive_key:
            return one.archive
    raise Refused("no_such_archive", f"{archive_key!r} is not an archive of {workspace.name!r}", archive_keys=keys)


def _check_acceptable(workspace: Workspace, error: WorkspaceError) -> None:
    if error.reason is not Reason.MARKER_UNREADABLE:
        raise Refused("bad_recovery", f"there is no home of {workspace.name!r} to accept: {error.message}")
    if workspace.deleted_at is not None:
        raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)


def _asks_which_way(workspace: Workspace, error: WorkspaceError, keys: list[str]) -> Refused:
    can_accept = error.reason is Reason.MARKER_UNREADABLE and workspace.deleted_at is None
    ways = ["accept=true (the home as it is)"] if can_accept else []
    ways += [f"archive_key={key}" for key in keys] + ["empty=true (an empty home)"]
    what = f"the marker of {workspace.name!r} cannot be read" if can_accept else f"the home of {workspace.name!r} is lost"
    message = f"{what}; say how to go on: {', or '.join(ways)}"
    return Refused("say_which_way", message, archive_keys=keys, can_accept=can_accept)


async def _require_kept(writing: ServiceTransaction, workspace: Workspace) -> None:
    """Its last archive is still there, and will be: the row is held, so nobody marks it meanwhile."""
    if workspace.archive is None:
        return
    key = str(workspace.archive.key)
    if await writing.archive_standing(workspace.id, key) is not ArchiveState.KEPT:
        raise Refused(
            "archive_collected",
            f"{workspace.name!r} was deleted too long ago: its archive is no longer kept",
            workspace=workspace.name,
            archive_key=key,
        )


async def _refuse_marked(writing: ServiceTransaction, workspace: Workspace, archive_key: str | None) -> None:
    if archive_key is not None and await writing.archive_standing(workspace.id, archive_key) is ArchiveState.MARKED:
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
    if not 1 <= seconds <= LONGEST_TTL_S:
        raise Refused("bad_ttl", f"{what} is {seconds}; allowed are 1 to {LONGEST_TTL_S} seconds")
    return seconds
