"""Go back to an older archive of a workspace, and create workspaces from the archives of others.

Both only write a request: the controller archives, restores and copies.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from torpor.accounts import Caller
from torpor.domain.access import Permission
from torpor.domain.audit import AuditAction
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Refused
from torpor.domain.records import Archive, ArchiveKey, Workspace
from torpor.domain.runtime_switch import NEEDS_HOME, refuse_while_switching
from torpor.domain.states import Wish
from torpor.service.audit import audit_entry
from torpor.service.workspace_lookup import find_workspace, lock_workspace, refuse_deleted
from torpor.store.archive_leases import ArchiveLease
from torpor.store.service_store import (
    ArchiveState,
    Creation,
    NewWorkspace,
    ServiceStore,
    ServiceTransaction,
    StoredArchive,
)

READING_LEASE_S = 900.0
"""How long the archives are kept after a process that reads them was killed."""


@dataclass(frozen=True, slots=True)
class ArchiveListing:
    """The archives of a workspace that can be restored, the latest first."""

    workspace: Workspace
    items: Sequence[StoredArchive]


@dataclass(frozen=True, slots=True)
class Fork:
    workspace: Workspace
    warnings: tuple[str, ...]
    """What the fork does not have, for users."""


Insert = Callable[[ServiceTransaction, Caller, NewWorkspace], Awaitable[Workspace]]
"""Create a workspace in this transaction, with the rules and limits of every creation."""


class TimeMachine:
    def __init__(
        self,
        store: ServiceStore,
        *,
        hint: Callable[[str], None],
        new_id: Callable[[], str],
        check_new: Callable[[NewWorkspace], None],
        insert: Insert,
    ) -> None:
        """`check_new`: Refused if no such workspace can be created now."""
        self._store = store
        self._hint = hint
        self._new_id = new_id
        self._check_new = check_new
        self._insert = insert

    async def archives(self, caller: Caller, id_or_name: str) -> ArchiveListing:
        found = await find_workspace(self._store, caller, id_or_name)
        return ArchiveListing(found, await self._store.archives(found.id))

    @contextlib.asynccontextmanager
    async def reading(
        self, caller: Caller, id_or_name: str, *archive_keys: str | None, audited: bool
    ) -> AsyncIterator[tuple[Sequence[ArchiveKey], ArchiveLease]]:
        """The keys of these archives (None: the current one), which are kept while this context lasts and the lease is
        renewed. `audited`: content is read, which is written to the audit log."""
        found = await find_workspace(self._store, caller, id_or_name, Permission.READ_ARCHIVES)
        refuse_deleted(found)
        async with self._store.reading_archives(found.id, lease_s=READING_LEASE_S) as lease:
            kept = await self._store.archives(found.id)
            keys = [_listed_archive(found, kept, key).key for key in archive_keys]
            if audited:
                about = {"archive_key": str(keys[0])}
                await self._store.audit(audit_entry(caller, AuditAction.WORKSPACE_READ_ARCHIVE, found, **about))
            yield keys, lease

    async def restore(self, caller: Caller, id_or_name: str, archive_key: str) -> Workspace:
        """Replace the home by this older archive. The present home is archived first."""
        async with self._store.writing() as writing:
            found = await lock_workspace(writing, caller, id_or_name, Permission.RESTORE)
            refuse_deleted(found)
            if found.restore is not None:
                raise Refused(
                    "restore_in_progress",
                    f"the home of {found.name!r} is already being replaced by {found.restore.archive.key}; "
                    "cancel that restore first, or wait for its end",
                    workspace=found.name,
                    archive_key=str(found.restore.archive.key),
                )
            _refuse_lost(found)
            archive = await _kept_archive(writing, found, archive_key)
            workspace = await writing.set_restore(found.id, archive)
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_RESTORE, found, archive_key=archive_key))
        self._hint(workspace.id)
        return workspace

    async def cancel_restore(self, caller: Caller, id_or_name: str) -> Workspace:
        """Withdraw a restore that has not replaced the home yet."""
        async with self._store.writing() as writing:
            found = await lock_workspace(writing, caller, id_or_name, Permission.RESTORE)
            if found.restore is None:
                raise Refused(
                    "no_restore",
                    f"no restore of {found.name!r} can be canceled: none was requested, or the archive has replaced the home",
                    workspace=found.name,
                )
            workspace = await writing.cancel_restore(found.id)
            key = str(found.restore.archive.key)
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_CANCEL_RESTORE, found, archive_key=key))
        self._hint(workspace.id)
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
        """Create a workspace of the caller whose home is a copy of an archive of this one, or return the one that was created
        with the same `key`."""
        # Only what the caller said: the source may change or be deleted before a request is repeated.
        said = json.dumps(["fork", id_or_name, name, archive_key, desired_state]).encode()
        asked = Creation(self._new_id(), hashlib.sha256(said).digest())
        async with self._store.writing() as writing:
            made = await writing.creation(caller.user.id, key) if key is not None else None
            if made is not None and made.request != asked.request:
                raise Refused("key_reused", "this Idempotency-Key was used for another creation; use a new one")
            if made is None:
                # Before the row is locked, as a move does: otherwise the two could wait for each other.
                if desired_state in NEEDS_HOME:
                    refuse_while_switching(await writing.runtime_switch(), desired_state)
                forked = await self._fork(writing, caller, id_or_name, asked.workspace_id, name, archive_key, desired_state)
                if key is not None:
                    await writing.remember_creation(caller.user.id, key, asked)
        if made is not None:
            return Fork(await find_workspace(self._store, caller, made.workspace_id), ())
        self._hint(forked.workspace.id)
        return forked

    async def _fork(
        self,
        writing: ServiceTransaction,
        caller: Caller,
        id_or_name: str,
        new_id: str,
        name: str,
        archive_key: str | None,
        desired_state: Wish,
    ) -> Fork:
        # Locked until the fork refers to the archive: the collector cannot mark it in between.
        source = await lock_workspace(writing, caller, id_or_name, Permission.FORK)
        refuse_deleted(source)
        archive = await _fork_archive(writing, source, archive_key)
        new = NewWorkspace(
            id=new_id,
            name=name,
            owner_id=caller.user.id,
            template=source.template,
            command=source.command,
            desired_state=desired_state,
            standby_ttl_s=source.standby_ttl_s,
            archive_ttl_s=source.archive_ttl_s,
            before_sleep=source.before_sleep,
            environment=source.environment,
            size=source.size,
            image=source.image,
            fork_source=archive,
        )
        self._check_new(new)
        workspace = await self._insert(writing, caller, new)
        about = {"name": name, "archive_key": str(archive.key)}
        await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_FORK, source, **about))
        secrets = [one.name for one in await writing.secrets(source.id)]
        return Fork(workspace, tuple(_warnings(source, archive, secrets)))

    async def require_copy_source(self, writing: ServiceTransaction, fork: Workspace) -> None:
        """Before the undelete of a fork whose copy was not made: the archive of its source must still be kept."""
        if not fork.awaits_copy or fork.fork_source is None:
            return
        key = fork.fork_source.key
        await writing.lock(key.workspace_id)
        if await writing.archive_standing(key.workspace_id, str(key)) is not ArchiveState.KEPT:
            raise Refused(
                "archive_collected",
                f"{fork.name!r} was deleted before its home was copied, and the archive {key} is no longer kept",
                workspace=fork.name,
                archive_key=str(key),
            )


def _warnings(source: Workspace, archive: Archive, secrets: Sequence[str]) -> Sequence[str]:
    warnings = []
    if source.may_have_changes or source.archive != archive:
        warnings.append(
            f"the home of {source.name!r} may have changes that are not in the archive {archive.key}; the fork does not have "
            f"them. Archive {source.name!r} first to include them."
        )
    if secrets:
        warnings.append(f"secrets are not copied: {', '.join(sorted(secrets))}. Set them again, if the fork needs them.")
    return warnings


def _refuse_lost(workspace: Workspace) -> None:
    error = workspace.error
    if error is not None and error.is_terminal and error.reason in ASKS_HOW_TO_GO_ON:
        raise Refused(
            "in_error",
            f"the home of {workspace.name!r} cannot be archived before a restore: {error.message}. Recover it instead",
            workspace=workspace.name,
        )


async def _fork_archive(writing: ServiceTransaction, source: Workspace, archive_key: str | None) -> Archive:
    """The named archive; else the one that the home was last restored from or archived to; else the latest."""
    if archive_key is not None:
        return await _kept_archive(writing, source, archive_key)
    kept = [one.archive for one in await writing.archives(source.id) if not one.is_damaged]
    if not kept:
        raise Refused("no_archive", f"{source.name!r} has no archive to copy; archive it first", workspace=source.name)
    return source.archive if source.archive in kept else kept[0]


def _listed_archive(workspace: Workspace, kept: Sequence[StoredArchive], archive_key: str | None) -> Archive:
    if archive_key is None:
        current = [one.archive for one in kept if one.archive == workspace.archive] or [one.archive for one in kept]
        if not current:
            raise Refused("no_archive", f"{workspace.name!r} has no archive yet; archive it first", workspace=workspace.name)
        return current[0]
    found = next((one.archive for one in kept if str(one.archive.key) == archive_key), None)
    return found if found is not None else _no_such_archive(workspace, kept, archive_key)


async def _kept_archive(writing: ServiceTransaction, workspace: Workspace, archive_key: str) -> Archive:
    """The row is locked, so the collector cannot mark the archive now."""
    kept = await writing.archives(workspace.id)
    found = next((one for one in kept if str(one.archive.key) == archive_key), None)
    if found is not None and found.is_damaged:
        raise Refused(
            "archive_damaged", f"{archive_key!r} is damaged and cannot be restored; choose another", archive_key=archive_key
        )
    if found is not None:
        return found.archive
    if await writing.archive_standing(workspace.id, archive_key) is ArchiveState.MARKED:
        raise Refused(
            "archive_collected", f"{archive_key!r} is about to be removed; choose a newer archive", archive_key=archive_key
        )
    return _no_such_archive(workspace, kept, archive_key)


def _no_such_archive(workspace: Workspace, kept: Sequence[StoredArchive], archive_key: str) -> NoReturn:
    another = ": its key names another workspace" if _is_of_another(workspace, archive_key) else ""
    raise Refused(
        "no_such_archive",
        f"{archive_key!r} is not an archive of {workspace.name!r}{another}",
        archive_keys=[str(one.archive.key) for one in kept],
    )


def _is_of_another(workspace: Workspace, archive_key: str) -> bool:
    try:
        return ArchiveKey.parse(archive_key).workspace_id != workspace.id
    except ValueError:
        return False
