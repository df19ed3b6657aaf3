"""Report to the bus which connections are in use.

Each open connection has a lease that is renewed while the connection is live: it carried data within its workspace's standby
TTL, or is younger than that. A long request has one until it is answered. One message renews all leases; those of a process
that ends expire.
"""

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torpor.domain.errors import Unavailable
from torpor.loops import Loop, start_tasks, stop
from torpor.ports import Activity, ClosedConnection
from torpor.service.activity import TURN_S, RecordUse, Touch, UseFallback, discard_use, retry_s, timeout_s

# Of a lease: two renewals may fail before it expires.
RENEW_AFTER_PART = 1 / 3
# A connection may stay open for weeks, and the TTL of its workspace may change in the meantime.
TTLS_EVERY_S = 30.0
# At the end of this process. Leases that are not released within it expire.
FAREWELL_S = 2.0

TtlsOf: TypeAlias = Callable[[Collection[str]], Awaitable[Mapping[str, float]]]
"""How many seconds each of these workspaces may be idle."""


async def no_ttl_changes(workspace_ids: Collection[str]) -> Mapping[str, float]:
    return {}


class ConnectionLeases:
    """Implements `proxy.usage.UsageTracker` on the bus."""

    def __init__(
        self,
        activity: Activity,
        touch: Touch,
        *,
        lease_s: float,
        write_down: RecordUse = discard_use,
        ttls_of: TtlsOf = no_ttl_changes,
        now: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.touch = touch
        self.now = now
        self._activity = activity
        self._lease_s = lease_s
        self._fall_back = UseFallback(write_down, lease_s=lease_s, now=now)
        self._ttls_of = ttls_of
        self._new_id = new_id
        self._open: dict[LeasedConnection, None] = {}
        self._unknown: dict[LeasedConnection, None] = {}
        """The connections that the bus does not know, or no longer knows."""
        self._closed: deque[tuple[LeasedConnection, float]] = deque()
        self._renew_at = float("-inf")
        self._wake = asyncio.Event()

    def of(self, workspace_id: str, *, standby_ttl_s: float) -> "LeasedUse":
        return LeasedUse(self, workspace_id, standby_ttl_s)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        renew_every_s = self._lease_s * RENEW_AFTER_PART
        leases = Loop(
            "leases", self._turn, interval_s=renew_every_s, turn_s=TURN_S, retry_s=retry_s(self._lease_s), wake=self._wake
        )
        ttls = Loop("lease-ttls", self._follow_ttls, interval_s=TTLS_EVERY_S, first_after_s=TTLS_EVERY_S)
        tasks = start_tasks(leases.run(), ttls.run())
        try:
            yield
        finally:
            await stop(*tasks)
            await self._fall_back.close()
            # The remaining connections end soon, and this process no longer renews their leases.
            for tie in list(self._open):
                self.remove(tie)
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._release_closed()

    def connect(self, workspace_id: str, idle_s: float) -> "LeasedConnection":
        tie = LeasedConnection(self, workspace_id, idle_s)
        self._open[tie] = None
        self.announce(tie)
        return tie

    def request(self, workspace_id: str, idle_s: float) -> "LeasedConnection":
        tie = LeasedConnection(self, workspace_id, idle_s, is_request=True)
        self._open[tie] = None
        # Most requests are answered at once and need no message: until the next renewal the idle timer covers them.
        self.touch(workspace_id, idle_s)
        if idle_s <= self._lease_s:
            self.announce(tie)
        return tie

    def announce(self, tie: "LeasedConnection") -> None:
        """Report it at once, not at the next renewal: a connection that the bus does not know keeps no workspace awake."""
        self._unknown[tie] = None
        self._wake.set()

    def remove(self, tie: "LeasedConnection") -> None:
        if tie not in self._open:
            return
        is_live = tie.is_live
        del self._open[tie]
        self._unknown.pop(tie, None)
        # Closing an idle connection does not count as use, and its lease has expired or expires soon.
        if is_live and tie.id:
            self._closed.append((tie, self.now()))
            self._wake.set()
        elif is_live:
            self.touch(tie.workspace_id, tie.idle_s)

    async def _turn(self) -> float:
        """One message after the other, so that an older renewal never overtakes a release."""
        try:
            async with asyncio.timeout(timeout_s(self._lease_s)):
                # Renewals come first, however many connections have closed.
                await self._renew()
                await self._release_closed()
        except TimeoutError as error:
            self._begin_anew()
            raise Unavailable("the bus did not respond in time") from error
        except BaseException:
            self._begin_anew()
            raise
        return self._renew_at - self.now()

    def _begin_anew(self) -> None:
        """All leases may have expired in the meantime."""
        self._renew_at = float("-inf")
        now = self.now()
        self._closed = deque((tie, at) for tie, at in self._closed if at + tie.idle_s > now)
        used = [tie for tie in self._open if tie.is_live] + [tie for tie, _ in self._closed]
        self._fall_back.use({tie.workspace_id for tie in used})

    async def _renew(self) -> None:
        now = self.now()
        is_due = now >= self._renew_at
        await self._tell(self._open if is_due else self._unknown)
        if is_due:
            self._renew_at = now + self._lease_s * RENEW_AFTER_PART

    async def _tell(self, ties: Iterable["LeasedConnection"]) -> None:
        live: dict[str, set[str]] = {}
        for tie in list(ties):
            # Marked before the message is sent: a connection that is used meanwhile announces itself again.
            self._unknown.pop(tie, None)
            tie.is_leased = tie.is_live
            if tie.is_leased:
                if not tie.id:
                    tie.id = self._new_id()
                live.setdefault(tie.workspace_id, set()).add(tie.id)
        if live:
            leases = {workspace_id: frozenset(ids) for workspace_id, ids in live.items()}
            await self._activity.renew(leases, lease_s=self._lease_s)

    async def _release_closed(self) -> None:
        """Release all closed connections in one message; a failed release is repeated."""
        now = self.now()
        closed = [
            ClosedConnection(tie.workspace_id, tie.id, idle_s)
            for tie, at in self._closed
            if (idle_s := at + tie.idle_s - now) > 0
        ]
        count = len(self._closed)
        if closed:
            await self._activity.release(closed)
        for _ in range(count):
            self._closed.popleft()

    async def _follow_ttls(self) -> None:
        """Read the TTLs of workspaces with open connections again."""
        open_now = {tie.workspace_id for tie in self._open}
        ttls_s = await self._ttls_of(open_now) if open_now else {}
        for tie in self._open:
            tie.idle_s = ttls_s.get(tie.workspace_id, tie.idle_s)


class LeasedConnection:
    """One connection and when it last carried data; or one request, which is live until it is answered."""

    __slots__ = ("_carried_at", "_is_request", "_leases", "id", "idle_s", "is_leased", "workspace_id")

    def __init__(self, leases: ConnectionLeases, workspace_id: str, idle_s: float, *, is_request: bool = False) -> None:
        self.id = ""
        """Assigned when the lease is first sent: most requests are answered before that."""
        self.workspace_id = workspace_id
        self.idle_s = idle_s
        self.is_leased = True
        """Whether the lease is renewed. A silent connection's is not, until it is used again."""
        self._leases = leases
        self._is_request = is_request
        self._carried_at = leases.now()

    @property
    def is_live(self) -> bool:
        return self._is_request or self._leases.now() - self._carried_at < self.idle_s

    def carried(self) -> None:
        self._carried_at = self._leases.now()
        if not self.is_leased:
            self.is_leased = True
            self._leases.announce(self)

    def is_no_use(self) -> None:
        self._leases.remove(self)

    def closed(self) -> None:
        self._leases.remove(self)


@dataclass(frozen=True, slots=True)
class LeasedUse:
    leases: ConnectionLeases
    workspace_id: str
    idle_s: float

    def requested(self) -> LeasedConnection:
        return self.leases.request(self.workspace_id, self.idle_s)

    def connected(self) -> LeasedConnection:
        return self.leases.connect(self.workspace_id, self.idle_s)
