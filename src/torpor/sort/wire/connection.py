"""Call a master or a worker."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

import grpc

from torpor.sort.errors import PeerUnavailable
from torpor.sort.wire.calls import CallKind, Method
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.failures import to_sort_error
from torpor.sort.wire.guard import auth_metadata
from torpor.sort.wire.transport import channel_options

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Connection:
    """A connection to one address with the job's token. It connects when it is used, and again when it was lost."""

    def __init__(self, address: str, join: JoinCredentials, *, data: bool = False) -> None:
        self.address = address
        self._introduction = auth_metadata(join)
        options = channel_options(data=data)
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(join.certificate.encode()), options)
            if join.tls
            else grpc.insecure_channel(address, options)
        )

    def call(self, method: Method[Request, Answer], request: Request, timeout_s: float) -> Answer:
        """Raises the error that the other side raised, or PeerUnavailable."""
        if method.kind is not CallKind.CALL:
            raise ValueError(f"{method.path} is a stream")
        serialized = method.request.to_bytes(request)
        try:
            invoke: Callable[..., bytes] = self._channel.unary_unary(method.path)
            answer = invoke(serialized, timeout=timeout_s, metadata=self._introduction)
        except grpc.RpcError as error:
            raise to_sort_error(error, self.address) from error
        except ValueError as error:
            raise _closed(self.address) from error
        return method.answer.from_bytes(answer)

    def stream(self, method: Method[Any, Answer], messages: Iterator[bytes], timeout_s: float | None) -> "CallStream[Answer]":
        """Begin to send. A thread of gRPC takes the messages as fast as the other side reads them."""
        try:
            begin: grpc.StreamUnaryMultiCallable[bytes, bytes] = self._channel.stream_unary(method.path)
            future = begin.future(messages, timeout=timeout_s, metadata=self._introduction)
        except ValueError as error:
            raise _closed(self.address) from error
        return CallStream(self.address, method, future)

    def close(self) -> None:
        """Also ends calls that are in progress."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class CallStream(Generic[Answer]):
    """Messages that are being sent, and their answer."""

    def __init__(self, address: str, method: Method[Any, Answer], future: Any) -> None:
        self._address = address
        self._method = method
        self._future = future

    def when_over(self, act: Callable[[], None]) -> None:
        """Call `act` when the stream is answered, refused, broken or canceled; perhaps at once."""
        self._future.add_done_callback(lambda future: act())

    def cancel(self) -> None:
        self._future.cancel()

    def answer(self) -> Answer:
        """Wait for the answer. Raises the error that the other side raised, or PeerUnavailable."""
        try:
            serialized: bytes = self._future.result()
        except grpc.FutureCancelledError as error:
            raise _closed(self._address) from error
        except grpc.RpcError as error:
            raise to_sort_error(error, self._address) from error
        return self._method.answer.from_bytes(serialized)


def _closed(address: str) -> PeerUnavailable:
    # For a closed channel gRPC raises a bare ValueError.
    return PeerUnavailable(f"the connection to {address} has been closed")
