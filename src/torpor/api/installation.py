"""Tell administrators which protections between users the installation lacks."""

from fastapi import APIRouter

from torpor.api import wire
from torpor.service.wishes import Wishes


def confinement_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["installation"])

    @router.get("/confinement")
    async def confinement() -> wire.ConfinementList:
        """What each live controller confines, what it lacks, and what provides it."""
        return wire.ConfinementList(items=[wire.confinement_out(one) for one in await wishes.members()])

    return router
