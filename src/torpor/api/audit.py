"""Read the audit log."""

from typing import Annotated

from fastapi import APIRouter, Query

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.service.wishes import Wishes


def audit_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["audit"])

    @router.get("/audit")
    async def audit(
        caller: Asking,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: str | None = None,
        username: wire.Text | None = None,
        workspace: Annotated[wire.Text | None, Query(description="The workspace's id, or the name it had.")] = None,
    ) -> wire.AuditPage:
        """Newest first. Administrators see all entries; other users see their own and those about workspaces that they own."""
        page = await wishes.audit.page(
            caller, username=username, workspace=workspace, before=wire.lines_before(cursor), limit=limit
        )
        next_cursor = wire.to_cursor((page.next_before,)) if page.next_before is not None else None
        return wire.AuditPage(items=[wire.audit_out(line) for line in page.items], next_cursor=next_cursor)

    return router
