"""Write entries of the audit log, and show each caller the entries that this caller may read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torpor.accounts import Caller
from torpor.domain.audit import AuditAction
from torpor.domain.names import is_id
from torpor.domain.records import Workspace
from torpor.store.service_store import AuditFilter, AuditRecord, ServiceStore
from torpor.store.user_store import AuditEntry


@dataclass(frozen=True, slots=True)
class AuditListing:
    items: Sequence[AuditRecord]
    next_before: int | None


def audit_entry(caller: Caller, action: AuditAction, workspace: Workspace, **detail: object) -> AuditEntry:
    """The entry for something that a caller did with a workspace."""
    return caller.entry(action, workspace_id=workspace.id, workspace=workspace.name, detail=detail)


class AuditService:
    def __init__(self, store: ServiceStore) -> None:
        self._store = store

    async def page(
        self,
        caller: Caller,
        *,
        username: str | None = None,
        workspace: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> AuditListing:
        """Administrators see all entries; other users see their own and those about workspaces that they own."""
        which = AuditFilter(
            concerns=None if caller.is_admin else caller.user.id,
            username=username,
            workspace_id=workspace if workspace is not None and is_id(workspace) else None,
            workspace=workspace if workspace is not None and not is_id(workspace) else None,
        )
        items = await self._store.audited(which, before=before, limit=limit + 1)
        shown = [one if caller.is_admin or one.entry.user_id == caller.user.id else _redacted(one) for one in items[:limit]]
        return AuditListing(shown, items[limit - 1].id if len(items) > limit else None)

    async def gc_requested(self, caller: Caller) -> None:
        """The caller asks the leader to collect archives now. The request itself is written by `GcStore.request`."""
        await self._store.audit(caller.entry(AuditAction.GC_REQUEST))


def _redacted(record: AuditRecord) -> AuditRecord:
    """Without the address and the token label of another user: an owner may know who did it, but not these."""
    return replace(record, entry=replace(record.entry, came_from="", token_label=""))
