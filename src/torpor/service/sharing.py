"""Share workspaces with other users, and stop sharing them."""

from torpor.accounts import Caller
from torpor.domain.access import Permission, Share
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Refused
from torpor.service.audit import audit_entry
from torpor.service.workspace_lookup import lock_workspace, refuse_deleted
from torpor.store.service_store import ServiceStore

# Every event contains all of them.
MOST_SHARES = 100


class SharingService:
    def __init__(self, store: ServiceStore) -> None:
        self._store = store

    async def share(self, caller: Caller, id_or_name: str, username: str, role: Share) -> None:
        """Let this user use the workspace, or manage it."""
        async with self._store.writing() as writing:
            workspace = await lock_workspace(writing, caller, id_or_name, Permission.SHARE)
            refuse_deleted(workspace)
            if username == workspace.owner:
                raise Refused("bad_share", f"{username} owns {workspace.name!r} already", username=username)
            if username not in workspace.shares and len(workspace.shares) >= MOST_SHARES:
                raise Refused(
                    "bad_share",
                    f"{workspace.name!r} is shared with {MOST_SHARES} users already; unshare it from one first",
                )
            if not await writing.is_known_user(username):
                raise Refused("unknown_user", f"there is no active user {username!r}", username=username)
            if workspace.shares.get(username) != role:
                await writing.share(workspace.id, username, role)
                await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_SHARE, workspace, username=username, role=role))

    async def unshare(self, caller: Caller, id_or_name: str, username: str) -> None:
        """Hide the workspace from this user, and end the streams that the user has open for it."""
        async with self._store.writing() as writing:
            workspace = await lock_workspace(writing, caller, id_or_name, Permission.SHARE)
            if username not in workspace.shares:
                raise Refused(
                    "not_found", f"{workspace.name!r} is not shared with {username!r}", kind="share", username=username
                )
            await writing.unshare(workspace.id, username)
            await writing.audit(audit_entry(caller, AuditAction.WORKSPACE_UNSHARE, workspace, username=username))
