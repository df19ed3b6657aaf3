"""Report the confinement, the latches and the runtime of the installation; release latches, and move to another runtime."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from torpor.api import wire, wire_runtime
from torpor.api.authentication import Asking
from torpor.service.wishes import Wishes


def installation_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["installation"])

    @router.get("/confinement")
    async def confinement() -> wire.ConfinementList:
        """What each live controller confines, what it lacks, and what provides it."""
        return wire.ConfinementList(items=[wire.confinement_out(one) for one in await wishes.confinement.members()])

    @router.get("/latches")
    async def latches() -> wire.LatchList:
        """Providers at which no workspace is changed, because too many homes disappeared there at once."""
        return wire.LatchList(items=[wire.latch_out(latch) for latch in await wishes.latches.all()])

    @router.post("/latches/{provider}/release", status_code=204)
    async def release(provider: Annotated[wire.Text, Path()], caller: Asking) -> Response:
        """Confirm that the homes that are missing there are lost."""
        await wishes.latches.release(caller, provider)
        return Response(status_code=204)

    @router.get("/runtime")
    async def runtime(caller: Asking) -> wire_runtime.RuntimeOut:
        """The runtime that has the homes, and the move to another one that is in progress."""
        return wire_runtime.runtime_out(await wishes.switch.status(), is_admin=caller.is_admin)

    @router.get("/runtime/switch")
    async def preview(
        target: Annotated[wire.Text, Query(max_length=32, description="The runtime to move to.")],
    ) -> wire_runtime.SwitchPreviewOut:
        """What a move to this runtime would do. No data is changed."""
        return wire_runtime.preview_out(await wishes.switch.preview(target))

    @router.post("/runtime/switch", status_code=202)
    async def switch(wanted: wire_runtime.NewSwitch, caller: Asking) -> wire_runtime.RuntimeOut:
        """Archive all workspaces, to move them to another runtime. No workspace can start until that is done or canceled."""
        return wire_runtime.runtime_out(await wishes.switch.begin(caller, wanted.target), is_admin=True)

    @router.delete("/runtime/switch")
    async def cancel(caller: Asking) -> wire_runtime.RuntimeOut:
        """Stay at this runtime, and request again what was requested before."""
        return wire_runtime.runtime_out(await wishes.switch.cancel(caller), is_admin=True)

    return router
