"""Handle one client connection, request after request.

Each head is parsed and judged by the gate; then bytes flow in both directions at the speed of the slower side. Everything runs
in callbacks: a known caller of a running workspace is forwarded without a task, and head and body go out in one write.
"""

import asyncio
import select
from enum import Enum, auto
from typing import cast

import structlog

from torpor.proxy.body import Body
from torpor.proxy.connection_limits import ConnectionSlot
from torpor.proxy.connections import GOING_AWAY, Connections
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.replies import BROKEN, FULL, SLOW_BODY, STOPPING, TOO_MANY, count, refused, render
from torpor.proxy.request_head import (
    END,
    NO_BODY,
    UNTIL_CLOSE,
    BadHead,
    Framing,
    RequestHead,
    RequestOrigin,
    forwarded_head,
    head_ends,
    next_forwarded_head,
    parse,
    parse_next,
)
from torpor.proxy.response_head import ResponseHead
from torpor.proxy.timeouts import MOST_HELD_BYTES, READ_AGAIN_BYTES, REMEMBERED_BYTES, ProxyTimeouts
from torpor.proxy.tunnel import Tunnel
from torpor.proxy.upstream_connection import Upstream, close_write_half, reset
from torpor.proxy.usage import UNWATCHED, TrackedConnection

log = structlog.get_logger()

# Idempotent methods. Only these are sent on a reused connection, which may be dead.
REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})


# A client that sends a byte now and then could keep the connection open without end: it has this many times the limit of a
# silent one.
_LONGEST_CLOSING = 15
# Where the system has no such event, a closed half is noticed when the connection is read.
_HALF_CLOSED = getattr(select, "POLLRDHUP", 0)


class ConnectionStage(Enum):
    """The progress of the present request."""

    WAITING = auto()
    """For a request head, or the rest of one."""
    JUDGED = auto()
    """The gate has not answered yet."""
    CONNECTING = auto()
    UNDER_WAY = auto()
    """The request is sent and the response received, in any order."""
    CLOSING = auto()
    """The response is complete; the connection is read until the client has received it."""
    OVER = auto()


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_arrived",
        "_asking",
        "_body",
        "_closes",
        "_framing",
        "_head",
        "_is_choked",
        "_is_half_closed",
        "_is_last",
        "_is_new",
        "_is_paused",
        "_is_refused",
        "_is_trusted",
        "_lingers",
        "_may_reuse",
        "_message",
        "_origin",
        "_passing",
        "_peer",
        "_place",
        "_raw",
        "_said",
        "_searched",
        "_since",
        "_stage",
        "_tie",
        "_traffic",
        "_transport",
        "_upstream",
        "has_begun_answer",
        "moved_at",
        "wants_upgrade",
    )

    def __init__(self, traffic: Connections) -> None:
        self._traffic = traffic
        self._transport: asyncio.Transport
        self._peer = ""
        self._origin = RequestOrigin("")
        self._is_trusted = False
        self._is_new = True
        self._is_refused = False
        self._place: ConnectionSlot | None = None
        self._stage = ConnectionStage.WAITING
        self._since = self.moved_at = traffic.now()
        self._arrived = b""
        """Bytes that are not processed yet."""
        self._searched = 0
        self._raw = b""
        self._head: RequestHead | None = None
        self._is_last = False
        self._framing: Framing = NO_BODY
        self._may_reuse = False
        """Depends on the head only; kept, because most clients repeat the same request."""
        self._body: Body | None = None
        """Until the whole body of the request has arrived."""
        self._closes = False
        """Whether the connection closes after this response."""
        self._lingers = False
        """Whether the client may still send although the response is complete."""
        self._is_half_closed = False
        self._is_choked = False
        """The client does not read what it is sent."""
        self._is_paused = False
        self._asking: asyncio.Future[Verdict] | asyncio.Future[Upstream] | None = None
        self._passing: Forward | None = None
        self._message = b""
        """The head as it is forwarded."""
        self._said: tuple[RequestHead, RequestOrigin, bool] | None = None
        """The inputs of `_message`: for the same inputs it is not built again."""
        self._tie: TrackedConnection = UNWATCHED
        self._upstream: Upstream | None = None
        self.has_begun_answer = False
        self.wants_upgrade = False

    # ── the connection ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(MOST_HELD_BYTES, READ_AGAIN_BYTES)
        traffic = self._traffic
        traffic.arrived(self)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if peer else "0.0.0.0"  # noqa: S104 - the client has disconnected already
        self._origin = RequestOrigin(self._peer)
        self._is_trusted = traffic.trust.believes(self._peer)
        if not self._may_come_in():
            return
        traffic.newcomers[self] = None
        if len(traffic.newcomers) > traffic.patience.most_newcomers:
            # To refuse the newest would let clients that never send a request keep all others out.
            next(iter(traffic.newcomers)).make_room()
        if traffic.is_draining:
            self._transport.close()

    def _may_come_in(self) -> bool:
        """Whether there is a free slot; a trusted proxy takes one for each request."""
        traffic = self._traffic
        if not traffic.places.has_total(len(traffic.guests) - 1, iter(traffic.newcomers), self._since):
            self._turn_away(FULL)
            return False
        if not self._is_trusted:
            self._place = traffic.places.take(self._peer, self, self._since)
            if self._place is None:
                self._turn_away(traffic.places.too_many())
                return False
        return True

    def _turn_away(self, reply: Reply) -> None:
        """Send the reason, unless many others are being refused: each such connection is read until the client has it."""
        self._is_new = False
        places = self._traffic.places
        if places.answering >= places.limits.answered:
            self._stage = ConnectionStage.OVER
            self._transport.abort()
            return
        self._is_refused = True
        places.answering += 1
        self._reply(reply, closes=True)

    def data_received(self, data: bytes) -> None:
        self.moved_at = self._traffic.now()
        match self._stage:
            case ConnectionStage.WAITING if not self._is_choked:
                self._take_head(self._arrived + data if self._arrived else data)
            case ConnectionStage.UNDER_WAY if self._body is not None:
                self._take_body(data)
            case ConnectionStage.CLOSING | ConnectionStage.OVER:
                pass
            case _:
                # The next request, or a body that the upstream does not take yet: stop reading.
                self._arrived += data
                self.read_on()

    def eof_received(self) -> bool:
        self._is_half_closed = True
        # A client that has not sent a whole request expects no response; one that has may have closed only its half.
        if self._stage in (ConnectionStage.WAITING, ConnectionStage.CLOSING, ConnectionStage.OVER):
            return False
        return self._body is None or bool(self._arrived)

    def connection_lost(self, exc: Exception | None) -> None:
        if (
            self._stage not in (ConnectionStage.WAITING, ConnectionStage.CLOSING, ConnectionStage.OVER)
            and not self.has_begun_answer
        ):
            count(RequestOutcome.CLIENT_GONE)
        self._stage = ConnectionStage.OVER
        self._no_newcomer()
        self._let_go()
        self._leave_place()
        if self._is_refused:
            self._traffic.places.answering -= 1
        self._traffic.left(self)

    def pause_writing(self) -> None:
        self._is_choked = True
        if self._upstream is not None:
            self._upstream.read_on(False)

    def resume_writing(self) -> None:
        self._is_choked = False
        self.moved_at = self._traffic.now()
        if self._upstream is not None:
            self._upstream.read_on(True)
        elif self._stage is ConnectionStage.WAITING and self._arrived:
            self._next()

    def read_on(self) -> None:
        """Read, or pause reading while there are bytes that cannot be forwarded."""
        is_held = bool(self._arrived) and (
            self._stage not in (ConnectionStage.WAITING, ConnectionStage.CLOSING) or self._is_choked
        )
        is_held = is_held or (self._upstream is not None and self._upstream.is_choked)
        if is_held is self._is_paused or self._is_half_closed:
            return
        self._is_paused = is_held
        if is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ── the request ──

    def _take_head(self, data: bytes) -> None:
        end = data.find(END, max(0, self._searched - 3))
        try:
            if end < 0:
                head_ends(data, self._searched)
                if not self._arrived:
                    # The time limit begins with the first byte of the request; the idle time before it does not count.
                    self._since = self.moved_at
                self._arrived, self._searched = data, len(data)
                if self._is_half_closed:
                    self._transport.close()
                return
            end += 4
            raw = data if end == len(data) else data[:end]
            head = self._head
            if raw != self._raw or head is None:
                is_short = len(raw) <= REMEMBERED_BYTES
                next_one = parse_next(raw, self._raw, head) if is_short and self._raw and head is not None else None
                head = next_one or parse(raw)
                self._raw = raw if is_short else b""
        except BadHead as bad:
            self._head = None
            self._reply(refused(bad), closes=True)
            return
        self._searched = 0
        self._arrived = data[end:]
        if self._is_new:
            self._no_newcomer()
        self._judge(head)

    def _no_newcomer(self) -> None:
        if self._is_new:
            self._is_new = False
            self._traffic.newcomers.pop(self, None)

    def _judge(self, head: RequestHead) -> None:
        if head is not self._head:
            self._head = head
            self._is_last = head.closes
            self._framing = head.framing
            self.wants_upgrade = head.is_upgrade
            self._may_reuse = self._framing is NO_BODY and head.method in REPEATABLE and not self.wants_upgrade
        self._closes = self._is_last
        self.has_begun_answer = False
        self._body = None if self._framing is NO_BODY else Body(self._framing)
        if self._is_trusted:
            self._origin = self._traffic.trust.origin(head, self._peer)
            if not self._traffic.trust.believes(self._origin.client):
                self._place = self._traffic.places.take(self._origin.client, self, self.moved_at)
                if self._place is None:
                    self._reply(self._traffic.places.too_many())
                    return
        try:
            verdict = self._traffic.gate.judge(head, self._origin.client)
        except Exception:
            log.exception("cannot_judge", host=head.host)
            verdict = BROKEN
        if type(verdict) is Forward or isinstance(verdict, (Forward, Reply)):
            self._follow(verdict)
            return
        self._stage = ConnectionStage.JUDGED
        self.read_on()
        asking = asyncio.ensure_future(verdict)
        self._asking = asking
        asking.add_done_callback(self._judged)

    def _judged(self, asking: "asyncio.Future[Verdict]") -> None:
        if asking.cancelled():
            return
        self._asking = None
        error = asking.exception()
        if error is not None:
            log.error("cannot_judge", exc_info=error)
        self.moved_at = self._traffic.now()
        if self._stage is ConnectionStage.JUDGED:
            self._follow(BROKEN if error is not None else asking.result())

    def _follow(self, verdict: Verdict) -> None:
        if isinstance(verdict, Reply):
            self._reply(verdict)
            return
        head = self._head
        assert head is not None
        self._passing = verdict
        self._tie = verdict.use.requested()
        self._put_into_words(head, verdict.to_workspace)
        if self._may_reuse:
            upstream = self._traffic.pool.take(verdict.address, self.moved_at)
            if upstream is not None:
                self._ask(upstream)
                return
        self._connect(verdict)

    def _put_into_words(self, head: RequestHead, to_workspace: bool) -> None:
        """Build the head to forward; reuse the last one as far as possible."""
        said = self._said
        if said is None or said[0].headers is not head.headers or said[1:] != (self._origin, to_workspace):
            self._message = forwarded_head(head, self._origin, to_workspace=to_workspace)
        elif said[0] is not head:
            self._message = next_forwarded_head(self._message, head)
        self._said = (head, self._origin, to_workspace)

    def ask_again(self) -> None:
        """Send the request again, because the reused connection had been closed."""
        assert self._passing is not None
        self._upstream = None
        self._connect(self._passing)

    def _connect(self, passing: Forward) -> None:
        self._stage = ConnectionStage.CONNECTING
        self.read_on()
        asking = asyncio.ensure_future(self._traffic.pool.connect(passing.address))
        self._asking = asking
        asking.add_done_callback(self._connected)

    def _connected(self, asking: "asyncio.Future[Upstream]") -> None:
        if asking.cancelled():
            return
        self._asking = None
        error = asking.exception()
        if self._stage is not ConnectionStage.CONNECTING:
            if error is None:
                asking.result().abandon()
        elif error is None:
            self.moved_at = self._traffic.now()
            self._ask(asking.result())
        elif isinstance(error, OSError):
            self.no_answer(str(error) or "it cannot be reached in time")
        else:
            log.error("cannot_connect", exc_info=error)
            self.no_answer(repr(error))

    def _ask(self, upstream: Upstream) -> None:
        """Send the head and the available part of the body in one write."""
        self._stage = ConnectionStage.UNDER_WAY
        self._upstream = upstream
        if self._is_choked:
            upstream.read_on(False)
        message = self._message
        if self._body is not None and self._arrived:
            try:
                taken = self._body.take(self._arrived)
            except BadHead as bad:
                # The upstream has not got the request, so it does not know its client.
                upstream.abandon()
                self._refuse(bad)
                return
            message += self._arrived[:taken]
            self._arrived = self._arrived[taken:]
            if self._body.is_complete:
                self._body = None
        assert self._head is not None
        assert self._passing is not None
        upstream.ask(self, message, method=self._head.method, is_workspace=self._passing.to_workspace)
        if self._arrived or self._is_paused:
            self.read_on()

    def _take_body(self, data: bytes) -> None:
        body, upstream = self._body, self._upstream
        assert body is not None
        assert upstream is not None
        try:
            taken = body.take(data)
        except BadHead as bad:
            self._refuse(bad)
            return
        if body.is_complete:
            self._body = None
            if taken < len(data):
                self._arrived = data[taken:]
                self.read_on()
        upstream.send(data if taken == len(data) else data[:taken])

    # ── the response of the upstream ──

    @property
    def has_sent_all(self) -> bool:
        return self._body is None

    def interim(self, answer: ResponseHead) -> None:
        # HTTP/1.0 has no interim responses.
        if self._head is not None and self._head.version == b"HTTP/1.1":
            self.write(answer.render())

    def begin_answer(self, answer: ResponseHead, framing: Framing) -> bool:
        """Returns whether it is the last response on this connection."""
        passing = self._passing
        assert passing is not None
        self.has_begun_answer = True
        if framing is UNTIL_CLOSE or self._body is not None or self._traffic.is_draining or self.wants_upgrade:
            self._closes = True
        if answer.is_event_stream:
            # It has no end. A download counts as use while it lasts, but an event stream is open in every forgotten tab.
            self._tie.is_no_use()
        count(passing.outcome)
        return self._closes

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_answer(self) -> None:
        """The response is complete."""
        self._tie.closed()
        self._tie = UNWATCHED
        self._passing = self._upstream = None
        if self._is_trusted:
            self._leave_place()
        if self._closes or ((self._is_half_closed or self._traffic.is_draining) and not self._arrived):
            self._close()
            return
        self._stage = ConnectionStage.WAITING
        self._since = self.moved_at
        if self._arrived:
            # Responses are sent in order, and a client that does not read one gets no other.
            if not self._is_choked:
                asyncio.get_running_loop().call_soon(self._next)
        elif self._is_paused:
            self.read_on()

    def _next(self) -> None:
        if self._stage is ConnectionStage.WAITING and self._arrived and not self._is_choked:
            data, self._arrived = self._arrived, b""
            self._take_head(data)
            self.read_on()

    def no_answer(self, why: str) -> None:
        """The upstream sends no response."""
        passing, head = self._passing, self._head
        assert passing is not None
        assert head is not None
        log.warning("no_answer", host=head.host, error=why)
        self._reply(passing.sorry)

    def switch(self, upstream: Upstream, answer: ResponseHead, rest: bytes) -> None:
        """From here on the connection is a tunnel."""
        passing, head = self._passing, self._head
        assert passing is not None
        assert head is not None
        tie = passing.use.connected()
        self._tie.closed()
        self._tie = UNWATCHED
        count(RequestOutcome.TUNNEL)
        self._transport.write(answer.render())
        self._stage = ConnectionStage.OVER
        self._upstream = None
        place, self._place = self._place, None
        tunnel = Tunnel(
            self._traffic,
            self._transport,
            upstream.transport,
            tie=tie,
            place=place,
            bearer=passing.bearer,
            is_websocket=head.is_websocket,
        )
        self._traffic.left(self)
        tunnel.begin(self._arrived, rest, is_half_closed=self._is_half_closed, is_choked=self._is_choked)

    # ── our own responses ──

    def _reply(self, reply: Reply, *, closes: bool = False) -> None:
        if self._body is not None and self._arrived and not closes:
            self._skip_body()
        self._let_go()
        self._lingers = closes
        count(reply.outcome)
        self.has_begun_answer = True
        self._closes = closes or self._closes or self._body is not None or self._traffic.is_draining
        self.moved_at = self._traffic.now()
        self.write(render(reply, self._head, closes=self._closes))
        self.end_answer()

    def _skip_body(self) -> None:
        """Skip the part of an unwanted body that has arrived."""
        assert self._body is not None
        try:
            taken = self._body.take(self._arrived)
        except BadHead:
            return
        if self._body.is_complete:
            self._body = None
            self._arrived = self._arrived[taken:]

    def _refuse(self, bad: BadHead) -> None:
        """Reply with an error: the bytes that follow are not a request."""
        if self.has_begun_answer:
            self.cut()
        else:
            self._reply(refused(bad), closes=True)

    def _close(self) -> None:
        # It can no longer give its slot to another, so it must not be listed before those that can.
        self._no_newcomer()
        self._stage = ConnectionStage.CLOSING
        self._since = self._traffic.now()
        if self._body is None and not self._arrived and not self._lingers:
            self._transport.close()
            return
        # Closing the connection while the client sends would destroy the response in transit.
        self._arrived = b""
        close_write_half(self._transport)
        self.read_on()

    def _let_go(self) -> None:
        """Release all that belongs to this request."""
        if self._is_trusted:
            self._leave_place()
        tie, self._tie = self._tie, UNWATCHED
        tie.closed()
        self._passing = None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.leave(self)
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def _leave_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.leave()

    def cut(self) -> None:
        """Reset the connection, so that the client notices that the response is incomplete."""
        self._let_go()
        self._stage = ConnectionStage.OVER
        reset(self._transport)

    # ── calls of the server ──

    @property
    def bearer(self) -> str | None:
        return self._passing.bearer if self._passing is not None else None

    def look(self, now: float, patience: ProxyTimeouts) -> None:
        silent_s = now - self.moved_at
        if self._is_paused and self._has_gone(silent_s > patience.half_closed_s):
            self.abort()
            return
        match self._stage:
            case ConnectionStage.WAITING:
                self._look_at_waiting(now, patience)
            case ConnectionStage.JUDGED | ConnectionStage.CONNECTING:
                if self._is_half_closed and silent_s > patience.half_closed_s:
                    self.abort()
            case ConnectionStage.UNDER_WAY:
                self._look_at_exchange(silent_s, patience)
            case ConnectionStage.CLOSING:
                has_more = self._transport.get_write_buffer_size() > 0
                limit_s = patience.slow_s if has_more else patience.linger_s
                closing_s = now - self._since
                if min(closing_s, silent_s) > limit_s or closing_s > _LONGEST_CLOSING * limit_s:
                    self.abort()
            case ConnectionStage.OVER:
                pass

    def _has_gone(self, is_silent: bool) -> bool:
        """Whether a client that is not read from has disconnected, which causes no event. `is_silent`: a closed half is
        enough."""
        asked = select.poll()
        asked.register(self._transport.get_extra_info("socket").fileno(), _HALF_CLOSED if is_silent else 0)
        return bool(asked.poll(0))

    def _look_at_waiting(self, now: float, patience: ProxyTimeouts) -> None:
        waited_s = now - self._since
        if self._is_choked:
            if now - self.moved_at > patience.slow_s:
                self.abort()
        elif self._arrived:
            if waited_s > patience.head_s:
                late = BadHead(408, f"The request's head did not arrive within {patience.head_s:g} seconds.")
                self._head = None
                self._reply(refused(late), closes=True)
        elif waited_s > (patience.head_s if self._is_new else patience.idle_s):
            # A spare connection of a browser, on which no request came.
            self._transport.close()

    def _look_at_exchange(self, silent_s: float, patience: ProxyTimeouts) -> None:
        passing, upstream = self._passing, self._upstream
        assert passing is not None
        assert upstream is not None
        if self._is_half_closed and silent_s > patience.half_closed_s:
            self.abort()
        elif self._is_choked:
            if silent_s > patience.slow_s:
                self.abort()
        elif self._body is not None and not upstream.is_choked:
            if silent_s > patience.body_s:
                self._refuse(SLOW_BODY)
        elif self.has_begun_answer and upstream.is_choked:
            # The upstream responds, but takes no more of the request.
            if silent_s > patience.answer_s:
                self.cut()
        elif not self.has_begun_answer and silent_s > (patience.upgrade_s if self.wants_upgrade else patience.answer_s):
            self._reply(passing.too_late)

    def make_room(self) -> None:
        """Close, for a newer connection that may send a request sooner."""
        self._no_newcomer()
        if self._stage is ConnectionStage.WAITING:
            self._reply(TOO_MANY, closes=True)
        else:
            self.abort()

    @property
    def is_newcomer(self) -> bool:
        return self._is_new

    def give_way(self) -> bool:
        if self._stage is not ConnectionStage.WAITING or self._is_choked:
            return False
        self._no_newcomer()
        self._stage = ConnectionStage.OVER
        self._leave_place()
        self._transport.abort()
        return True

    def drain(self) -> None:
        if self._stage is ConnectionStage.WAITING and not self._arrived:
            self._transport.close()

    def end(self, code: int) -> None:
        if self._stage in (ConnectionStage.JUDGED, ConnectionStage.CONNECTING) and code == GOING_AWAY:
            self._reply(STOPPING, closes=True)
        elif self._stage is not ConnectionStage.CLOSING:
            self.cut()

    def abort(self) -> None:
        self._let_go()
        self._transport.abort()
