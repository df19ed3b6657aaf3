"""Check the requests that users make about workspaces, and write them to the database.

This is the only writer of `desired_state` and of the other columns that users decide. The audit entry of a request is written
in the same transaction.
"""

import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from torpor.accounts import Caller
from torpor.domain.access import Permission
from torpor.domain.audit import AuditAction
from torpor.domain.before_sleep import check_before_sleep
from torpor.domain.environment import changed_environment, check_size
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason, Refused
from torpor.domain.explain import Explanation, explain
from torpor.domain.idle import Ttls
from torpor.domain.limits import RunningLimits, admit
from torpor.domain.names import check_name
from torpor.domain.records import Archive, Workspace, WorkspaceError
from torpor.domain.runtime_switch import NEEDS_HOME, refuse_while_switching
from torpor.domain.sizes import NO_SIZE, WorkspaceSize, check_workspace_size
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.service.audit import AuditService, audit_entry
from torpor.service.confinement import ConfinementService
from torpor.service.latches import LatchService
from torpor.service.runtime_switch import SwitchService
from torpor.service.secrets import Seal, SecretsService
from torpor.service.sharing import SharingService
from torpor.service.time_machine import Fork, TimeMachine
from torpor.service.use import UseService
from torpor.service.workspace_lookup import find_workspace, lock_workspace, refuse_deleted, refuse_stopped
from torpor.store.service_store import (
    ArchiveState,
    Attempt,
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
from torpor.templates.catalogue import Catalogue, shipped

REQUESTABLE = (Wish.RUNNING, Wish.STANDBY, Wish.ARCHIVED)
"""The states that `change` accepts. DELETED has calls of its own, because it can be undone."""
LONGEST_TTL_S = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class WorkspaceListing:
    items: Sequence[Workspace]
    next_after: tuple[datetime, str] | None


@dataclass(frozen=True, slots=True)
class History:
    items: Sequence[Attempt]
    next_after: tuple[datetime, str, int] | None


@dataclass(frozen=True, slots=True)
class RunningQuota:
    """How many workspaces may run, and which workspaces of one user run."""

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
        using: UseService,
        require_space: Callable[[int], Awaitable[None]] = skip_disk_check,
        name_reserved_s: float = 0,
        environment_bytes: int | None = None,
        most: WorkspaceSize | None = None,
        seal: Seal | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        """`require_space`: returns when the disk of the homes has space for so many more bytes, else raises Refused `disk_low`.
        `name_reserved_s`: how long a name that is free again stays reserved for the user who had it.
        `environment_bytes`: how large the variables and secrets of a workspace can be together; None: no limit.
        `most`: the largest size that a workspace can have; None: any.
        `seal`: encrypts the value of a secret; None: no secret can be set.
        `catalogue`: the templates of this installation; None: those that Torpor brings.
        """
        self.using = using
        self.sharing = SharingService(store)
        self.secrets = SecretsService(store, seal=seal, limit_bytes=environment_bytes)
        self.audit = AuditService(store)
        self.latches = LatchService(store)
        self.catalogue = catalogue if catalogue is not None else shipped()
        self.switch = SwitchService(store, self.catalogue, hint=hint)
        self.confinement = ConfinementService(store, self.catalogue)
        self.time_machine = TimeMachine(store, hint=hint, new_id=new_id, check_new=self._check_new, insert=self._insert)
        self._store = store
        self._limits = limits
        self._ttls = ttls
        self._new_id = new_id
        self._hint = hint
        self._require_space = require_space
        self._name_reserved_s = name_reserved_s
        self._environment_bytes = environment_bytes
        self._most = most if most is not None else NO_SIZE

    async def create(
        self,
        caller: Caller,
        *,
        name: str,
        template_name: str | None = None,
        command: tuple[str, ...] = (),
        desired_state: Wish = Wish.RUNNING,
        standby_ttl_s: int | None = None,
        archive_ttl_s: int | None = None,
        before_sleep: tuple[str, ...] | None = None,
        environment: Mapping[str, str] | None = None,
        size: WorkspaceSize = NO_SIZE,
        image: str | None = None,
        key: str | None = None,
    ) -> Workspace:
        """Create a workspace, or return the one that was created with the same `key`."""
        template_name = self.catalogue.default_name(image) if template_name is None else template_name
        variables = changed_environment({}, environment or {})
        _check_ttl("standby_ttl", standby_ttl_s)
        _check_ttl("archive_ttl", archive_ttl_s)
        new = NewWorkspace(
            id=self._new_id(),
            name=name,
            owner_id=caller.user.id,
            template=template_name,
            command=command,
            desired_state=desired_state,
            standby_ttl_s=self._ttls.standby_s if standby_ttl_s is None else standby_ttl_s,
            archive_ttl_s=self._ttls.archive_s if archive_ttl_s is None else archive_ttl_s,
            before_sleep=before_sleep,
            environment=variables,
            size=size,
            image=image,
        )
        self._check_new(new)
        if desired_state is Wish.RUNNING:
            await self._require_space(0)
        # The arguments without defaults, which may change between two attempts. An argument that came with a later version is
        # left out where it was not given, so that the digests of earlier versions still match.
        arguments = (name, template_name, command, desired_state, standby_ttl_s, archive_ttl_s)
        later: list[object] = [before_sleep] if before_sleep is not None else []
        later += [sorted(variables.items())] if variables else []
        later += [asdict(size)] if size != NO_SIZE else []
        later += [{"image": image}] if image is not None else []
        asked = Creation(new.id, _digest(*arguments, *later))
        async with self._store.writing() as writing:
            made = await writing.creation(caller.user.id, key) if key is not None else None
            if made is None:
                await _refuse_switch(writing, desired_state)
                workspace = await self._insert(writing, caller, new)
                if key is not None:
                    await writing.remember_creation(caller.user.id, key, asked)
                await writing.audit(
                    caller.entry(
                        AuditAction.WORKSPACE_CREATE,
                        workspace_id=new.id,
                        workspace=name,
                        detail={
                            "template": template_name,
                            "desired_state": desired_state,
                            **({"image": image} if image is not None else {}),
                            # Without the values: one may be a password.
                            **({"environment": sorted(variables)} if variables else {}),
                        },
                    )
                )
            elif made.request != asked.request:
                raise Refused("key_reused", "this Idempotency-Key was used for another creation; use a new one")
        if made is not None:
            return await self.find(caller, made.workspace_id)
        self._hint(new.id)
        if desired_state is Wish.RUNNING:
            self.using.touch(new.id, new.standby_ttl_s)
        return workspace

    async def fork(
        self,
        caller: Caller,
        id_or_name: str,
        *,
        name: str,
        archive_key: str | None = None,
        desired_state: Wish = Wish.RUNNING,
        key: str | None = None,
    ) -> Fork:
        """Create a workspace whose home is a copy of an archive of another one (`torpor.service.time_machine`)."""
        if desired_state is Wish.RUNNING:
            await self._require_space(0)
        forked = await self.time_machine.fork(
            caller, id_or_name, name=name, archive_key=archive_key, desired_state=desired_state, key=key
        )
        if desired_state is Wish.RUNNING:
            self.using.touch(forked.workspace.id, forked.workspace.standby_ttl_s)
        return forked

    def _check_new(self, new: NewWorkspace) -> None:
        """Refused if no such workspace can be created."""
        check_name(new.name)
        self.catalogue.program(self.catalogue.template(new.template), new.command or None, new.image)
        _check_sayable(new.desired_state)
        check_before_sleep(new.before_sleep)
        check_size(new.environment, (), self._environment_bytes)
        check_workspace_size(new.size, self._most)

    async def _insert(self, writing: ServiceTransaction, caller: Caller, new: NewWorkspace) -> Workspace:
        if new.desired_state is Wish.RUNNING:
            admit(await writing.running_besides(new.id, owner_id=caller.user.id), self._limits)
        with _refuse_name(new.name):
            workspace = await writing.create(new)
            await writing.require_own_name(new.id, reserved_s=self._name_reserved_s)
        return workspace

    async def find(self, caller: Caller, id_or_name: str, *permissions: Permission, deleted_first: bool = False) -> Workspace:
        """The workspace, if this caller may see it and has these permissions."""
        return await find_workspace(self._store, caller, id_or_name, *permissions, deleted_first=deleted_first)

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
        environment: Mapping[str, str | None] | None = None,
    ) -> Workspace:
        """Make all of the changes or none. A request is accepted in every state; repeating it clears its error.

        `environment`: the variables to set, or with None to remove; they apply at the next start.
        """
        if name is not None:
            check_name(name)
        if desired_state is not None:
            _check_sayable(desired_state)
        _check_ttl("standby_ttl", standby_ttl_s)
        _check_ttl("archive_ttl", archive_ttl_s)
        if before_sleep is not None:
            check_before_sleep(before_sleep.command)
        # An empty change needs the permission, too.
        permissions = (Permission.CHANGE, Permission.WISH) if desired_state is not None else (Permission.CHANGE,)
        if desired_state in NEEDS_HOME:
            found = await self.find(caller, id_or_name, *permissions)
            await self._require_space_for(found, desired_state)
            id_or_name = found.id
        change = WorkspaceChange(name, standby_ttl_s, archive_ttl_s, desired_state, before_sleep)
        async with self._store.writing() as writing:
            # Before the row is locked, as a move does: otherwise the two could wait for each other.
            if desired_state is not None:
                await _refuse_switch(writing, desired_state)
            before = workspace = await lock_workspace(writing, caller, id_or_name, *permissions)
            refuse_deleted(before)
            if environment:
                change = replace(change, environment=await self._new_environment(writing, before, environment))
            # Limits before names, as in `create`: two transactions that lock them in different orders would deadlock. A
            # workspace that was admitted already is not admitted again: a lowered limit must not keep users from clearing
            # an error.
            if desired_state is Wish.RUNNING and before.desired_state is not Wish.RUNNING:
                admit(await writing.running_besides(before.id), self._limits)
            with _refuse_name(name or before.name):
                if change != WorkspaceChange():
                    workspace = await writing.change(before.id, change)
                if name is not None and name != before.name:
                    await writing.require_own_name(before.id, reserved_s=self._name_reserved_s)
            for entry in _audit_entries(caller, before, change, environment or {}):
                await writing.audit(entry)
        self._hint(workspace.id)
        if desired_state is Wish.RUNNING:
            self.using.touch(workspace.id, workspace.standby_ttl_s)
        return workspace

    async def _new_environment(
        self, writing: ServiceTransaction, before: Workspace, changes: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        after = changed_environment(before.environment, changes)
        # A removal is allowed also if the limit was lowered since.
        if any(value is not None for value in changes.values()):
            secrets = await writing.secrets(before.id)
            check_size(after, [one.size_bytes for one in secrets], self._environment_bytes)
        return after

    async def wake(self, caller: Caller, id_or_name: str) -> Workspace:
        """Start a workspace for a knock. Many knocks at once make one request; a refused knock leaves the requested state, and
        an error is cleared only by a user's request."""
        found = await self.find(caller, id_or_name, Permission.OPEN)
        if found.desired_state is not Wish.RUNNING and found.deleted_at is None:
            await self._require_space_for(found, Wish.RUNNING)
        # Decided while the row is locked: the workspace must not be put to sleep between the decision and its commit.
        async with self._store.writing() as writing:
            await _refuse_switch(writing, Wish.RUNNING)
            workspace = await lock_workspace(writing, caller, found.id, Permission.OPEN)
            _check_wakeable(workspace)
            is_awake = workspace.desired_state is Wish.RUNNING
            if is_awake:
                await writing.touch_access({workspace.id: 0.0})
            else:
                admit(await writing.running_besides(workspace.id), self._limits)
                workspace = await writing.set_wish(workspace.id, Wish.RUNNING, origin=WishOrigin.WAKE)
                await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_WAKE, workspace))
        if not is_awake:
            self._hint(workspace.id)
        self.using.touch(workspace.id, workspace.standby_ttl_s)
        return workspace

    async def delete(self, caller: Caller, id_or_name: str, *, purge: bool = False) -> Workspace:
        """Accepted in every state. A last archive is kept for `undelete`, unless `purge` is set."""
        async with self._store.writing() as writing:
            found = await lock_workspace(writing, caller, id_or_name, Permission.DELETE)
            workspace = await writing.set_wish(found.id, Wish.DELETED, purge=purge)
            if workspace.purge:
                await writing.remove_secrets(found.id)
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_DELETE, workspace, purge=purge))
        self._hint(workspace.id)
        return workspace

    async def undelete(self, caller: Caller, id_or_name: str) -> Workspace:
        async with self._store.writing() as writing:
            found = await lock_workspace(writing, caller, id_or_name, Permission.DELETE, deleted_first=True)
            if found.deleted_at is None:
                raise Refused("not_deleted", f"{found.name!r} is not deleted", workspace=found.name)
            if found.purge:
                raise Refused("purged", f"{found.name!r} was purged; its home is deleted for good", workspace=found.name)
            await _require_kept(writing, found)
            await self.time_machine.require_copy_source(writing, found)
            with _refuse_name(found.name):
                workspace = await writing.set_wish(found.id, Wish.ARCHIVED)
                await writing.require_own_name(found.id, reserved_s=self._name_reserved_s)
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_UNDELETE, workspace))
        self._hint(workspace.id)
        return workspace

    async def recover(
        self, caller: Caller, id_or_name: str, *, archive_key: str | None = None, empty: bool = False, accept: bool = False
    ) -> Workspace:
        """Leave ERROR. Where the home is lost, the caller chooses an older archive or an empty home.

        A home whose marker cannot be read may be accepted as it is.
        """
        async with self._store.writing() as writing:
            found = await lock_workspace(writing, caller, id_or_name, Permission.RECOVER)
            error = found.error
            if error is None or not error.is_terminal:
                raise Refused("not_in_error", f"{found.name!r} has no error; there is nothing to recover from")
            kept = await writing.archives(found.id)
            await _refuse_marked(writing, found, archive_key)
            archive = _recovery_archive(found, error, kept, archive_key=archive_key, empty=empty, accept=accept)
            workspace = await writing.set_recovery(found.id, archive, empty=empty, accept=accept)
            choice = {"archive_key": archive_key, "empty": empty, "accept": accept}
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_RECOVER, found, reason=error.reason, **choice))
        self._hint(workspace.id)
        return workspace

    # ── commands and limits ───────────────────────────────────────────────────────────────────────────────────────────

    async def enter(self, caller: Caller, id_or_name: str, action: AuditAction, **detail: object) -> Workspace:
        """Write the audit entry of a command (WORKSPACE_EXEC, WORKSPACE_SHELL) before the command starts."""
        found = await self.find(caller, id_or_name, Permission.RUN)
        refuse_stopped(found)
        await self._store.audit(audit_entry(caller, action, found, **detail))
        return found

    async def room(self, caller: Caller) -> RunningQuota:
        """How many workspaces may run, and which of the caller's own run."""
        per_user = self._limits.of_user(caller.user.max_running)
        return RunningQuota(per_user, self._limits.per_user, self._limits.overall, await self._store.running_of(caller.user.id))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def history(
        self, caller: Caller, id_or_name: str, *, after: tuple[datetime, str, int] | None = None, limit: int = 100
    ) -> History:
        found = await self.find(caller, id_or_name)
        items = await self._store.history(found.id, after=after, limit=limit + 1)
        more = items[limit - 1] if len(items) > limit else None
        return History(items[:limit], (more.started_at, more.op_id, more.attempt) if more else None)

    async def explained(self, caller: Caller, id_or_name: str) -> tuple[Workspace, Explanation]:
        found = await self.find(caller, id_or_name)
        keys = tuple(str(one.archive.key) for one in await self._store.archives(found.id))
        held_back_at = tuple(latch.provider for latch in await self._store.latches() if latch.released_at is None)
        can_be_undeleted = await self._can_be_undeleted(found, keys)
        awake, has_controller = await self.using.why_awake(found), bool(await self._store.members())
        return found, explain(found, keys, held_back_at, awake, can_be_undeleted, has_controller)

    async def _can_be_undeleted(self, workspace: Workspace, kept_keys: tuple[str, ...]) -> bool:
        """Whether `undelete` would be accepted now."""
        if workspace.deleted_at is None or workspace.purge:
            return False
        if workspace.archive is not None and str(workspace.archive.key) not in kept_keys:
            return False
        same_name = await self._store.by_name(workspace.name)
        return same_name is None or same_name.deleted_at is not None

    async def _require_space_for(self, found: Workspace, wish: Wish) -> None:
        """Called before the row is locked, because it asks the engine. The controller checks again before it acts."""
        if wish in NEEDS_HOME and not found.volume_present and found.archive is not None:
            sizes = {one.archive.key: one.home_bytes for one in await self._store.archives(found.id)}
            await self._require_space(replace(found, archive_home_bytes=sizes.get(found.archive.key)).restore_bytes)
        elif wish is Wish.RUNNING and not found.container_present:
            await self._require_space(0)


async def _refuse_switch(writing: ServiceTransaction, wish: Wish) -> None:
    if wish in NEEDS_HOME:
        refuse_while_switching(await writing.runtime_switch(), wish)


@contextlib.contextmanager
def _refuse_name(name: str) -> Iterator[None]:
    """Around the statements that give a workspace this name."""
    try:
        yield
    except NameTaken as taken:
        raise Refused("name_taken", f"there is already a workspace {name!r}", name=name) from taken
    except NameReserved as reserved:
        # The former owner is not named. Administrators are refused, too: what the former workspace's pages left in browsers
        # is as dangerous to them.
        raise Refused(
            "name_reserved",
            f"a workspace of another user was called {name!r} until recently; "
            f"the name is free again at {reserved.until:%Y-%m-%d %H:%M} UTC, or choose another name",
            name=name,
            until=reserved.until,
        ) from reserved


def _audit_entries(
    caller: Caller, workspace: Workspace, change: WorkspaceChange, environment: Mapping[str, str | None]
) -> Sequence[AuditEntry]:
    """One entry for the requested state, and one for all other changes of the same request."""
    values: Mapping[str, object] = {
        "name": change.name,
        "standby_ttl": change.standby_ttl_s,
        "archive_ttl": change.archive_ttl_s,
    }
    rest = {field: value for field, value in values.items() if value is not None}
    if change.before_sleep is not None:
        # Only the program's name: an argument may be a password.
        rest["before_sleep"] = None if change.before_sleep.command is None else change.before_sleep.command[:1]
    if environment:
        # Without the values: one may be a password.
        rest["environment"] = sorted(environment)
    entries = [audit_entry(caller, AuditAction.WORKSPACE_CHANGE, workspace, **rest)] if rest else []
    if change.desired_state is not None:
        entries.append(audit_entry(caller, AuditAction.WORKSPACE_WISH, workspace, desired_state=change.desired_state))
    return entries


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
        raise Refused("bad_recovery", "choose only one of archive_key, empty and accept")
    if error.reason not in ASKS_HOW_TO_GO_ON:
        if ways:
            raise Refused(
                "bad_recovery", f"the home of {workspace.name!r} is not lost; recover it without archive_key, empty and accept"
            )
        return None
    if accept:
        _check_acceptable(workspace, error)
    # An archive that was lost or is damaged is not offered. It is accepted if the caller names it, because its store may be
    # repaired by now.
    lost = error.context.get("archive_key")
    keys = [key for one in kept if (key := str(one.archive.key)) != lost and not one.is_damaged]
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
    refuse_deleted(workspace)


def _asks_which_way(workspace: Workspace, error: WorkspaceError, keys: list[str]) -> Refused:
    can_accept = error.reason is Reason.MARKER_UNREADABLE and workspace.deleted_at is None
    ways = ["accept=true (the home as it is)"] if can_accept else []
    ways += [f"archive_key={key}" for key in keys] + ["empty=true (an empty home)"]
    what = f"the marker of {workspace.name!r} cannot be read" if can_accept else f"the home of {workspace.name!r} is lost"
    message = f"{what}; choose how to recover: {', or '.join(ways)}"
    return Refused("say_which_way", message, archive_keys=keys, can_accept=can_accept)


async def _require_kept(writing: ServiceTransaction, workspace: Workspace) -> None:
    """Check that the last archive is kept. The row is locked, so the collector cannot mark the archive now."""
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
    if desired_state not in REQUESTABLE:
        raise Refused(
            "bad_wish",
            f"{desired_state} cannot be requested here; to delete a workspace, use DELETE",
            allowed=list(REQUESTABLE),
        )


def _check_wakeable(workspace: Workspace) -> None:
    refuse_deleted(workspace)
    if workspace.error is not None and workspace.error.is_terminal:
        raise Refused(
            "in_error",
            f"{workspace.name!r} has an error, and opening it does not clear the error: {workspace.error.message}",
            workspace=workspace.name,
        )


def _check_ttl(field: str, seconds: int | None) -> None:
    if seconds is not None and not 1 <= seconds <= LONGEST_TTL_S:
        raise Refused("bad_ttl", f"{field} is {seconds}; allowed are 1 to {LONGEST_TTL_S} seconds")
