"""How does a browser that is signed in on the platform come in at a workspace's own host?

That host has sent it here with the digest of a nonce that only this browser holds; it is sent back with a code that is good
once, for seconds, and only together with that nonce. Our own cookie never leaves the platform's host.
"""

import re
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from torpor.accounts import Accounts
from torpor.api.authentication import door_of
from torpor.api.notices import notice_page
from torpor.api.refusals import STATUS_OF
from torpor.domain.access import Permission
from torpor.domain.errors import Refused
from torpor.domain.hostnames import is_own_path
from torpor.service.wishes import Wishes

NONCE = re.compile(r"[0-9a-f]{64}")
ENTER = "/.torpor/enter"


def sign_in_grant_routes(accounts: Accounts, wishes: Wishes) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/door")
    async def door(
        request: Request,
        workspace: str = "",
        port: Annotated[int | None, Query(ge=1, le=65535)] = None,
        nonce: str = "",
        back: str = "/",
    ) -> Response:
        """`nonce`: the SHA-256 of what the workspace's host has the browser keep, in hexadecimal."""
        here = door_of(request)
        sign_in = _see(f"/?next={quote(_asked(request), safe='')}")
        caller = await here.session(request)
        if caller is None:
            return sign_in
        if not NONCE.fullmatch(nonce) or not is_own_path(back):
            return notice_page(422, "This link is not whole", "Open the workspace's own address again.")
        try:
            found = await wishes.find(caller, workspace, Permission.OPEN)
            code = await accounts.door_code(caller, found.id, bytes.fromhex(nonce))
        except Refused as refused:
            if refused.code == "unauthorized":
                # The session has ended since it was looked at.
                return sign_in
            return notice_page(STATUS_OF.get(refused.code, 400), "Nothing to open here", refused.message)
        return _see(f"{here.hosts.url(found.name, port)}{ENTER}?{urlencode({'code': code, 'back': back})}")

    return router


def _asked(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def _see(where: str) -> Response:
    # The code is in the address, for the host it was made for alone.
    return RedirectResponse(where, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
