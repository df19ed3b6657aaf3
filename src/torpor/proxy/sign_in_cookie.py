"""Sign a browser in on a workspace's host, by its session on the platform's host.

The browser gets a nonce here and is redirected to the platform with the digest of the nonce. It returns with a code that is
valid once, for seconds, and only together with the nonce. It then gets a cookie for this host alone.
"""

import hashlib
import re
import secrets
import uuid
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlencode

from torpor.accounts import Accounts
from torpor.domain.access import TOKEN_PREFIX
from torpor.domain.errors import Refused
from torpor.domain.hostnames import Hosts, WorkspaceHost, is_own_path
from torpor.proxy import pages
from torpor.proxy.gate import Reply
from torpor.proxy.knock import cookies
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import PLATFORM_COOKIES, Header, RequestHead
from torpor.proxy.route_cache import Routes

OWN_PATHS = b"/.torpor/"
STANDING = "/.torpor/standing"
LOGO = "/.torpor/logo.svg"
ROOM = "/.torpor/room"
"""On the platform's host (`proxy.limit_page`)."""
KNOCK_LIVES_S = 600
LONGEST_COOKIE_S = 400 * 86_400
"""Browsers keep no cookie longer."""
MOST_ENDED_COOKIES = 100
MOST_FIELDS = 10
_NONCE = re.compile(r"[A-Za-z0-9_-]{43}")
_CODE = re.compile(rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}")
_COOKIE_NAME = re.compile(rb"[!#-'*+.^_`|~0-9A-Za-z-]+")
# The same text for all cases: it does not reveal whether the workspace exists.
_CLOSED = "it was already used, has expired, or belongs to another browser; open the workspace again"
# Used in the query if there is no workspace, so that the response time reveals nothing either.
_NO_WORKSPACE = str(uuid.UUID(int=0))
SEE_OTHER = 303


def read_query(query: str) -> dict[str, str] | None:
    """The first value of each field; None if there are more fields than any of our own links has."""
    try:
        return {name: values[0] for name, values in parse_qs(query, max_num_fields=MOST_FIELDS).items()}
    except ValueError:
        return None


def see_other(where: str, *headers: Header, outcome: RequestOutcome) -> Reply:
    return Reply(SEE_OTHER, outcome, ((b"Location", where.encode("latin-1")), *pages.SAFE_HEADERS, *headers))


def sign_in(hosts: Hosts, to: WorkspaceHost, head: RequestHead) -> Reply:
    """Redirect to the sign-in, which leads back here."""
    # The same nonce while it is valid: several tabs that sign in at once must all succeed.
    nonce = _nonce(hosts, head) or secrets.token_urlsafe(32)
    target = head.target.decode("latin-1")
    asked = {
        "workspace": to.name,
        **({} if to.port is None else {"port": str(to.port)}),
        "nonce": hashlib.sha256(nonce.encode()).hexdigest(),
        "back": target if is_own_path(target) else "/",
    }
    kept = _set_cookie(hosts, hosts.knock_cookie, nonce, lives_s=KNOCK_LIVES_S)
    return see_other(f"{hosts.base_url}/door?{urlencode(asked)}", kept, outcome=RequestOutcome.SIGN_IN)


async def set_workspace_cookie(
    hosts: Hosts, accounts: Accounts, routes: Routes, to: WorkspaceHost, head: RequestHead, *, code: str, back: str, client: str
) -> Reply:
    """Set the workspace's cookie for a browser that returns from the platform."""
    back = back if is_own_path(back) else "/"
    closed = pages.reply(pages.bad_code(_CLOSED, back), as_html=head.wants_html)
    nonce = _nonce(hosts, head)
    if nonce is None or not _CODE.fullmatch(code):
        return closed
    workspace = await routes.find(to.name)
    workspace_id = workspace.id if workspace is not None else _NO_WORKSPACE
    try:
        agent = b" ".join(head.values(b"user-agent")).decode("latin-1")
        token, caller = await accounts.redeem(code, nonce, workspace_id, came_from=client, user_agent=agent)
    except Refused:
        return closed
    cleared = () if cookies(head, hosts.workspace_cookie.encode()) == (workspace_id,) else clear_site(head)
    lives_s = max(1, int((caller.expires_at - datetime.now(UTC)).total_seconds())) if caller.expires_at else None
    return see_other(
        back,
        _set_cookie(hosts, hosts.door_cookie, token, lives_s=lives_s),
        _set_cookie(hosts, hosts.knock_cookie, "", lives_s=0),
        _set_cookie(hosts, hosts.workspace_cookie, workspace_id, lives_s=LONGEST_COOKIE_S),
        *cleared,
        outcome=RequestOutcome.SIGN_IN,
    )


def clear_site(head: RequestHead) -> tuple[Header, ...]:
    """Remove what another workspace left in this browser under the same host name: its service worker would see every request
    to the new one. Also if it is not known whether there was another.

    The directive "cookies" would delete the cookies of all hosts of the domain, including the platform's session. So the
    cookies that the browser sends here are deleted one by one.
    """
    shown = dict.fromkeys(pair.partition(b"=")[0].strip() for value in head.values(b"cookie") for pair in value.split(b";"))
    others = [name for name in shown if _COOKIE_NAME.fullmatch(name) and name not in PLATFORM_COOKIES]
    ended = ((b"Set-Cookie", name + b"=; Path=/; Max-Age=0") for name in others[:MOST_ENDED_COOKIES])
    return ((b"Clear-Site-Data", b'"cache", "storage"'), *ended)


def _nonce(hosts: Hosts, head: RequestHead) -> str | None:
    return next(filter(_NONCE.fullmatch, cookies(head, hosts.knock_cookie.encode())), None)


def _set_cookie(hosts: Hosts, name: str, value: str, *, lives_s: int | None) -> Header:
    # With any other path the browser would not send it with the next knock, and the `__Host-` prefix requires this one.
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
    if lives_s is not None:
        parts.append(f"Max-Age={lives_s}")
    if hosts.is_secure:
        parts.append("Secure")
    return b"Set-Cookie", "; ".join(parts).encode("latin-1")
