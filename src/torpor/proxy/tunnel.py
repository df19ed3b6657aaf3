"""Join two connections into one tunnel.

After a protocol upgrade only the headers of WebSocket frames are parsed. Every byte is forwarded at the speed of the slower
side, and so is the end of each direction.
"""

import asyncio

from torpor.proxy.connection_limits import ConnectionSlot
from torpor.proxy.connections import Connections
from torpor.proxy.frames import RawStreamParser, StreamParser, WebSocketParser, close_frame
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.upstream_connection import close_write_half, reset
from torpor.proxy.usage import TrackedConnection


class TunnelEnd(asyncio.Protocol):
    """One end of the tunnel."""

    __slots__ = ("_carriage", "_tunnel", "has_ended", "other", "transport")

    def __init__(self, tunnel: "Tunnel", transport: asyncio.Transport, carriage: StreamParser) -> None:
        self.transport = transport
        self.other: TunnelEnd
        self.has_ended = False
        """No more data comes from it."""
        self._tunnel = tunnel
        self._carriage = carriage
        """The parser of the data that comes from it."""

    @property
    def is_between(self) -> bool:
        return self._carriage.is_between

    def data_received(self, data: bytes) -> None:
        tunnel = self._tunnel
        if self._carriage.take(data):
            tunnel.tie.carried()
        tunnel.moved_at = tunnel.traffic.now()
        if not tunnel.is_over:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self._tunnel.moved_at = self._tunnel.traffic.now()
        if not self.other.has_ended:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        return self._tunnel.half_closed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.lost(self, exc)


class Tunnel:
    def __init__(
        self,
        traffic: Connections,
        client: asyncio.Transport,
        upstream: asyncio.Transport,
        *,
        tie: TrackedConnection,
        place: ConnectionSlot | None,
        bearer: str | None,
        is_websocket: bool,
    ) -> None:
        self.traffic = traffic
        self.tie = tie
        self._place = place
        self.bearer = bearer
        self.is_over = False
        self.moved_at = traffic.now()
        self._client = TunnelEnd(self, client, WebSocketParser() if is_websocket else RawStreamParser())
        self._upstream = TunnelEnd(self, upstream, WebSocketParser() if is_websocket else RawStreamParser())
        self._client.other, self._upstream.other = self._upstream, self._client
        traffic.arrived(self)
        client.set_protocol(self._client)
        upstream.set_protocol(self._upstream)

    def begin(self, from_client: bytes, from_upstream: bytes, *, is_half_closed: bool, is_choked: bool) -> None:
        """Begin with the data that arrived before the upgrade, in the state of the client's connection."""
        if is_choked:
            self._upstream.transport.pause_reading()
        if from_upstream:
            self._upstream.data_received(from_upstream)
        if from_client:
            self._client.data_received(from_client)
        if is_half_closed:
            self.half_closed(self._client)
        else:
            self._client.transport.resume_reading()

    def half_closed(self, end: TunnelEnd) -> bool:
        """Returns whether the connection stays open after one of its halves has ended."""
        end.has_ended = True
        self.moved_at = self.traffic.now()
        if self.is_over:
            return False
        if end.other.has_ended:
            self._close()
            return False
        close_write_half(end.other.transport)
        return True

    def lost(self, end: TunnelEnd, exc: Exception | None) -> None:
        end.has_ended = True
        if not self.is_over:
            self.is_over = True
            if exc is None:
                end.other.transport.close()
            else:
                reset(end.other.transport)
        if end is self._client:
            self.tie.closed()
            if self._place is not None:
                self._place.leave()
            self.traffic.left(self)

    def _close(self) -> None:
        self.is_over = True
        self._client.transport.close()
        self._upstream.transport.close()

    # ── calls of the server ──

    def look(self, now: float, patience: ProxyTimeouts) -> None:
        silent_s = now - self.moved_at
        if self.is_over:
            has_more = self._client.transport.get_write_buffer_size() or self._upstream.transport.get_write_buffer_size()
            if silent_s > (patience.slow_s if has_more else patience.linger_s):
                self.abort()
        elif (self._client.has_ended or self._upstream.has_ended) and silent_s > patience.half_closed_s:
            self.abort()

    def drain(self) -> None:
        """A tunnel may continue during the grace period."""

    def end(self, code: int) -> None:
        """End at once. A WebSocket gets a close frame if one can be inserted; any other connection is reset."""
        if self.is_over:
            return
        client, upstream = self._client, self._upstream
        says_so = upstream.is_between and not client.transport.is_closing()
        if upstream.transport.is_closing() or client.has_ended or not client.is_between:
            upstream.transport.abort()
        else:
            upstream.transport.write(close_frame(code, is_masked=True))
            upstream.transport.close()
        if says_so and not upstream.has_ended:
            client.transport.write(close_frame(code))
            close_write_half(client.transport)
        else:
            reset(client.transport)
        self.moved_at = self.traffic.now()
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True
        self._client.transport.abort()
        self._upstream.transport.abort()
