"""Hold the open connections and what they share."""

import asyncio
from typing import Protocol

from torpor import metrics
from torpor.proxy.connection_limits import ConnectionLimiter, ConnectionLimits, SlotHolder
from torpor.proxy.forwarded import TrustedProxies
from torpor.proxy.gate import Gate
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.upstream_pool import Pool

# Close codes of WebSockets.
GOING_AWAY = 1001
NOT_ALLOWED = 1008


class OpenConnection(Protocol):
    """A client's connection, of any protocol."""

    @property
    def bearer(self) -> str | None:
        """The credential behind it."""
        ...

    def look(self, now: float, patience: ProxyTimeouts) -> None:
        """Close it if a timeout has passed."""
        ...

    def drain(self) -> None:
        """The server stops: requests in progress may finish, and no new one begins."""
        ...

    def end(self, code: int) -> None:
        """End at once; `code` is the close code of a WebSocket."""
        ...

    def abort(self) -> None: ...


class NewConnection(OpenConnection, SlotHolder, Protocol):
    """It has not sent a whole head yet."""

    def make_room(self) -> None:
        """Close, for another connection that may send a request sooner."""
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
        """Connections that have not sent a whole head yet, oldest first."""
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
        """Returns whether all connections have ended within this time."""
        try:
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
