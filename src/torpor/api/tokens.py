"""Create, list and revoke API tokens."""

from fastapi import APIRouter, Response

from torpor.accounts import Accounts
from torpor.api import wire_users as wire
from torpor.api.authentication import Asking


def token_routes(accounts: Accounts) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post("/tokens", status_code=201)
    async def make(body: wire.MakeToken, caller: Asking) -> wire.TokenMade:
        return wire.token_made(*await accounts.make_token(caller, body.label, body.scopes, body.expires_in))

    @router.get("/tokens")
    async def tokens(caller: Asking) -> wire.TokenList:
        return wire.TokenList(items=[wire.token_out(one) for one in await accounts.tokens(caller)])

    @router.delete("/tokens/{token}", status_code=204)
    async def revoke(token: str, caller: Asking) -> Response:
        await accounts.revoke(caller, token)
        return Response(status_code=204)

    return router
