"""Who is at the door of the API, and may they come in?

Programs bring `Authorization: Bearer`; browsers a session cookie, which allows changes only from our own pages. Whoever makes
the app says where that is: `app.state.door = Door(accounts, hosts)`.
"""

import ipaddress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import Response

from torpor.accounts import Accounts, AuthMethod, Caller
from torpor.domain.errors import Refused
from torpor.domain.hostnames import LOOPBACK, Hosts

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LONGEST_TOKEN = 512
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
        # A session's secret is no token for programs, and a workspace's door opens nothing here.
        if caller.how is not how:
            raise Refused("unauthorized", f"this is no {how.lower()}; sign in, or send Authorization: Bearer TOKEN")
        return caller

    async def session(self, connection: HTTPConnection) -> Caller | None:
        """The browser's session, for pages that anybody may ask for; None: nobody is signed in there."""
        cookie = connection.cookies.get(self.cookie)
        if not cookie:
            return None
        try:
            caller = await self.accounts.recognise(cookie[:LONGEST_TOKEN], came_from=client_address(connection))
        except Refused:
            return None
        return caller if caller.how is AuthMethod.SESSION else None

    def refuse_cross_site(self, connection: HTTPConnection) -> None:
        """A cookie travels with requests that other sites make, a workspace's own pages among them. For changes and for sockets
        the Origin must be ours; for looking it is enough that a browser does not say otherwise."""
        is_socket = connection.scope["type"] == "websocket"
        is_safe = not is_socket and connection.scope["method"] in SAFE
        origin = connection.headers.get("origin")
        if origin is not None and not is_safe:
            if not is_own_origin(origin, self.hosts):
                raise Refused("cross_site", f"a request from {origin} may not act as the user signed in here")
        # A browser always says where a socket comes from; for the rest there are some that say it in another way.
        elif is_socket or connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refused("cross_site", "a request from another site may not act as the signed-in user")

    def let_in(self, response: Response, token: str) -> None:
        """This browser is signed in from now on."""
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
                raise Refused("unauthorized", "the Authorization header must read: Bearer TOKEN")
            return token.strip()[:LONGEST_TOKEN], AuthMethod.TOKEN
        cookie = connection.cookies.get(self.cookie)
        if not cookie:
            raise Refused("unauthorized", "sign in first, or send Authorization: Bearer TOKEN (see credentials.json)")
        self.refuse_cross_site(connection)
        return cookie[:LONGEST_TOKEN], AuthMethod.SESSION


def is_own_origin(origin: str, hosts: Hosts) -> bool:
    """Whether a page of the platform itself says so. Where that is on the loopback, its other names are good as well."""
    try:
        said, ours = _origin(origin), _origin(hosts.base_url)
    except ValueError:
        return False
    return said == ours or (said[::2] == ours[::2] and {said[1], ours[1]} <= LOOPBACK)


def _origin(text: str) -> tuple[str, str, int]:
    """Scheme, host and port; ValueError for what is none of ours to compare."""
    parts = urlsplit(text)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.username is not None or parts.path or parts.query:
        raise ValueError(text)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme]


def client_address(connection: HTTPConnection) -> str:
    """The address the front was asked from: the front says it last, and lets nobody else say it. Empty where nobody does."""
    said = connection.headers.getlist("x-forwarded-for")
    last = said[-1].rpartition(",")[2].strip() if said else connection.client.host if connection.client else ""
    try:
        return str(ipaddress.ip_address(last.strip("[]")))
    except ValueError:
        return ""


def user_agent(connection: HTTPConnection) -> str:
    return connection.headers.get("user-agent", "")


def door_of(connection: HTTPConnection) -> Authenticator:
    door: Authenticator = connection.app.state.door
    return door


async def current_caller(connection: HTTPConnection) -> Caller:
    """Who makes this call; looked up once, by whoever wants to know first."""
    known: Caller | None = getattr(connection.state, "caller", None)
    if known is None:
        known = connection.state.caller = await door_of(connection).recognise(connection)
    return known


Asking = Annotated[Caller, Depends(current_caller)]
