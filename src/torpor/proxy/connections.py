"""Who is here, and what do they all share?"""

import asyncio
from typing import Protocol

from torpor import metrics
from torpor.proxy.connection_limits import ConnectionLimiter, ConnectionLimits, SlotHolder
from torpor.proxy.forwarded import TrustedProxies
from torpor.proxy.gate import Gate
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.upstream_pool import Pool

# What a WebSocket is told at its end.
GOING_AWAY = 1001
NOT_ALLOWED = 1008


class OpenConnection(Protocol):
    """A client's connection, whatever is spoken on it."""

    @property
    def bearer(self) -> str | None:
        """Whose right it goes by now."""
        ...

    def look(self, now: float, patience: ProxyTimeouts) -> None:
        """End it if its time is over."""
        ...

    def drain(self) -> None:
        """We are about to stop: what is under way may finish, and nothing new begins."""
        ...

    def end(self, code: int) -> None:
        """Stop at once; `code` is what a WebSocket is told."""
        ...

    def abort(self) -> None: ...


class NewConnection(OpenConnection, SlotHolder, Protocol):
    """Has not sent a whole head yet."""

    def make_room(self) -> None:
        """Leave, for somebody who may ask sooner."""
        ...


class Connections:
    def __init__(self, gate: Gate, trust: TrustedProxies, patience: ProxyTimeouts, limits: ConnectionLimits) -> None:
        loop = asyncio.get_running_loop()
        self.gate = gate
        self.trust = trust
        self.patience = patience
        self.pool = Pool(patience)
        self.places = ConnectionLimiter(limits)
        self.guests: set[OpenConnection] = set()
        self.newcomers: dict[NewConnection, None] = {}
        """Who have not sent a whole head yet, the oldest first."""
        self.is_draining = False
        self.now = loop.time
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def arrived(self, guest: OpenConnection) -> None:
        self.guests.add(guest)
        self._is_empty.clear()
        metrics.proxy_connections.inc()

    def left(self, guest: OpenConnection) -> None:
        if guest in self.guests:
            self.guests.remove(guest)
            metrics.proxy_connections.dec()
        if not self.guests:
            self._is_empty.set()

    async def is_gone(self, within_s: float) -> bool:
        """Whether everybody has left within so many seconds."""
        try:
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
