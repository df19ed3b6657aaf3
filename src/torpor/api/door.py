"""Who is at the door of the API, and may they come in?

Programs bring `Authorization: Bearer`; browsers a session cookie, which allows changes only from our own page.
"""

from typing import Annotated

from fastapi import Depends, Request

from torpor.accounts import Accounts
from torpor.domain.errors import Refused
from torpor.store.for_service import User

COOKIE = "torpor_session"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def token_of(request: Request) -> str:
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused("unauthorized", "the Authorization header must read: Bearer TOKEN")
        return token.strip()
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        raise Refused("unauthorized", "sign in first, or send Authorization: Bearer TOKEN (see credentials.json)")
    refuse_cross_site(request)
    return cookie


def refuse_cross_site(request: Request) -> None:
    """A cookie travels with requests that other sites make, so for changes the Origin must be ours."""
    if request.method in SAFE:
        return
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if origin is not None and origin.partition("://")[2] != host:
        raise Refused("cross_site", f"a request from {origin} may not act as the user signed in at {host}")
    if origin is None and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refused("cross_site", "a request from another site may not act as the signed-in user")


async def _signed_in(request: Request) -> User:
    accounts: Accounts = request.app.state.accounts
    return await accounts.by_token(token_of(request))


SignedIn = Annotated[User, Depends(_signed_in)]
