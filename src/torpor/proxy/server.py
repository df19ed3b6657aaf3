"""Listen on a port, and stop without breaking requests in progress."""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from torpor.domain.errors import Hopeless, Refused
from torpor.proxy.client_connection import ClientConnection
from torpor.proxy.connection_limits import UNLIMITED, ConnectionLimits
from torpor.proxy.connections import GOING_AWAY, NOT_ALLOWED, Connections, OpenConnection
from torpor.proxy.forwarded import TrustedProxies
from torpor.proxy.gate import Gate
from torpor.proxy.timeouts import ProxyTimeouts

log = structlog.get_logger()

# TCP keepalive for clients that disappear silently: first probe, interval, count.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
_NOT_HERE = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}


class ProxyServer:
    """One port. The gate decides where each request goes; the forwarded headers of `trusted` proxies are believed."""

    def __init__(
        self,
        gate: Gate,
        *,
        port: int,
        hosts: Sequence[str],
        trusted: Sequence[str] = (),
        patience: ProxyTimeouts = ProxyTimeouts(),
        limits: ConnectionLimits = UNLIMITED,
        option: str = "--port",
    ) -> None:
        """`option`: how the user chooses the port, for messages."""
        self.port = port
        """The port to listen on; after `start`, the assigned port if it was 0."""
        self._gate = gate
        self._hosts = hosts
        self._trust = TrustedProxies(trusted)
        self._patience = patience
        self._limits = limits
        self._option = option
        self._servers: list[asyncio.Server] = []
        self._traffic: Connections | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen. Raises Refused `port_in_use` or `port_not_allowed`."""
        loop = asyncio.get_running_loop()
        traffic = self._traffic = Connections(self._gate, self._trust, self._patience, self._limits)
        listeners: list[socket.socket] = []
        try:
            listeners.extend(filter(None, map(self._listen, self._hosts)))
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        if not listeners:
            raise Hopeless(f"none of the addresses {', '.join(self._hosts)} exists on this machine")
        for listener in listeners:
            server = await loop.create_server(lambda: ClientConnection(traffic), sock=listener, backlog=self._limits.backlog)
            self._servers.append(server)
        self._look()

    async def stop(self, grace_s: float = 5) -> None:
        """Accept no connections and no new requests; requests in progress have `grace_s` to finish. WebSockets get a close
        frame at its end."""
        for server in self._servers:
            server.close()
        self._servers = []
        traffic = self._traffic
        if traffic is None:
            return
        traffic.is_draining = True
        _tell_all(traffic, lambda guest: guest.drain())
        if not await traffic.is_gone(grace_s):
            _tell_all(traffic, lambda guest: guest.end(GOING_AWAY))
            if not await traffic.is_gone(self._patience.farewell_s):
                _tell_all(traffic, lambda guest: guest.abort())
                await traffic.is_gone(self._patience.farewell_s)
        traffic.pool.close()
        if self._looking is not None:
            self._looking.cancel()

    def cut(self, bearer: str) -> None:
        """End at once all connections of this bearer."""
        if self._traffic is not None:
            _tell_all(self._traffic, lambda guest: guest.end(NOT_ALLOWED) if guest.bearer == bearer else None)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return 0 if self._traffic is None else len(self._traffic.guests)

    @property
    def counted(self) -> int:
        """How many connections, and requests of trusted proxies, count for a client address."""
        return 0 if self._traffic is None else len(self._traffic.places)

    def _look(self) -> None:
        """One timer for all connections, instead of one for each request."""
        traffic, patience = self._traffic, self._patience
        assert traffic is not None
        # First, so that an error below does not end the timer.
        self._looking = asyncio.get_running_loop().call_later(patience.look_s, self._look)
        now = traffic.now()
        _tell_all(traffic, lambda guest: guest.look(now, patience))
        traffic.pool.look(now)

    def _listen(self, host: str) -> socket.socket | None:
        """A bound socket; None if this machine does not have the address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno in _NOT_HERE:
                return None
            raise
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _ask_for_signs_of_life(listener)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, self.port))
            listener.listen(self._limits.backlog)
        except OSError as error:
            listener.close()
            match error.errno:
                case errno.EADDRINUSE:
                    raise Refused(
                        "port_in_use",
                        f"port {self.port} is in use on {host}; choose another with {self._option}",
                        port=self.port,
                        host=host,
                    ) from error
                case errno.EACCES:
                    raise Refused(
                        "port_not_allowed",
                        f"port {self.port} is not allowed for this user; choose one above 1023 with {self._option}",
                        port=self.port,
                        host=host,
                    ) from error
                case number if number in _NOT_HERE:
                    return None
                case _:
                    raise
        self.port = listener.getsockname()[1]
        return listener


def _tell_all(traffic: Connections, tell: Callable[[OpenConnection], None]) -> None:
    """Call all connections, even if one fails; the one that fails is closed."""
    for guest in list(traffic.guests):
        try:
            tell(guest)
        except Exception:
            log.exception("connection_broke")
            with suppress(Exception):
                guest.abort()


def _ask_for_signs_of_life(listener: socket.socket) -> None:
    """Enable keepalive on the listener; accepted connections inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
