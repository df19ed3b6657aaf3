"""What does the front ask before it passes a request on, and what may it be told?

The front reads heads and carries bytes; the gate knows people and workspaces. A gate that has seen a visitor and a route before
answers at once, without waiting: an awaitable is for what it must find out first, or is worth waiting for.
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
    """The proxy answers by itself."""

    status: int
    outcome: RequestOutcome
    headers: tuple[Header, ...] = ()
    """But for Content-Length, Date and Connection, which are the front's."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Forward:
    """It goes on to this address."""

    address: Address
    outcome: RequestOutcome
    sorry: Reply
    """What is said when nobody answers there."""
    too_late: Reply
    """What is said when an answer does not begin in time."""
    to_workspace: bool = True
    """Platform cookies and tokens are taken out, and nothing that speaks as the platform comes back."""
    use: WorkspaceUse = UNWATCHED
    bearer: str | None = None
    """Whose right it is by: `Front.cut(bearer)` ends whatever goes by it."""


Verdict: TypeAlias = Forward | Reply


class Gate(Protocol):
    def judge(self, head: RequestHead, client: str) -> Verdict | Awaitable[Verdict]:
        """What becomes of a request with this (strictly read) head from this address. Never raises; an awaitable may be
        cancelled when the client hangs up."""
        ...
