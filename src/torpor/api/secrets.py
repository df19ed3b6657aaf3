"""Set, list and remove the secrets of workspaces. No answer contains a value."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.service.wishes import Wishes

SecretName = Annotated[wire.Text, Path(max_length=1000)]


def secret_routes(wishes: Wishes) -> APIRouter:
    router = APIRouter(tags=["secrets"])

    @router.get("/workspaces/{workspace}/secrets")
    async def secrets(workspace: str, caller: Asking) -> wire.SecretList:
        """The names of the workspace's secrets, and when each was set. Values cannot be read."""
        return wire.SecretList(items=[wire.secret_out(one) for one in await wishes.secrets.entries(caller, workspace)])

    @router.put("/workspaces/{workspace}/secrets/{name}")
    async def set_secret(workspace: str, name: SecretName, body: wire.SetSecret, caller: Asking) -> wire.SecretOut:
        """Create or replace a secret: a variable for the program, commands and shells, from the next start on."""
        return wire.secret_out(await wishes.secrets.set(caller, workspace, name, body.value.get_secret_value()))

    @router.delete("/workspaces/{workspace}/secrets/{name}", status_code=204)
    async def remove_secret(workspace: str, name: SecretName, caller: Asking) -> Response:
        """Remove a secret. A workspace that runs keeps it until it is stopped."""
        await wishes.secrets.remove(caller, workspace, name)
        return Response(status_code=204)

    return router
