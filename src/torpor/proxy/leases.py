"""How does the bus learn which connections are in use?

Each connection that stays has a lease, and each is renewed as long as it is live: it carried data within its workspace's
standby TTL, or is younger than that. All of them in one message; whoever dies renews nothing, and is forgotten.
"""

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import structlog

from torpor.activity import Touch
from torpor.domain.errors import Unavailable
from torpor.ports import Activity

log = structlog.get_logger()

# Of a lease: two renewals may fail before it runs out.
RENEW_AFTER_PART = 1 / 3
RETRY_S = 1.0
# At the end of this process: what is not told within it is told by the lease that runs out.
FAREWELL_S = 2.0


class ConnectionLeases:
    """Implements `proxy.usage.Usage` on the bus."""

    def __init__(
        self,
        activity: Activity,
        touch: Touch,
        *,
        lease_s: float,
        now: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.touch = touch
        self.now = now
        self._activity = activity
        self._lease_s = lease_s
        self._new_id = new_id
        self._open: dict[str, LeasedTie] = {}
        self._unknown: dict[str, LeasedTie] = {}
        """Of which the bus does not know, or not any more."""
        self._closed: deque[tuple[LeasedTie, float]] = deque()
        self._renew_at = float("-inf")
        self._wake = asyncio.Event()

    def of(self, workspace_id: str, *, standby_ttl_s: float) -> "LeasedUse":
        return LeasedUse(self, workspace_id, standby_ttl_s)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="connection leases")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # Whoever is still connected will not be for long: nobody is left to renew.
            for tie in list(self._open.values()):
                self.remove(tie)
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._release_closed()

    def add(self, workspace_id: str, idle_s: float) -> "LeasedTie":
        tie = LeasedTie(self, self._new_id(), workspace_id, idle_s)
        self._open[tie.id] = tie
        self.announce(tie)
        return tie

    def announce(self, tie: "LeasedTie") -> None:
        """At once, not at the next renewal: until the bus knows of it, nothing keeps its workspace awake."""
        self._unknown[tie.id] = tie
        self._wake.set()

    def remove(self, tie: "LeasedTie") -> None:
        if self._open.pop(tie.id, None) is None:
            return
        self._unknown.pop(tie.id, None)
        # One that nobody used is not used by being closed, and its lease has run out or is about to.
        if tie.is_live:
            self._closed.append((tie, self.now()))
            self._wake.set()

    async def _run(self) -> None:
        """One message after the other: a release can never be overtaken by an older renewal."""
        renew_every_s = self._lease_s * RENEW_AFTER_PART
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(renew_every_s):
                    await self._release_closed()
                    await self._renew()
            except (Unavailable, TimeoutError) as out:
                log.warning("connections_not_told", why=str(out) or type(out).__name__, connections=len(self._open))
                await self._begin_anew()
                continue
            except Exception:
                # Whatever it was: without renewals everybody who is connected would be put to sleep.
                log.exception("connections_not_told", connections=len(self._open))
                await self._begin_anew()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, self._renew_at - self.now())):
                    await self._wake.wait()

    async def _begin_anew(self) -> None:
        """All leases may have run out meanwhile."""
        self._renew_at = float("-inf")
        await asyncio.sleep(min(RETRY_S, self._lease_s * RENEW_AFTER_PART))

    async def _renew(self) -> None:
        now = self.now()
        is_due = now >= self._renew_at
        await self._tell(self._open.values() if is_due else self._unknown.values())
        if is_due:
            self._renew_at = now + self._lease_s * RENEW_AFTER_PART

    async def _tell(self, ties: Iterable["LeasedTie"]) -> None:
        live: dict[str, set[str]] = {}
        for tie in list(ties):
            # Before the message goes out: one that is used again while it is on its way announces itself once more.
            self._unknown.pop(tie.id, None)
            tie.is_leased = tie.is_live
            if tie.is_leased:
                live.setdefault(tie.workspace_id, set()).add(tie.id)
        if live:
            leases = {workspace_id: frozenset(ids) for workspace_id, ids in live.items()}
            await self._activity.renew(leases, lease_s=self._lease_s)

    async def _release_closed(self) -> None:
        while self._closed:
            tie, closed_at = self._closed[0]
            idle_s = closed_at + tie.idle_s - self.now()
            if idle_s > 0:
                await self._activity.release(tie.workspace_id, tie.id, idle_s=idle_s)
            self._closed.popleft()


class LeasedTie:
    """One connection, and when it last carried data."""

    def __init__(self, leases: ConnectionLeases, tie_id: str, workspace_id: str, idle_s: float) -> None:
        self.id = tie_id
        self.workspace_id = workspace_id
        self.idle_s = idle_s
        self.is_leased = True
        """Whether it is renewed. One that fell silent is not, until it is used again."""
        self._leases = leases
        self._carried_at = leases.now()

    @property
    def is_live(self) -> bool:
        return self._leases.now() - self._carried_at < self.idle_s

    def carried(self) -> None:
        self._carried_at = self._leases.now()
        if not self.is_leased:
            self.is_leased = True
            self._leases.announce(self)

    def closed(self) -> None:
        self._leases.remove(self)


@dataclass(frozen=True, slots=True)
class LeasedUse:
    leases: ConnectionLeases
    workspace_id: str
    idle_s: float

    def touched(self) -> None:
        self.leases.touch(self.workspace_id, self.idle_s)

    def connected(self) -> LeasedTie:
        return self.leases.add(self.workspace_id, self.idle_s)
