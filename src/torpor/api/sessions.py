"""Sign in (by password or by the one-time link of the first start), sign out, list and end sessions."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from torpor.accounts import Accounts
from torpor.api import wire_users as wire
from torpor.api.authentication import Asking, authenticator_of, client_address, user_agent
from torpor.api.notices import notice_page
from torpor.api.refusals import STATUS_OF
from torpor.domain.access import LONGEST_TOKEN
from torpor.domain.errors import Refused

SIGN_IN_LINK = "/sign-in/link"


def session_routes(accounts: Accounts, *, oidc_name: str | None = None) -> APIRouter:
    """`oidc_name`: the name of the OpenID Connect provider, if there is one."""
    router = APIRouter(tags=["sessions"])

    @router.get("/sign-in")
    async def ways_to_sign_in() -> wire.SignInOut:
        return wire.SignInOut(password=True, oidc=wire.OidcOut(name=oidc_name) if oidc_name is not None else None)

    @router.post("/login", status_code=204)
    async def login(body: wire.Login, request: Request) -> Response:
        authenticator = authenticator_of(request)
        authenticator.refuse_cross_site(request)
        token = await accounts.sign_in(
            body.username, body.password, came_from=client_address(request), user_agent=user_agent(request)
        )
        response = Response(status_code=204)
        authenticator.let_in(response, token)
        return response

    @router.post("/logout", status_code=204)
    async def logout(request: Request, caller: Asking) -> Response:
        await accounts.sign_out(caller)
        response = Response(status_code=204)
        authenticator_of(request).show_out(response)
        return response

    @router.get("/me")
    async def me(caller: Asking) -> wire.Me:
        return wire.me_out(caller, await accounts.user(caller.user.id))

    @router.post("/me/password", status_code=204)
    async def change_password(body: wire.ChangePassword, caller: Asking) -> Response:
        await accounts.change_password(caller, body.old, body.new, ends_tokens=body.end_tokens)
        return Response(status_code=204)

    @router.get("/sessions")
    async def sessions(caller: Asking) -> wire.SessionList:
        found = await accounts.sessions(caller)
        return wire.SessionList(items=[wire.session_out(one, current_id=caller.credential_id) for one in found])

    @router.delete("/sessions/{session}", status_code=204)
    async def end_session(session: str, caller: Asking) -> Response:
        await accounts.end_session(caller, session)
        return Response(status_code=204)

    return router


def sign_in_link_routes(accounts: Accounts) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get(SIGN_IN_LINK)
    async def open_link(request: Request, code: str = "") -> Response:
        try:
            token = await accounts.sign_in_by_code(
                code[:LONGEST_TOKEN], came_from=client_address(request), user_agent=user_agent(request)
            )
        except Refused as refused:
            return notice_page(STATUS_OF[refused.code], "You are not signed in", refused.message, way_on=("/", "Sign in"))
        response = RedirectResponse("/", 303, {"Cache-Control": "no-store"})
        authenticator_of(request).let_in(response, token)
        return response

    return router
