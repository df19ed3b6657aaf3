"""Sign browsers in with an OpenID Connect provider.

A sign-in can be completed only in the browser that began it: a cookie of that browser holds the values that the provider's
answer must match, for some minutes.
"""

import base64
import hmac
import json
from dataclasses import astuple, dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from torpor.accounts import Accounts
from torpor.accounts.accounts import ProviderIdentity
from torpor.accounts.provider import Provider
from torpor.api.authentication import authenticator_of, client_address, user_agent
from torpor.api.notices import notice_page
from torpor.api.refusals import STATUS_OF
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.hostnames import Hosts, is_own_path

BACK = "/oidc/back"
MINUTES = 10
LONGEST_NEXT = 2000
"""Browsers do not keep larger cookies."""
LONGEST_COOKIE = 4096
AGAIN = ("/", "Sign in again")


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """What a browser keeps while its user is at the provider."""

    state: str
    nonce: str
    verifier: str
    next: str


def oidc_routes(accounts: Accounts, provider: Provider) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/oidc/begin")
    async def begin(request: Request, after: Annotated[str, Query(alias="next")] = "/") -> Response:
        try:
            begun = await provider.begin()
        except Unavailable as out:
            return notice_page(503, "The sign-in provider does not respond", out.message, way_on=AGAIN)
        response = RedirectResponse(begun.url, 303, {"Cache-Control": "no-store"})
        # Only paths of the platform: another address could be a site that imitates it.
        pending = PendingSignIn(begun.state, begun.nonce, begun.verifier, after if _is_next(after) else "/")
        hosts = authenticator_of(request).hosts
        response.set_cookie(
            _cookie(hosts),
            _to_text(pending),
            max_age=MINUTES * 60,
            path="/",
            secure=hosts.is_secure,
            httponly=True,
            samesite="lax",
        )
        return response

    @router.get(BACK)
    async def back(request: Request, code: str = "", state: str = "", error: str = "") -> Response:
        authenticator = authenticator_of(request)
        try:
            pending, identity = await vouched_for(request, code, state, error)
            token = await accounts.sign_in_with(identity, came_from=client_address(request), user_agent=user_agent(request))
        except Refused as refused:
            response: Response = notice_page(
                STATUS_OF.get(refused.code, 400), "You are not signed in", refused.message, way_on=AGAIN
            )
        except Unavailable as out:
            response = notice_page(503, "The sign-in provider does not respond", out.message, way_on=AGAIN)
        else:
            response = RedirectResponse(pending.next, 303, {"Cache-Control": "no-store"})
            authenticator.let_in(response, token)
        # In every case: the same answer is not accepted twice.
        hosts = authenticator.hosts
        response.delete_cookie(_cookie(hosts), path="/", secure=hosts.is_secure, httponly=True, samesite="lax")
        return response

    async def vouched_for(request: Request, code: str, state: str, error: str) -> tuple[PendingSignIn, ProviderIdentity]:
        try:
            pending = _checked(request.cookies.get(_cookie(authenticator_of(request).hosts), ""), state)
            return pending, await provider.vouch(_given(code, error), nonce=pending.nonce, verifier=pending.verifier)
        except Refused as refused:
            await accounts.not_vouched_for(refused.code, came_from=client_address(request))
            raise

    return router


def _is_next(path: str) -> bool:
    return len(path) <= LONGEST_NEXT and is_own_path(path)


def _cookie(hosts: Hosts) -> str:
    return "__Host-torpor_oidc" if hosts.is_secure else "torpor_oidc"


def _checked(kept: str, state: str) -> PendingSignIn:
    """What the browser has kept, if the provider's answer belongs to it."""
    pending = _from_text(kept)
    if pending is None or not hmac.compare_digest(pending.state.encode(), state.encode()):
        raise Refused("sign_in_refused", "this sign-in was started in another browser, or too long ago; sign in again")
    return pending


def _given(code: str, error: str) -> str:
    if error or not code:
        raise Refused("sign_in_refused", f"the sign-in provider reports: {error or 'no code and no error'}")
    return code


def _to_text(pending: PendingSignIn) -> str:
    return base64.urlsafe_b64encode(json.dumps(astuple(pending)).encode()).decode()


def _from_text(text: str) -> PendingSignIn | None:
    """None for a text that `_to_text` did not write. Only the browser itself can change its cookie, which gives it no right."""
    if len(text) > LONGEST_COOKIE:
        return None
    try:
        state, nonce, verifier, path = json.loads(base64.urlsafe_b64decode(text))
    except (ValueError, TypeError, RecursionError):
        return None
    if not all(isinstance(one, str) and one for one in (state, nonce, verifier, path)) or not _is_next(path):
        return None
    return PendingSignIn(state, nonce, verifier, path)
