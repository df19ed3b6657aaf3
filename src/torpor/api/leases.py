"""Keep workspaces awake: create, list and end holds."""

from fastapi import APIRouter, Response

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.domain.access import Permission
from torpor.service.wishes import Wishes


def lease_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["leases"])
    using = wishes.using

    @router.post("/workspaces/{workspace}/leases", status_code=201)
    async def hold(workspace: str, body: wire.HoldWorkspace, caller: Asking) -> wire.WorkLeaseOut:
        found = await wishes.find(caller, workspace, Permission.HOLD)
        held = await using.hold(caller, found, reason=body.reason, seconds=body.seconds)
        return wire.work_lease_out(held)

    @router.get("/workspaces/{workspace}/leases")
    async def holds(workspace: str, caller: Asking) -> wire.WorkLeaseList:
        leases = await using.holds(await wishes.find(caller, workspace))
        return wire.WorkLeaseList(items=[wire.work_lease_out(lease) for lease in leases])

    @router.delete("/workspaces/{workspace}/leases", status_code=204)
    async def end_all(workspace: str, caller: Asking) -> Response:
        await using.end_hold(caller, await wishes.find(caller, workspace, Permission.HOLD))
        return Response(status_code=204)

    @router.delete("/workspaces/{workspace}/leases/{lease_id}", status_code=204)
    async def end_one(workspace: str, lease_id: str, caller: Asking) -> Response:
        await using.end_hold(caller, await wishes.find(caller, workspace, Permission.HOLD), lease_id)
        return Response(status_code=204)

    return router
