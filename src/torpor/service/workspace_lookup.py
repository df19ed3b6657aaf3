"""Find the workspace that a caller names, and check what the caller may do with it now."""

from torpor.accounts import Caller
from torpor.domain.access import Permission, check_access, workspace_not_found
from torpor.domain.errors import Refused
from torpor.domain.names import is_id, is_name
from torpor.domain.records import Workspace
from torpor.domain.status import status_word
from torpor.store.service_store import ServiceStore, ServiceTransaction


async def find_workspace(
    store: ServiceStore, caller: Caller, id_or_name: str, *permissions: Permission, deleted_first: bool = False
) -> Workspace:
    """Return the workspace if this caller may see it and has these permissions; otherwise its existence is not revealed."""
    if is_id(id_or_name):
        found = await store.by_id(id_or_name)
    elif is_name(id_or_name):
        seen_by = None if caller.is_admin else caller.user
        found = await store.by_name(id_or_name, seen_by=seen_by, deleted_first=deleted_first)
    else:
        found = None
    if found is None:
        raise workspace_not_found(id_or_name)
    check_permissions(caller, found, *permissions, named=id_or_name)
    return found


async def lock_workspace(
    writing: ServiceTransaction, caller: Caller, id_or_name: str, *permissions: Permission, deleted_first: bool = False
) -> Workspace:
    """Find the workspace as `find_workspace` does, and lock its row in the same statement."""
    if not is_id(id_or_name) and not is_name(id_or_name):
        raise workspace_not_found(id_or_name)
    seen_by = None if caller.is_admin else caller.user
    workspace = await writing.lock_visible(id_or_name, seen_by=seen_by, deleted_first=deleted_first)
    if workspace is None:
        raise workspace_not_found(id_or_name)
    check_permissions(caller, workspace, *permissions, named=id_or_name)
    return workspace


def refuse_deleted(workspace: Workspace) -> None:
    if workspace.deleted_at is not None:
        raise Refused("is_deleted", f"{workspace.name!r} is deleted; undelete it first", workspace=workspace.name)


def refuse_stopped(workspace: Workspace) -> None:
    if not workspace.container_present:
        status = status_word(workspace.phase, workspace.operation)
        message = f"{workspace.name!r} is not running (status: {status}); start it first"
        raise Refused("not_running", message, workspace=workspace.name)


def check_permissions(caller: Caller, workspace: Workspace, *permissions: Permission, named: str) -> None:
    # A caller with the cookie of a workspace's own host can reach only that workspace.
    if caller.workspace_id not in (None, workspace.id):
        raise workspace_not_found(named)
    for permission in (Permission.SEE, *permissions):
        check_access(workspace, caller.user.username, permission, is_admin=caller.is_admin, said=named)
