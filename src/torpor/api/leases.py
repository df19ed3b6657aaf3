"""Who keeps a workspace awake, and why?"""

from fastapi import APIRouter, Response

from torpor.api import wire
from torpor.api.door import SignedIn
from torpor.wishes import Wishes


def lease_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["leases"])

    @router.post("/workspaces/{workspace}/leases", status_code=201)
    async def hold(workspace: str, body: wire.HoldWorkspace, user: SignedIn) -> wire.WorkLeaseOut:
        return wire.work_lease_out(await wishes.hold(user, workspace, reason=body.reason, seconds=body.seconds))

    @router.get("/workspaces/{workspace}/leases")
    async def holds(workspace: str, user: SignedIn) -> wire.WorkLeaseList:
        return wire.WorkLeaseList(items=[wire.work_lease_out(lease) for lease in await wishes.holds(user, workspace)])

    @router.delete("/workspaces/{workspace}/leases", status_code=204)
    async def end_all(workspace: str, user: SignedIn) -> Response:
        await wishes.end_hold(user, workspace)
        return Response(status_code=204)

    @router.delete("/workspaces/{workspace}/leases/{lease_id}", status_code=204)
    async def end_one(workspace: str, lease_id: str, user: SignedIn) -> Response:
        await wishes.end_hold(user, workspace, lease_id)
        return Response(status_code=204)

    return router
