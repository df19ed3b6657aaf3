"""Define the interface between the proxy server and the gate.

The server parses heads and forwards bytes; the gate knows users and workspaces. For a cached caller and route the gate returns
its verdict directly; it returns an awaitable only if it has to query or to wait.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torpor.ports import Address
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import Header, RequestHead
from torpor.proxy.usage import UNWATCHED, WorkspaceUse


@dataclass(frozen=True, slots=True)
class Reply:
    """The proxy responds itself."""

    status: int
    outcome: RequestOutcome
    headers: tuple[Header, ...] = ()
    """Without Content-Length, Date and Connection, which the server adds."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Forward:
    """The request is forwarded to this address."""

    address: Address
    outcome: RequestOutcome
    sorry: Reply
    """The response if the upstream does not respond."""
    too_late: Reply
    """The response if the upstream's response does not begin in time."""
    to_workspace: bool = True
    """The platform's cookies and tokens are removed from the request, and its headers from the response."""
    use: WorkspaceUse = UNWATCHED
    bearer: str | None = None
    """The credential behind the request: `ProxyServer.cut(bearer)` ends its connections."""


Verdict: TypeAlias = Forward | Reply


class Gate(Protocol):
    def judge(self, head: RequestHead, client: str) -> Verdict | Awaitable[Verdict]:
        """The verdict on a request with this (strictly parsed) head from this address. Never raises; an awaitable may be
        canceled when the client disconnects."""
        ...
