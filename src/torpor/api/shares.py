"""Share workspaces with other users."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.service.wishes import Wishes

Username = Annotated[wire.Text, Path(max_length=200)]


def share_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["shares"])

    @router.get("/workspaces/{workspace}/shares")
    async def shares(workspace: str, caller: Asking) -> wire.ShareList:
        return wire.share_list(await wishes.find(caller, workspace))

    @router.put("/workspaces/{workspace}/shares/{username}")
    async def share(workspace: str, username: Username, body: wire.ShareWorkspace, caller: Asking) -> wire.ShareOut:
        """Let this user use the workspace, or manage it. A second call replaces the role."""
        await wishes.sharing.share(caller, workspace, username, body.role)
        return wire.ShareOut(username=username, role=body.role)

    @router.delete("/workspaces/{workspace}/shares/{username}", status_code=204)
    async def unshare(workspace: str, username: Username, caller: Asking) -> Response:
        """Hide the workspace from this user at once."""
        await wishes.sharing.unshare(caller, workspace, username)
        return Response(status_code=204)

    return router
