"""How does a browser show on a workspace's host who it is, when all it has is a session on the platform's?

It is given a nonce here and sent to the platform with the digest of that; it comes back with a code that is good once, for
seconds, and only together with the nonce. What it has then is a cookie of this host alone.
"""

import hashlib
import re
import secrets
import uuid
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlencode

from torpor.accounts import Accounts
from torpor.domain.errors import Refused
from torpor.domain.hosts import Hosts, ToWorkspace, is_own_path
from torpor.proxy import pages
from torpor.proxy.gate import Reply
from torpor.proxy.head import Head, Header
from torpor.proxy.knock import cookies
from torpor.proxy.outcomes import Outcome
from torpor.proxy.routes import Routes

OWN_PATHS = b"/.torpor/"
ENTER = "/.torpor/enter"
STANDING = "/.torpor/standing"
LOGO = "/.torpor/logo.svg"
ROOM = "/.torpor/room"
"""On the platform's host (`proxy.room`)."""
KNOCK_LIVES_S = 600
MOST_FIELDS = 10
_NONCE = re.compile(r"[A-Za-z0-9_-]{43}")
_CODE = re.compile(r"torpor_[A-Za-z0-9_-]{43}")
# The same for all: whoever guesses learns nothing, not even whether there is such a workspace.
_CLOSED = "this way in was used already, is too old, or is another browser's; open it again"
# Asked about all the same: how long the answer takes tells nothing either.
_NO_WORKSPACE = str(uuid.UUID(int=0))
SEE_OTHER = 303


def read_query(query: str) -> dict[str, str] | None:
    """The first of each name; None: nobody who was sent here asks so much."""
    try:
        return {name: values[0] for name, values in parse_qs(query, max_num_fields=MOST_FIELDS).items()}
    except ValueError:
        return None


def see(where: str, *headers: Header, outcome: Outcome) -> Reply:
    return Reply(SEE_OTHER, outcome, ((b"Location", where.encode("latin-1")), *pages.SAFE_HEADERS, *headers))


def sign_in(hosts: Hosts, to: ToWorkspace, head: Head) -> Reply:
    """Go and show who you are, then come back here."""
    # The same one while it lives: several tabs that knock at once must all be let in.
    nonce = _nonce(hosts, head) or secrets.token_urlsafe(32)
    target = head.target.decode("latin-1")
    asked = {
        "workspace": to.name,
        **({} if to.port is None else {"port": str(to.port)}),
        "nonce": hashlib.sha256(nonce.encode()).hexdigest(),
        "back": target if is_own_path(target) else "/",
    }
    kept = _set_cookie(hosts, hosts.knock_cookie, nonce, lives_s=KNOCK_LIVES_S)
    return see(f"{hosts.base_url}/door?{urlencode(asked)}", kept, outcome=Outcome.SIGN_IN)


async def enter(
    hosts: Hosts, accounts: Accounts, routes: Routes, to: ToWorkspace, head: Head, *, code: str, back: str, client: str
) -> Reply:
    """Back from the platform: this browser is known here from now on."""
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
    lives_s = max(1, int((caller.expires_at - datetime.now(UTC)).total_seconds())) if caller.expires_at else None
    return see(
        back,
        _set_cookie(hosts, hosts.door_cookie, token, lives_s=lives_s),
        _set_cookie(hosts, hosts.knock_cookie, "", lives_s=0),
        outcome=Outcome.SIGN_IN,
    )


def _nonce(hosts: Hosts, head: Head) -> str | None:
    return next(filter(_NONCE.fullmatch, cookies(head, hosts.knock_cookie.encode())), None)


def _set_cookie(hosts: Hosts, name: str, value: str, *, lives_s: int | None) -> Header:
    # On any other path it would not be sent with the next knock, and the prefix asks for this one.
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
    if lives_s is not None:
        parts.append(f"Max-Age={lives_s}")
    if hosts.is_secure:
        parts.append("Secure")
    return b"Set-Cookie", "; ".join(parts).encode("latin-1")
