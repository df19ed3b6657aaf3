"""Parse the head of a response and decide which headers go back to the client.

Any program may have written it, so it is parsed less strictly than a request. The lines that go to the client are unambiguous,
because further responses follow on its connection, and they never set cookies or headers of the platform.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from torpor.proxy.request_head import (
    CHUNKED,
    END,
    MOST_HEADERS,
    NO_BODY,
    PLATFORM_COOKIES,
    TEXT,
    UNTIL_CLOSE,
    BadHead,
    Framing,
    HeaderKind,
    Length,
    header_tokens,
    name_of,
    text_lines,
)

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_MOST_DIGITS = 18
_TIMEOUT = re.compile(rb"(?:^|[,; \t])timeout=([0-9]{1,6})", re.IGNORECASE)
_NOT_FOR_CONNECTION_TO_NAME = frozenset({b"content-length", b"transfer-encoding", b"close", b"keep-alive"})
_ON_ITS_END = frozenset({b"content-length", b"transfer-encoding"})
SWITCHING = 101


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The head of one response."""

    status: int
    lines: tuple[bytes, ...]
    """The lines that go back to the client."""
    is_as_it_came: bool
    """Whether these are all received lines, byte for byte."""
    coding: bytes
    """The transfer coding: chunked, or one that ends with the connection. Empty if there is none."""
    length: int | None
    closes: bool
    """Whether the connection closes after this response."""
    keeps_s: int | None
    """How long the connection may be reused, if the response says so."""
    is_event_stream: bool
    """Whether it is an event stream, whose keep-alive messages do not count as use."""

    @property
    def is_interim(self) -> bool:
        """Whether the final response follows later (100 Continue, 103 Early Hints)."""
        return self.status < 200 and self.status != SWITCHING

    def framing(self, method: bytes) -> Framing:
        """How long the body is for a request with this method."""
        if method == b"HEAD" or self.status in (204, 304):
            return NO_BODY
        if self.coding:
            return CHUNKED if self.coding == b"chunked" else UNTIL_CLOSE
        if self.length is None:
            return UNTIL_CLOSE
        return Length(self.length) if self.length else NO_BODY

    def render(self, *, closes: bool = False) -> bytes:
        """The bytes for the client; `closes`: it is the last response on its connection."""
        return b"\r\n".join((*self.lines, b"Connection: close") if closes else self.lines) + END


def response_head_end(part: bytes, begin: int = 0) -> int | None:
    """The index where the head that begins at `begin` ends; None while it is incomplete."""
    end = part.find(b"\n\r\n", begin)
    bare = part.find(b"\n\n", begin, end + 1 if end >= 0 else len(part))
    if bare >= 0:
        return bare + 2
    return end + 3 if end >= 0 else None


def parse_response_head(raw: bytes, *, from_workspace: bool) -> ResponseHead:
    """Parse a head that ends in an empty line; raises BadHead if it is malformed."""
    lines = text_lines(raw)
    is_as_it_came = lines is not None
    if lines is None:
        lines = _odd_lines(raw)
    first = lines[0]
    begun = _STATUS_LINE.fullmatch(first)
    if begun is None:
        raise BadHead(502, "The response is not HTTP.")
    status = int(begun[1])
    closes, keeps_s, length, coding, is_event_stream = False, None, None, b"", False
    if first.startswith(b"HTTP/1.0"):
        # The version describes our own connection to the client.
        closes, is_as_it_came, first = True, False, b"HTTP/1.1" + first[8:]
    kept = [first]
    named: frozenset[bytes] = frozenset()
    for line in lines[1:]:
        name, found, value = line.partition(b":")
        meaning = name_of(name) if found else None
        if meaning is None:
            raise BadHead(502, "The response has a header line that is not NAME: VALUE.")
        part = meaning.part
        if part is HeaderKind.REST:
            kept.append(line)
            continue
        value = value.strip(b" \t")
        match part:
            case HeaderKind.CONTENT_TYPE:
                is_event_stream = value[:17].lower() == b"text/event-stream"
            case HeaderKind.LENGTH:
                if not value.isdigit() or len(value) > _MOST_DIGITS or length not in (None, int(value)):
                    raise BadHead(502, "The response has an invalid Content-Length.")
                if length is not None:
                    is_as_it_came = False
                    continue
                length = int(value)
            case HeaderKind.CODING:
                # For any other value two parsers could find two different ends, or one could find none.
                if (b"chunked" in value.lower() and (coding or value.lower() != b"chunked")) or coding == b"chunked":
                    raise BadHead(502, "The response has an ambiguous Transfer-Encoding.")
                coding = value.lower() or b"?"
            case HeaderKind.CONNECTION:
                said = _said_of_connection(value)
                closes = b"close" in said or (closes and b"keep-alive" not in said)
                named |= said - _NOT_FOR_CONNECTION_TO_NAME
                if status != SWITCHING:
                    is_as_it_came = False
                    continue
            case HeaderKind.UPGRADE if status == SWITCHING:
                pass
            case HeaderKind.HOP | HeaderKind.UPGRADE:
                if meaning.lower == b"keep-alive" and (told := _TIMEOUT.search(value)):
                    keeps_s = int(told[1])
                is_as_it_came = False
                continue
            case HeaderKind.CLEAR_SITE_DATA if from_workspace:
                # It would clear the cookies of all hosts of the domain, including those of the platform.
                is_as_it_came = False
                continue
            case HeaderKind.SET_COOKIE if from_workspace:
                cookie = own_cookie(value)
                if cookie != value:
                    is_as_it_came = False
                    if cookie is None:
                        continue
                    line = b"%s: %s" % (name, cookie)
        kept.append(line)
    answer = ResponseHead(status, tuple(kept), is_as_it_came, coding, length, closes, keeps_s, is_event_stream)
    gone = set() if status == SWITCHING else set(named)
    # Exactly one header says where the body ends, and none does if there is no body.
    if status == 204 or answer.is_interim:
        gone |= _ON_ITS_END if coding or length is not None else set()
    elif coding and length is not None:
        gone.add(b"content-length")
    return _without(answer, gone) if gone else answer


@lru_cache(maxsize=64)
def _said_of_connection(value: bytes) -> frozenset[bytes]:
    return frozenset(header_tokens((value,)))


def _odd_lines(raw: bytes) -> list[bytes]:
    """The lines of a program that ends them in a bare LF. No other deviation is accepted."""
    lines = [line.removesuffix(b"\r") for line in raw.rstrip(b"\r\n").split(b"\n")]
    if any(line.translate(None, TEXT) for line in lines) or len(lines) > MOST_HEADERS:
        raise BadHead(502, "The response head has control characters, or does not end in an empty line.")
    return lines


def _without(answer: ResponseHead, names: set[bytes]) -> ResponseHead:
    first, *lines = answer.lines
    kept = [line for line in lines if line.partition(b":")[0].lower() not in names]
    return ResponseHead(
        answer.status,
        (first, *kept),
        False,
        answer.coding,
        answer.length,
        answer.closes,
        answer.keeps_s,
        answer.is_event_stream,
    )


def own_cookie(value: bytes) -> bytes | None:
    """The cookie restricted to the workspace's own host; None if it would overwrite a cookie of the platform.

    Browsers send a cookie without a name as its bare value, which may look like any other cookie.
    """
    pair, *attributes = value.split(b";")
    if pair.lstrip(b"= \t").partition(b"=")[0].strip(b" \t") in PLATFORM_COOKIES:
        return None
    kept = [part for part in attributes if part.partition(b"=")[0].strip(b" \t").lower() != b"domain"]
    return value if len(kept) == len(attributes) else b";".join((pair, *kept))
