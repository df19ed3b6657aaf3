"""Let only callers with the job's token pass."""

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from torpor.sort.errors import SortRefused
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.failures import STRANGER, abort_call

HEADER = "authorization"

if TYPE_CHECKING:
    # It has type parameters only in its stubs.
    Handler = grpc.RpcMethodHandler[Any, Any]


def auth_metadata(join: JoinCredentials) -> tuple[tuple[str, str], ...]:
    """The metadata of every call."""
    return ((HEADER, f"Bearer {join.token}"),)


class TokenInterceptor(grpc.ServerInterceptor):
    """Let calls with the token pass. GetStatus also passes without it if only this machine can call."""

    def __init__(self, join: JoinCredentials, *, open_status: bool) -> None:
        self._expected = f"Bearer {join.token}".encode()
        self._open_status = open_status

    def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Handler | None]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        if self._knows(handler_call_details) or (
            self._open_status and handler_call_details.method.rpartition("/")[2] == "GetStatus"
        ):
            return continuation(handler_call_details)
        return DENIED

    def _knows(self, details: grpc.HandlerCallDetails) -> bool:
        given = [value for key, value in details.invocation_metadata or () if key == HEADER]
        if len(given) != 1:
            return False
        token = given[0].encode() if isinstance(given[0], str) else given[0]
        return hmac.compare_digest(token, self._expected)


def _deny(messages: object, context: grpc.ServicerContext) -> bytes:
    abort_call(
        context,
        SortRefused(STRANGER, "this call does not have the job's token, which is in the master's join file"),
    )


# A streaming handler for every call, so that no message of an unknown caller is read first.
DENIED: "Handler" = grpc.stream_unary_rpc_method_handler(_deny)
