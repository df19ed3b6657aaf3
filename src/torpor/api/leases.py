"""Who keeps a workspace awake, and why?"""

from fastapi import APIRouter, Response

from torpor.api import wire
from torpor.api.door import SignedIn
from torpor.wishes import Wishes


def lease_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["leases"])
    using = wishes.using

    @router.post("/workspaces/{workspace}/leases", status_code=201)
    async def hold(workspace: str, body: wire.HoldWorkspace, user: SignedIn) -> wire.WorkLeaseOut:
        found = await wishes.find(user, workspace)
        held = await using.hold(found, by=user.username, reason=body.reason, seconds=body.seconds)
        return wire.work_lease_out(held)

    @router.get("/workspaces/{workspace}/leases")
    async def holds(workspace: str, user: SignedIn) -> wire.WorkLeaseList:
        leases = await using.holds(await wishes.find(user, workspace))
        return wire.WorkLeaseList(items=[wire.work_lease_out(lease) for lease in leases])

    @router.delete("/workspaces/{workspace}/leases", status_code=204)
    async def end_all(workspace: str, user: SignedIn) -> Response:
        await using.end_hold(await wishes.find(user, workspace))
        return Response(status_code=204)

    @router.delete("/workspaces/{workspace}/leases/{lease_id}", status_code=204)
    async def end_one(workspace: str, lease_id: str, user: SignedIn) -> Response:
        await using.end_hold(await wishes.find(user, workspace), lease_id)
        return Response(status_code=204)

    return router
