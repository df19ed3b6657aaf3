"""How is an address reached, and which connection to it can be used once more?"""

import asyncio
import socket

from torpor.ports import Address
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.upstream_connection import Upstream

# A listener whose queue is full says so at once on a Unix socket, where it would be silent on TCP.
_QUEUE_IS_FULL_S = 0.01
# A program may close a moment before the time that it told.
_EARLIER_S = 1.0


class Pool:
    """Connections that wait for the next request, newest first: the oldest may run out."""

    def __init__(self, patience: ProxyTimeouts) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._idle: dict[Address, list[Upstream]] = {}
        self._is_closed = False

    def take(self, address: Address, now: float) -> Upstream | None:
        """One that was alive when last heard of."""
        idle = self._idle.get(address)
        while idle:
            upstream = idle.pop()
            if upstream.kept_until > now and not upstream.transport.is_closing():
                upstream.is_reused = True
                return upstream
            upstream.abandon()
        return None

    def give(self, upstream: Upstream, keeps_s: float | None, now: float) -> None:
        """It has answered, and said for how long it is there."""
        kept_s = self._patience.kept_s if keeps_s is None else min(self._patience.kept_s, keeps_s - _EARLIER_S)
        idle = self._idle.get(upstream.address)
        if idle is None:
            idle = self._idle[upstream.address] = []
        if kept_s <= 0 or len(idle) >= self._patience.most_kept or self._is_closed:
            upstream.abandon()
            return
        upstream.kept_until = now + kept_s
        upstream.read_on(True)
        idle.append(upstream)

    def forget(self, upstream: Upstream) -> None:
        """It has ended while nobody used it."""
        idle = self._idle.get(upstream.address, [])
        if upstream in idle:
            idle.remove(upstream)

    def look(self, now: float) -> None:
        """Close those whose time is over."""
        for address, idle in list(self._idle.items()):
            late = [upstream for upstream in idle if upstream.kept_until <= now]
            if late:
                idle[:] = [upstream for upstream in idle if upstream.kept_until > now]
                for upstream in late:
                    upstream.abandon()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        self._is_closed = True
        for idle in self._idle.values():
            for upstream in idle:
                upstream.abandon()
        self._idle.clear()

    @property
    def idle_count(self) -> int:
        return sum(map(len, self._idle.values()))

    async def connect(self, address: Address) -> Upstream:
        """A new connection; OSError or TimeoutError when there is none to be had."""
        upstream = Upstream(self, address)
        async with asyncio.timeout(self._patience.connect_s):
            if address.unix_path is not None:
                connected = await _connect_unix(address.unix_path)
                await self._loop.create_unix_connection(lambda: upstream, sock=connected)
            else:
                assert address.host is not None
                assert address.port is not None
                await self._loop.create_connection(lambda: upstream, address.host, address.port)
        return upstream


async def _connect_unix(path: str) -> socket.socket:
    while True:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            connecting.connect(path)
        except BlockingIOError:
            connecting.close()
            await asyncio.sleep(_QUEUE_IS_FULL_S)
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
