"""Send one part from its sender to its receiver."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import grpc

from torpor.sort.errors import PeerUnavailable, SortFailed, SortRefused
from torpor.sort.machine.records import PartHeader
from torpor.sort.wire.calls import SHUFFLE_DATA, CallHandler
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.failures import run_call
from torpor.sort.wire.requests import PartAcknowledged

AHEAD = 2
"""Blocks that are made while another is being sent."""

Accept = Callable[[PartHeader, Iterator[bytes]], bool]
"""Takes a part; False if it was complete before. It may return before the blocks have ended; the rest is not read."""


def send_part(
    connection: Connection, header: PartHeader, blocks: Iterable[bytes | memoryview], timeout_s: float | None = None
) -> bool:
    """True if the receiver took the part, False if it had it before. Raises the error that the receiver raised, or
    PeerUnavailable.

    The blocks are read in the calling thread only, and none after this returns, so their buffer may be used again.
    """
    feed = _MessageQueue()
    feed.put(SHUFFLE_DATA.request.to_bytes(header))
    stream = connection.stream(SHUFFLE_DATA, feed, timeout_s)
    stream.when_over(feed.close)
    try:
        for block in blocks:
            if not feed.put(bytes(block)):
                break
        else:
            feed.end()
    except BaseException:
        # Cancel before the queue ends: an incomplete part must not look like a complete one.
        stream.cancel()
        feed.close()
        raise
    return stream.answer().taken


def part_receiver(accept: Accept) -> CallHandler:
    """The handler of ShuffleData on a data address."""

    def behave(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        def act() -> bytes:
            first = _next(messages)
            if first is None:
                raise PeerUnavailable("a part's stream ended before its header")
            header = SHUFFLE_DATA.request.from_bytes(first)
            return SHUFFLE_DATA.answer.to_bytes(PartAcknowledged(accept(header, _announced(header, messages))))

        return run_call(context, act)

    return CallHandler(SHUFFLE_DATA, grpc.stream_unary_rpc_method_handler(behave))


def refuse_if_not_for(header: PartHeader, job: str, receiver: int) -> None:
    """Refuse a part for another job or worker: the address may belong to another process by now."""
    if header.job != job:
        raise SortRefused("other_job", f"this is a worker of job {job}, not of {header.job}")
    if header.receiver != receiver:
        raise SortRefused("other_worker", f"this is worker {receiver}, not {header.receiver}")


def _announced(header: PartHeader, messages: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks. A stream that ends before all announced bytes have come raises an error."""
    remaining = header.proof.size
    what = f"partition {header.partition} from worker {header.sender}"
    while (block := _next(messages)) is not None:
        remaining -= len(block)
        if remaining < 0:
            raise SortFailed(f"the part of {what} is longer than the {header.proof.size} bytes that were announced")
        yield block
    if remaining:
        raise PeerUnavailable(f"the part of {what} ended {remaining} bytes too early")


def _next(messages: Iterator[bytes]) -> bytes | None:
    try:
        return next(messages, None)
    except grpc.RpcError as error:
        raise PeerUnavailable("the sender of a part has disconnected") from error


class _MessageQueue(Iterator[bytes]):
    """Pass messages from the thread that makes them to the thread of gRPC that sends them, a few ahead."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._is_ended = False
        self._is_closed = False

    def put(self, message: bytes) -> bool:
        """Wait for room. False if the message will not be taken any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._messages) < AHEAD)
            if self._is_closed:
                return False
            self._messages.append(message)
            self._changed.notify_all()
            return True

    def end(self) -> None:
        """No more messages follow."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """No more messages are taken."""
        with self._changed:
            self._is_closed = True
            self._messages.clear()
            self._changed.notify_all()

    def __next__(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_ended or bool(self._messages))
            if not self._messages:
                raise StopIteration
            message = self._messages.popleft()
            self._changed.notify_all()
            return message
