"""Connect to upstreams and keep idle connections for reuse."""

import asyncio
import socket

from torpor.inside.proven_connection import connect_with_proof
from torpor.ports import Address
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.upstream_connection import Upstream

# On a Unix socket a full accept queue is an error at once, unlike on TCP.
_QUEUE_IS_FULL_S = 0.01
# A program may close its connection a moment before the announced time.
_EARLIER_S = 1.0


class Pool:
    """Idle connections, newest first: the oldest may expire soon."""

    def __init__(self, patience: ProxyTimeouts) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._idle: dict[Address, list[Upstream]] = {}
        self._is_closed = False

    def take(self, address: Address, now: float) -> Upstream | None:
        """A connection that was open at the last event."""
        idle = self._idle.get(address)
        while idle:
            upstream = idle.pop()
            if upstream.kept_until > now and not upstream.transport.is_closing():
                upstream.is_reused = True
                return upstream
            upstream.abandon()
        return None

    def give(self, upstream: Upstream, keeps_s: float | None, now: float) -> None:
        """Keep the connection after its response, for the time that the response announced."""
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
        """The idle connection has ended."""
        idle = self._idle.get(upstream.address, [])
        if upstream in idle:
            idle.remove(upstream)

    def look(self, now: float) -> None:
        """Close expired connections."""
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

    async def connect(self, address: Address) -> Upstream:
        """A new connection; raises OSError or TimeoutError if the upstream cannot be reached."""
        upstream = Upstream(self, address)
        async with asyncio.timeout(self._patience.connect_s):
            if address.unix_path is not None:
                connected = await _connect_unix(address.unix_path)
                await self._loop.create_unix_connection(lambda: upstream, sock=connected)
            else:
                assert address.host is not None
                assert address.port is not None
                if address.key:
                    proved = await connect_with_proof(address.host, address.port, address.key)
                    await self._loop.create_connection(lambda: upstream, sock=proved)
                else:
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
