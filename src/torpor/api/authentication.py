"""Authenticate the callers of the API.

Programs send `Authorization: Bearer`; browsers send a session cookie, which allows changes only from the platform's own pages.
The app holds the authenticator: `app.state.authenticator = Authenticator(accounts, hosts)`.
"""

import ipaddress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response

from torpor.accounts import Accounts, AuthMethod, Caller
from torpor.domain.access import LONGEST_TOKEN
from torpor.domain.errors import Refused
from torpor.domain.hostnames import LOOPBACK, Hosts

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Authenticator:
    accounts: Accounts
    hosts: Hosts

    @property
    def cookie(self) -> str:
        return self.hosts.session_cookie

    async def recognise(self, connection: HTTPConnection) -> Caller:
        token, how = self._shown(connection)
        caller = await self.accounts.recognise(token, came_from=client_address(connection))
        # A session's secret is not accepted as an API token, and a workspace's cookie is not accepted here.
        if caller.how is not how:
            raise Refused("unauthorized", f"this is not a valid {how.lower()}; sign in, or send Authorization: Bearer TOKEN")
        return caller

    async def session(self, connection: HTTPConnection) -> Caller | None:
        """The browser's session, for pages that need no sign-in; None: the browser is not signed in."""
        cookie = connection.cookies.get(self.cookie)
        if not cookie:
            return None
        try:
            caller = await self.accounts.recognise(cookie[:LONGEST_TOKEN], came_from=client_address(connection))
        except Refused:
            return None
        return caller if caller.how is AuthMethod.SESSION else None

    def refuse_cross_site(self, connection: HTTPConnection) -> None:
        """Browsers send the cookie with requests from other sites, too, and a workspace's pages are such a site. Changes and
        WebSockets need the platform's own Origin; reads are refused only if the browser reports another site."""
        is_socket = connection.scope["type"] == "websocket"
        is_safe = not is_socket and connection.scope["method"] in SAFE
        origin = connection.headers.get("origin")
        if origin is not None and not is_safe:
            if not is_own_origin(origin, self.hosts):
                raise Refused("cross_site", f"a request from {origin} may not act as the signed-in user")
        # Browsers always send Origin with a WebSocket; for other requests some send only Sec-Fetch-Site.
        elif is_socket or connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refused("cross_site", "a request from another site may not act as the signed-in user")

    def let_in(self, response: Response, token: str) -> None:
        """Set the session cookie: the browser is signed in from now on."""
        response.set_cookie(
            self.cookie,
            token,
            max_age=int(self.accounts.session_ttl_s),
            path="/",
            secure=self.hosts.is_secure,
            httponly=True,
            samesite="lax",
        )

    def show_out(self, response: Response) -> None:
        response.delete_cookie(self.cookie, path="/", secure=self.hosts.is_secure, httponly=True, samesite="lax")

    def _shown(self, connection: HTTPConnection) -> tuple[str, AuthMethod]:
        header = connection.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise Refused("unauthorized", "the Authorization header must have the form: Bearer TOKEN")
            return token.strip()[:LONGEST_TOKEN], AuthMethod.TOKEN
        cookie = connection.cookies.get(self.cookie)
        if not cookie:
            raise Refused("unauthorized", "sign in first, or send Authorization: Bearer TOKEN (see credentials.json)")
        self.refuse_cross_site(connection)
        return cookie[:LONGEST_TOKEN], AuthMethod.SESSION


def is_own_origin(origin: str, hosts: Hosts) -> bool:
    """Whether this is the platform's own origin. On the loopback, each of its names is accepted."""
    try:
        theirs, ours = _origin(origin), _origin(hosts.base_url)
    except ValueError:
        return False
    return theirs == ours or (theirs[::2] == ours[::2] and {theirs[1], ours[1]} <= LOOPBACK)


def _origin(text: str) -> tuple[str, str, int]:
    """Scheme, host and port; ValueError for a text that is no HTTP origin."""
    parts = urlsplit(text)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.username is not None or parts.path or parts.query:
        raise ValueError(text)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme]


def client_address(connection: HTTPConnection) -> str:
    """The client's address as the front reports it: the last one in X-Forwarded-For. Empty where it is not known."""
    forwarded = connection.headers.getlist("x-forwarded-for")
    last = forwarded[-1].rpartition(",")[2].strip() if forwarded else connection.client.host if connection.client else ""
    try:
        return str(ipaddress.ip_address(last.strip("[]")))
    except ValueError:
        return ""


def user_agent(connection: HTTPConnection) -> str:
    return connection.headers.get("user-agent", "")


def authenticator_of(connection: HTTPConnection) -> Authenticator:
    authenticator: Authenticator = connection.app.state.authenticator
    return authenticator


async def current_caller(connection: HTTPConnection) -> Caller:
    """The caller of this request, looked up once."""
    known: Caller | None = getattr(connection.state, "caller", None)
    if known is None:
        known = connection.state.caller = await authenticator_of(connection).recognise(connection)
    return known


Asking = Annotated[Caller, Depends(current_caller)]
