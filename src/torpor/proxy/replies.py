"""Render the proxy's own responses as bytes."""

import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from torpor import metrics
from torpor.proxy.gate import Reply
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import END, BadHead, RequestHead

_AS_TEXT = (
    (b"Content-Type", b"text/plain; charset=utf-8"),
    (b"Cache-Control", b"no-store"),
    (b"X-Content-Type-Options", b"nosniff"),
)
_RETRY_SOON = (b"Retry-After", b"1")
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


def text_reply(status: HTTPStatus, outcome: RequestOutcome, words: str, *more: tuple[bytes, bytes]) -> Reply:
    return Reply(status, outcome, (*_AS_TEXT, *more), words.encode() + b"\n")


BROKEN = text_reply(HTTPStatus.INTERNAL_SERVER_ERROR, RequestOutcome.CANNOT_TELL, "Torpor could not handle this request.")
TOO_MANY = text_reply(
    HTTPStatus.SERVICE_UNAVAILABLE,
    RequestOutcome.TOO_MANY,
    "Too many connections are waiting to send their request.",
    _RETRY_SOON,
)
FULL = text_reply(
    HTTPStatus.SERVICE_UNAVAILABLE, RequestOutcome.TOO_MANY, "Torpor has reached its limit of open connections.", _RETRY_SOON
)
STOPPING = text_reply(HTTPStatus.SERVICE_UNAVAILABLE, RequestOutcome.CANNOT_TELL, "This proxy is stopping.", _RETRY_SOON)
SLOW_BODY = BadHead(HTTPStatus.REQUEST_TIMEOUT, "The request's body did not arrive in time.")


def refused(bad: BadHead) -> Reply:
    return text_reply(HTTPStatus(bad.status), RequestOutcome.BAD_REQUEST, bad.message)


def render(reply: Reply, head: RequestHead | None, *, closes: bool) -> bytes:
    """The bytes of a response to the request with this head, if it had one; `closes`: it is the last on its connection."""
    lines = [b"HTTP/1.1 %d %s" % (reply.status, _reason(reply.status)), *(b"%s: %s" % header for header in reply.headers)]
    has_body = reply.status not in _WITHOUT_BODY
    if has_body:
        lines.append(b"Content-Length: %d" % len(reply.body))
    lines.append(_date(int(time.time())))
    if closes:
        lines.append(b"Connection: close")
    body = reply.body if has_body and (head is None or head.method != b"HEAD") else b""
    return b"\r\n".join(lines) + END + body


def count(outcome: RequestOutcome) -> None:
    _COUNTED[outcome.value]()


# Looked up once, because this runs for every request.
_COUNTED: Mapping[str, Callable[[], None]] = {
    outcome.value: metrics.proxy_requests_total.labels(outcome=outcome.value).inc for outcome in RequestOutcome
}


@lru_cache(maxsize=64)
def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""


@lru_cache(maxsize=1)
def _date(at_s: int) -> bytes:
    return b"Date: " + formatdate(at_s, usegmt=True).encode("ascii")
