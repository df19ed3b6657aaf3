"""Decide who has access, which requests wake a workspace, and what the others get.

Navigations and programs wake a workspace. The sockets and requests of a page never do, because an open tab must not undo a
stop. A caller without a valid credential learns nothing about a workspace, not even whether it exists.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from torpor.accounts import Caller
from torpor.domain.access import NEEDS, Access, Permission, access
from torpor.domain.hostnames import Hosts, WorkspaceHost
from torpor.domain.records import Workspace
from torpor.proxy.readiness import Readiness
from torpor.proxy.request_head import RequestHead


class CallerAccess(Enum):
    NOBODY = auto()
    """No credential, or none that is valid here."""
    NOT_FOR_THIS = auto()
    """An API token without the scope for opening workspaces."""
    STRANGER = auto()
    """A caller without access. The workspace must look as if it did not exist."""
    MAY_USE = auto()


class RequestKind(Enum):
    NAVIGATION = auto()
    """A browser opens the address."""
    SUBREQUEST = auto()
    """A request that a page sends."""
    UPGRADE = auto()
    """A WebSocket of a page."""
    PROGRAM = auto()
    """Any request with an API token."""


class KnockAnswer(Enum):
    FORWARD = auto()
    SIGN_IN = auto()
    """Redirect to the sign-in, then back."""
    REFUSE_401 = auto()
    REFUSE_403 = auto()
    NOT_THERE = auto()
    SHOW = auto()
    """Show the status."""
    WAKE_AND_SHOW = auto()
    HOLD = auto()
    """Wait until the workspace is ready, or until the time limit."""
    WAKE_AND_HOLD = auto()
    REFUSE_503 = auto()


def _row(**cells: KnockAnswer) -> Mapping[Readiness, KnockAnswer]:
    return {Readiness[name]: answer for name, answer in cells.items()}


def _always(answer: KnockAnswer) -> Mapping[Readiness, KnockAnswer]:
    return dict.fromkeys(Readiness, answer)


KNOCK: Mapping[CallerAccess, Mapping[RequestKind, Mapping[Readiness, KnockAnswer]]] = {
    CallerAccess.NOBODY: {
        RequestKind.NAVIGATION: _always(KnockAnswer.SIGN_IN),
        RequestKind.SUBREQUEST: _always(KnockAnswer.REFUSE_401),
        RequestKind.UPGRADE: _always(KnockAnswer.REFUSE_401),
        RequestKind.PROGRAM: _always(KnockAnswer.REFUSE_401),
    },
    CallerAccess.NOT_FOR_THIS: dict.fromkeys(RequestKind, _always(KnockAnswer.REFUSE_403)),
    CallerAccess.STRANGER: dict.fromkeys(RequestKind, _always(KnockAnswer.NOT_THERE)),
    CallerAccess.MAY_USE: {
        RequestKind.NAVIGATION: _row(
            READY=KnockAnswer.FORWARD,
            WAKING=KnockAnswer.SHOW,
            ASLEEP=KnockAnswer.WAKE_AND_SHOW,
            ERROR=KnockAnswer.SHOW,
            DELETED=KnockAnswer.SHOW,
            UNKNOWN=KnockAnswer.NOT_THERE,
        ),
        RequestKind.SUBREQUEST: _row(
            READY=KnockAnswer.FORWARD,
            WAKING=KnockAnswer.REFUSE_503,
            ASLEEP=KnockAnswer.REFUSE_503,
            ERROR=KnockAnswer.REFUSE_503,
            DELETED=KnockAnswer.REFUSE_503,
            UNKNOWN=KnockAnswer.NOT_THERE,
        ),
        RequestKind.UPGRADE: _row(
            READY=KnockAnswer.FORWARD,
            WAKING=KnockAnswer.HOLD,
            ASLEEP=KnockAnswer.REFUSE_503,
            ERROR=KnockAnswer.REFUSE_503,
            DELETED=KnockAnswer.REFUSE_503,
            UNKNOWN=KnockAnswer.NOT_THERE,
        ),
        RequestKind.PROGRAM: _row(
            READY=KnockAnswer.FORWARD,
            WAKING=KnockAnswer.HOLD,
            ASLEEP=KnockAnswer.WAKE_AND_HOLD,
            ERROR=KnockAnswer.SHOW,
            DELETED=KnockAnswer.SHOW,
            UNKNOWN=KnockAnswer.NOT_THERE,
        ),
    },
}


def caller_access(caller: Caller | None, workspace: Workspace | None) -> CallerAccess:
    """`workspace`: the workspace with the requested name, if it exists."""
    needs_access, needs_scope = NEEDS[Permission.OPEN]
    if caller is None:
        return CallerAccess.NOBODY
    if needs_scope not in caller.scopes:
        return CallerAccess.NOT_FOR_THIS
    if workspace is None:
        # A workspace cookie is valid for one workspace, which is not this one.
        return CallerAccess.NOBODY if caller.workspace_id is not None else CallerAccess.STRANGER
    if caller.workspace_id is not None and caller.workspace_id != workspace.id:
        return CallerAccess.NOBODY
    has = access(workspace, caller.user.username, is_admin=caller.is_admin)
    return CallerAccess.MAY_USE if has >= needs_access and has is not Access.NONE else CallerAccess.STRANGER


# ── reading a request ─────────────────────────────────────────────────────────────────────────────────────────────────

_BEARER = re.compile(rb"bearer[ \t]+(torpor_[!-~]+)[ \t]*", re.IGNORECASE)
_SAFE = frozenset({b"GET", b"HEAD"})
_OWN_SITE = frozenset({b"same-origin", b"none"})
# Each may cost a database query.
COOKIES_TRIED = 5


@dataclass(frozen=True, slots=True)
class KnockHeaders:
    """What the headers tell about the caller and the kind of request."""

    token: str | None = None
    """The API token of a program."""
    accepts_html: bool = False
    host: bytes = b""
    origin: bytes | None = None
    referer: bytes | None = None
    """The page that sends the request. It can hide its address, but cannot name another one."""
    mode: bytes | None = None
    site: bytes | None = None
    dest: bytes | None = None
    is_ahead: bool = False
    """A browser prefetches the address."""


def read_knock_headers(head: RequestHead) -> KnockHeaders:
    origins = head.values(b"origin")
    return KnockHeaders(
        token=_token(head),
        accepts_html=head.wants_html,
        host=head.values(b"host")[0],
        # More than one Origin matches no site.
        origin=None if not origins else origins[0] if len(origins) == 1 else b"null",
        referer=_first(head, b"referer"),
        mode=_first(head, b"sec-fetch-mode"),
        site=_first(head, b"sec-fetch-site"),
        dest=_first(head, b"sec-fetch-dest"),
        is_ahead=b"prefetch" in b",".join(head.values(b"sec-purpose") + head.values(b"purpose")).lower(),
    )


def _first(head: RequestHead, name: bytes) -> bytes | None:
    values = head.values(name)
    return values[0] if values else None


def _token(head: RequestHead) -> str | None:
    shown = _first(head, b"x-torpor-token")
    if shown is not None:
        return shown.decode("latin-1")
    for value in head.values(b"authorization"):
        if bearer := _BEARER.fullmatch(value):
            return bearer[1].decode("latin-1")
    return None


def cookies(head: RequestHead, name: bytes) -> tuple[str, ...]:
    """The first few cookies with this name: a page of another host may have set one for the whole domain, and it may be
    first."""
    shown: dict[str, None] = {}
    for value in head.values(b"cookie"):
        if name not in value:
            continue
        for pair in value.split(b";"):
            found, _, said = pair.partition(b"=")
            if found.strip() == name:
                shown[said.strip().decode("latin-1")] = None
    return tuple(shown)[:COOKIES_TRIED]


def request_kind(asks: KnockHeaders, method: bytes, *, is_upgrade: bool) -> RequestKind:
    if asks.token is not None:
        return RequestKind.PROGRAM
    if is_upgrade:
        return RequestKind.UPGRADE
    if method not in _SAFE or asks.is_ahead:
        return RequestKind.SUBREQUEST
    if asks.mode is not None:
        goes_there = asks.mode == b"navigate" and asks.dest in (b"document", None)
    else:
        # An old browser without Sec-Fetch headers: a navigation accepts HTML and has no Origin.
        goes_there = asks.accepts_html and asks.origin is None
    return RequestKind.NAVIGATION if goes_there else RequestKind.SUBREQUEST


def is_cross_site(asks: KnockHeaders, kind: RequestKind, to: WorkspaceHost, hosts: Hosts) -> bool:
    """Whether a page of another site sends the request with the user's cookie.

    The ports of one workspace may send requests to each other. Links from any site are allowed.
    """
    if kind in (RequestKind.NAVIGATION, RequestKind.PROGRAM):
        return False
    if asks.origin is not None:
        return not _is_of(asks.origin, asks.host, to, hosts)
    if kind is RequestKind.UPGRADE or asks.site is None or asks.site in _OWN_SITE:
        return False
    # Browsers omit Origin if the page cannot read the response, and the pages of other workspaces belong to the same site.
    page = _PAGE.match(asks.referer.lower()) if asks.referer is not None else None
    return page is None or not _is_of(page[1], asks.host, to, hosts)


_ORIGIN = re.compile(rb"(https?)://([a-z0-9.-]+)(?::([0-9]{1,5}))?")
_PAGE = re.compile(rb"(https?://[^/?#]+)[/?#]")
_PORT = re.compile(rb":([0-9]{1,5})$")
_DEFAULT_PORT = {b"http": b"80", b"https": b"443"}


def _is_of(origin: bytes, host: bytes, to: WorkspaceHost, hosts: Hosts) -> bool:
    matched = _ORIGIN.fullmatch(origin.lower())
    if matched is None or (hosts.is_secure and matched[1] != b"https"):
        return False
    default = _DEFAULT_PORT[matched[1]]
    named = _PORT.search(host)
    # Cookies ignore ports: another server on this machine is another site.
    if (matched[3] or default) != (named[1] if named else default):
        return False
    whose = hosts.destination(matched[2].decode("ascii"))
    return isinstance(whose, WorkspaceHost) and whose.name == to.name
