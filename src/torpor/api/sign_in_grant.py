"""Sign a browser in at a workspace's own host, if it is signed in on the platform.

The workspace's host sends the browser here with the digest of a nonce that only this browser has. The browser is sent back with
a code that works once, within seconds, and only together with that nonce. The session cookie never leaves the platform's host.
"""

import re
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from torpor.accounts import Accounts
from torpor.api.authentication import authenticator_of
from torpor.api.notices import notice_page
from torpor.api.refusals import STATUS_OF
from torpor.domain.access import Permission
from torpor.domain.errors import Refused
from torpor.domain.hostnames import ENTER_PATH, is_own_path
from torpor.service.wishes import Wishes

NONCE = re.compile(r"[0-9a-f]{64}")


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
        """`nonce`: the SHA-256, in hexadecimal, of the value that the workspace's host stored in the browser."""
        here = authenticator_of(request)
        sign_in = _see(f"/?next={quote(_asked(request), safe='')}")
        caller = await here.session(request)
        if caller is None:
            return sign_in
        if not NONCE.fullmatch(nonce) or not is_own_path(back):
            return notice_page(422, "This link is incomplete", "Open the workspace's address again.")
        try:
            found = await wishes.find(caller, workspace, Permission.OPEN)
            code = await accounts.door_code(caller, found.id, bytes.fromhex(nonce))
        except Refused as refused:
            if refused.code == "unauthorized":
                # The session ended during this request.
                return sign_in
            return notice_page(STATUS_OF.get(refused.code, 400), "This workspace cannot be opened", refused.message)
        return _see(f"{here.hosts.url(found.name, port)}{ENTER_PATH}?{urlencode({'code': code, 'back': back})}")

    return router


def _asked(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def _see(where: str) -> Response:
    # The address contains the code, which only the workspace's host may see.
    return RedirectResponse(where, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
