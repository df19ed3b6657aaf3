"""Handle one connection to the platform or to a workspace, and find the end of each response.

Between two requests the connection is in the pool. If anything arrives on it then, it is closed, because there was no request.
"""

import asyncio
import contextlib
import socket
import struct
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from torpor.ports import Address
from torpor.proxy.body import Body
from torpor.proxy.request_head import LARGEST_HEAD_BYTES, NO_BODY, UNTIL_CLOSE, BadHead, Framing, Length
from torpor.proxy.response_head import SWITCHING, ResponseHead, parse_response_head, response_head_end
from torpor.proxy.timeouts import MOST_HELD_BYTES, READ_AGAIN_BYTES, REMEMBERED_BYTES

if TYPE_CHECKING:
    from torpor.proxy.client_connection import ClientConnection
    from torpor.proxy.upstream_pool import Pool

# How much of the data that was sent before the connection broke is still read.
_LAST_WORDS_BYTES = 1024 * 1024
# More interim responses than this mean that there is no final one.
MOST_INTERIM_ANSWERS = 16


class ResponseState(Enum):
    NOTHING = auto()
    """No request was sent."""
    HEAD = auto()
    BODY = auto()
    OVER = auto()


class Upstream(asyncio.Protocol):
    __slots__ = (
        "_answer",
        "_arrived",
        "_body",
        "_client",
        "_framing",
        "_has_begun",
        "_heard_at",
        "_hearing",
        "_interim_answers",
        "_is_paused",
        "_is_workspace",
        "_method",
        "_preamble",
        "_raw",
        "_rendered",
        "address",
        "is_choked",
        "is_reused",
        "kept_until",
        "pool",
        "transport",
    )

    def __init__(self, pool: "Pool", address: Address) -> None:
        self.pool = pool
        self.address = address
        self.transport: asyncio.Transport
        self.is_reused = False
        self.is_choked = False
        """The upstream does not read what it is sent."""
        self.kept_until = 0.0
        self._preamble = address.preamble
        self._client: ClientConnection | None = None
        self._hearing = ResponseState.NOTHING
        self._interim_answers = 0
        self._has_begun = False
        self._heard_at = 0.0
        self._is_paused = False
        self._method = b""
        self._is_workspace = True
        self._arrived = b""
        self._raw = b""
        """The head of the last response. The next one is often the same and is not parsed again."""
        self._answer: ResponseHead | None = None
        self._framing: Framing = NO_BODY
        self._rendered = b""
        self._body: Body | None = None

    # ── calls of the client connection ──

    def ask(self, client: "ClientConnection", message: bytes, *, method: bytes, is_workspace: bool) -> None:
        """Send a request, or the part that has arrived."""
        self._client = client
        if is_workspace is not self._is_workspace or method != self._method:
            # The meaning of a response depends on these.
            self._method, self._is_workspace, self._raw = method, is_workspace, b""
        self._hearing = ResponseState.HEAD
        self._interim_answers = 0
        self._has_begun = False
        if self._preamble:
            message, self._preamble = self._preamble + message, b""
        self.transport.write(message)

    def send(self, data: bytes) -> None:
        """Send more of the body."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def leave(self, client: "ClientConnection") -> None:
        """This client wants no response any more, or has received it."""
        if self._client is client:
            self.abandon()

    def abandon(self) -> None:
        """Ignore all further data and close."""
        self._client = None
        self._hearing = ResponseState.OVER
        self.transport.abort()

    def read_on(self, wants_more: bool) -> None:
        """Read more or pause, depending on whether the client takes more."""
        if self._is_paused is wants_more:
            self._is_paused = not wants_more
            if wants_more:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # ── events of the transport ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(MOST_HELD_BYTES, READ_AGAIN_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._client is not None:
            self._client.moved_at = self._heard_at = self.pool.now()
        if self._hearing is ResponseState.HEAD:
            self._take_head(self._arrived + data if self._arrived else data)
        elif self._hearing is ResponseState.BODY:
            self._take_body(data)
        else:
            # A response without a request: the next client must not get it.
            self.transport.abort()

    def eof_received(self) -> bool:
        self._ended(whole=True, why="it closed the connection without a response")
        self.transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client is not None and exc is not None:
            # The upstream may have responded before it closed the connection on the rest of the body; that response can still
            # be read.
            self._hear_last_words()
        self._ended(whole=exc is None, why=str(exc) if exc else "it closed the connection without a response")

    def pause_writing(self) -> None:
        self.is_choked = True
        if self._client is not None:
            self._client.read_on()

    def resume_writing(self) -> None:
        self.is_choked = False
        if self._client is not None:
            self._client.moved_at = self.pool.now()
            self._client.read_on()

    # ── the response ──

    def _take_head(self, data: bytes) -> None:
        client = self._client
        assert client is not None
        self._has_begun = True
        begin = 0
        while True:
            end = response_head_end(data, begin)
            if end is None:
                self._arrived = data[begin:]
                if len(self._arrived) > LARGEST_HEAD_BYTES:
                    self._broke("the head of its response is too large")
                return
            raw = data[begin:end]
            if raw != self._raw or self._answer is None:
                try:
                    self._answer = parse_response_head(raw, from_workspace=self._is_workspace)
                except BadHead as bad:
                    self._broke(bad.message)
                    return
                self._raw = raw if len(raw) <= REMEMBERED_BYTES else b""
                self._framing = self._answer.framing(self._method)
                self._rendered = raw if self._answer.is_as_it_came else self._answer.render()
            answer = self._answer
            if not answer.is_interim:
                break
            self._interim_answers += 1
            if self._interim_answers > MOST_INTERIM_ANSWERS:
                self._broke("it sent too many interim responses")
                return
            client.interim(answer)
            begin = end
        self._arrived = b""
        if answer.status == SWITCHING:
            if not client.wants_upgrade:
                self._broke("it switched to a protocol that was not requested")
                return
            self._client = None
            self._hearing = ResponseState.OVER
            client.switch(self, answer, data[end:])
            return
        self._begin(client, answer, data[begin:], end - begin)

    def _begin(self, client: "ClientConnection", answer: ResponseHead, data: bytes, end: int) -> None:
        """Send the head and the available part of the body in one write."""
        framing = self._framing
        is_last = client.begin_answer(answer, framing)
        size = len(data)
        taken = end
        self._body = None
        if framing is UNTIL_CLOSE:
            self._body, taken = Body(framing), size
        elif type(framing) is Length and framing.size_bytes <= size - end:
            taken = end + framing.size_bytes
        elif framing is not NO_BODY:
            self._body = Body(framing)
            try:
                taken = end + self._body.take(data[end:])
            except BadHead as bad:
                self._broke(bad.message)
                return
        if is_last:
            client.write(answer.render(closes=True) + data[end:taken])
        elif answer.is_as_it_came:
            client.write(data if taken == size else data[:taken])
        else:
            client.write(self._rendered + data[end:taken])
        if self._body is None or self._body.is_complete:
            self._finish(client, has_more=taken < size)
        else:
            self._hearing = ResponseState.BODY

    def _take_body(self, data: bytes) -> None:
        client, body = self._client, self._body
        assert client is not None
        assert body is not None
        try:
            taken = body.take(data)
        except BadHead as bad:
            self._broke(bad.message)
            return
        client.write(data if taken == len(data) else data[:taken])
        if body.is_complete:
            self._finish(client, has_more=taken < len(data))

    def _finish(self, client: "ClientConnection", *, has_more: bool) -> None:
        answer = self._answer
        assert answer is not None
        self._client, self._body = None, None
        if has_more or answer.closes or not client.has_sent_all or self.is_choked or self.transport.is_closing():
            self._hearing = ResponseState.OVER
            self.transport.abort()
        else:
            self._hearing = ResponseState.NOTHING
            self.pool.give(self, answer.keeps_s, self._heard_at)
        client.end_answer()

    def _ended(self, *, whole: bool, why: str) -> None:
        """The connection has ended, in any state. May be called again."""
        client, hearing = self._client, self._hearing
        self._client = None
        self._hearing = ResponseState.OVER
        if hearing is ResponseState.NOTHING:
            self.pool.forget(self)
        if client is None:
            return
        if hearing is ResponseState.BODY:
            if whole and self._body is not None and self._body.may_end:
                client.end_answer()
            else:
                client.cut()
        elif self.is_reused and not self._has_begun:
            # The connection was closed before it got this request, so the request is sent on another one.
            client.ask_again()
        else:
            client.no_answer(why)

    def _broke(self, why: str) -> None:
        """The data is not a valid response, or no longer one."""
        client = self._client
        self.abandon()
        if client is None:
            return
        if client.has_begun_answer:
            client.cut()
        else:
            client.no_answer(why)

    def _hear_last_words(self) -> None:
        connected = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError), connected.dup() as copy:
            copy.setblocking(False)
            for _ in range(_LAST_WORDS_BYTES // MOST_HELD_BYTES):
                data = copy.recv(MOST_HELD_BYTES)
                if not data or self._client is None:
                    break
                self.data_received(data)


def close_write_half(transport: asyncio.Transport) -> None:
    """Close our half. An error is ignored: if the other side has disconnected, `connection_lost` follows soon."""
    with contextlib.suppress(OSError, RuntimeError):
        transport.write_eof()


def reset(transport: asyncio.Transport) -> None:
    """Close so that the other side notices that the data is incomplete."""
    connected = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError), connected.dup() as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
