"""Convert errors of the sort to gRPC statuses, and back to the same errors."""

import logging
from collections.abc import Callable, Mapping
from typing import Never, TypeVar

import grpc

from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortError, SortFailed, SortRefused, StaleAttempt
from torpor.sort.wire.conversion import text

CODE = "torpor-code"
STRANGER = "stranger"
UNKNOWN_CALL = "unknown_call"

MAX_DETAILS = 2_000
"""In bytes. Details travel in a header, where each byte that is not ASCII takes three, and a header beyond 8 KiB may be
dropped."""

# The status, and the code that goes with it; a refusal has its own code.
STATUS_OF: Mapping[type[SortError], tuple[grpc.StatusCode, str]] = {
    SortRefused: (grpc.StatusCode.FAILED_PRECONDITION, "refused"),
    PeerNotReady: (grpc.StatusCode.UNAVAILABLE, "not_yet"),
    PeerUnavailable: (grpc.StatusCode.UNAVAILABLE, "unavailable"),
    StaleAttempt: (grpc.StatusCode.ABORTED, "stale"),
    SortFailed: (grpc.StatusCode.INTERNAL, "broken"),
    SortError: (grpc.StatusCode.INTERNAL, "broken"),
}
ERROR_OF: Mapping[tuple[grpc.StatusCode, str], Callable[[str], SortError]] = {
    (grpc.StatusCode.UNAVAILABLE, "not_yet"): PeerNotReady,
    (grpc.StatusCode.UNAVAILABLE, "unavailable"): PeerUnavailable,
    (grpc.StatusCode.ABORTED, "stale"): StaleAttempt,
    (grpc.StatusCode.INTERNAL, "broken"): SortFailed,
}
REFUSALS = frozenset({grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAUTHENTICATED})

# Statuses of gRPC itself, without our code. All others are trouble in the network and are retried.
TRANSPORT_MEANS: Mapping[grpc.StatusCode, Callable[[str], SortError]] = {
    # Too many streams at once: the peer is there and busy.
    grpc.StatusCode.RESOURCE_EXHAUSTED: PeerNotReady,
    grpc.StatusCode.UNAUTHENTICATED: lambda message: SortRefused(STRANGER, message),
    grpc.StatusCode.UNIMPLEMENTED: lambda message: SortRefused(UNKNOWN_CALL, message),
}

Answer = TypeVar("Answer")
_log = logging.getLogger("torpor.sort.wire")


def abort_call(context: grpc.ServicerContext, error: SortError) -> Never:
    """End a call with this error."""
    status, code = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    if isinstance(error, SortRefused):
        code = error.code
        status = grpc.StatusCode.UNAUTHENTICATED if code == STRANGER else status
    context.set_trailing_metadata(((CODE, code),))
    context.abort(status, text(error.message).encode()[:MAX_DETAILS].decode(errors="ignore"))


def run_call(context: grpc.ServicerContext, act: Callable[[], Answer]) -> Answer:
    """The result of the function. An error that it raises is sent to the caller."""
    failure: SortError
    try:
        return act()
    except SortError as error:
        failure = error
    except Exception as error:
        _log.exception("a call failed")
        failure = SortFailed(f"a call failed: {type(error).__name__}: {error}")
    abort_call(context, failure)


def to_sort_error(error: grpc.RpcError, whom: str) -> SortError:
    """The error that the other side raised, or the error of the connection."""
    status, details = error.code(), error.details() or ""
    code = _code_of(error)
    if code is not None and (make := ERROR_OF.get((status, code))):
        return make(details)
    if code is not None and status in REFUSALS:
        return SortRefused(code, details)
    if "larger than max" in details:
        # gRPC has one status for a message that is too large and for a lack of resources; only the latter passes by waiting.
        return SortFailed(f"a message to or from {whom} is too large: {details}")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return SortRefused(
            STRANGER, f"{whom} does not have this job's certificate: another job listens there, or the join file is old"
        )
    return TRANSPORT_MEANS.get(status, PeerUnavailable)(f"{whom} cannot be reached: {status.name.lower()}: {details}")


def _code_of(error: grpc.RpcError) -> str | None:
    for metadatum in error.trailing_metadata() or ():
        if metadatum.key == CODE:
            return str(metadatum.value)
    return None
