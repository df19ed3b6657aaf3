"""Report the confinement and the latches of the installation, and release latches."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from torpor.api import wire
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

    return router
