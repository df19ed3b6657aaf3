"""Sign a browser in that opens the one-time link of the first start."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from torpor.accounts import Accounts
from torpor.api.authentication import LONGEST_TOKEN, client_address, door_of, user_agent
from torpor.api.notices import notice_page
from torpor.api.refusals import STATUS_OF
from torpor.domain.errors import Refused

SIGN_IN_LINK = "/sign-in/link"


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
        door_of(request).let_in(response, token)
        return response

    return router
