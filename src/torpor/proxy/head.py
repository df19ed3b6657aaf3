"""What does a request's head say, and what of it goes on?

Read strictly: what two programs could read in two ways is refused, because the second would see another request than the
one that was judged here. What is accepted keeps its raw target, and its headers their order, repetition and case.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from torpor.domain.errors import Refused

LARGEST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
END = b"\r\n\r\n"

SESSION_COOKIE = b"torpor_session"
TOKEN_PREFIX = b"torpor_"

Header: TypeAlias = tuple[bytes, bytes]

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%s) ([\x21-\x7e\x80-\xff]+) (HTTP/[0-9]\.[0-9])" % _TOKEN)
_HEADER = re.compile(rb"(%s):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?)?)[ \t]*" % _TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: .*)?", re.DOTALL)
_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_ORIGIN = re.compile(rb"(https?)://([^/]+)", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"([a-z][a-z0-9+.-]*)://([^/?#]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PLATFORM_TOKEN = re.compile(rb"bearer[ \t]+" + TOKEN_PREFIX + rb".*", re.IGNORECASE | re.DOTALL)
# NUL, LF without CR, CR without LF. A CR at the very end may still get its LF.
_NEVER = re.compile(rb"\x00|(?<!\r)\n|\r(?=[^\n])")

DEFAULT_PORT = {b"http": 80, b"https": 443}

# They speak of one connection, and ours is another. Transfer-Encoding stays: the body goes on as it came.
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te", b"upgrade"}
)
# A client cannot have these removed by naming them in Connection: without them it would be another request.
NOT_FOR_CONNECTION_TO_NAME = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"cookie", b"authorization", b"origin"}
)
# Only we know where a request came from.
OURS_TO_SAY = frozenset({b"forwarded", b"x-real-ip"})
# Through h2c a client would speak past us: further requests on the connection would go unread.
UPGRADES_REFUSED = frozenset({b"h2c"})


class BadHead(Refused):
    """The head cannot be accepted; `status` is how it is answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("bad_head", message)
        self.status = status


@dataclass(frozen=True, slots=True)
class NoBody:
    """Nothing follows the head."""


@dataclass(frozen=True, slots=True)
class Length:
    """So many bytes follow."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """Chunks follow, the last of them empty."""


@dataclass(frozen=True, slots=True)
class UntilClose:
    """Whatever comes until the connection ends. Only answers do so."""


Framing: TypeAlias = NoBody | Length | Chunked | UntilClose


@dataclass(frozen=True, slots=True)
class Head:
    method: bytes
    target: bytes
    version: bytes
    headers: tuple[Header, ...]

    def values(self, name: bytes) -> tuple[bytes, ...]:
        """Every value of this header (named in lower case), in order."""
        return tuple(value for found, value in self.headers if found.lower() == name)

    @property
    def host(self) -> str:
        """In lower case, without the port."""
        return _host_and_port(self.values(b"host")[0])[0].decode("ascii")

    @property
    def framing(self) -> Framing:
        """How long the body is."""
        if self.values(b"transfer-encoding"):
            return Chunked()
        lengths = self.values(b"content-length")
        return Length(int(lengths[0])) if lengths and int(lengths[0]) else NoBody()

    @property
    def is_upgrade(self) -> bool:
        """Whether it asks for another protocol than HTTP, of a kind that may pass."""
        wanted = set(_words(self.values(b"upgrade")))
        return (
            bool(wanted)
            and not wanted & UPGRADES_REFUSED
            and b"upgrade" in _words(self.values(b"connection"))
            and self.version == b"HTTP/1.1"
            and self.framing == NoBody()
        )

    @property
    def is_websocket(self) -> bool:
        return self.is_upgrade and set(_words(self.values(b"upgrade"))) == {b"websocket"}

    @property
    def is_cross_site(self) -> bool:
        """Whether a page of another origin sent it. Programs send no Origin."""
        origins = self.values(b"origin")
        return bool(origins) and not (len(origins) == 1 and _same_place(origins[0], self.values(b"host")[0]))

    @property
    def wants_html(self) -> bool:
        return b"text/html" in b",".join(self.values(b"accept")).lower()

    def render(self) -> bytes:
        lines = [b"%s %s %s" % (self.method, self.target, self.version), *(b"%s: %s" % header for header in self.headers)]
        return b"\r\n".join(lines) + END


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def head_ends(part: bytes, searched: int = 0) -> int | None:
    """Where the head ends in what has arrived; None while it has not. `searched`: how much of it was looked at before.

    BadHead as soon as it can no longer become a good one: nobody has to wait for the end of it.
    """
    found = part.find(END, max(0, searched - len(END) + 1))
    end = len(part) if found < 0 else found + len(END)
    if part and not re.match(_TOKEN, part[:1]):
        raise BadHead(400, "This is not HTTP. Torpor speaks plain HTTP here: the address begins with http://, not https://.")
    if _NEVER.search(part, max(0, searched - 1), end):
        raise BadHead(400, "The request's head has a line that does not end in CR LF, or a NUL.")
    if end > LARGEST_HEAD_BYTES:
        raise BadHead(431, f"The request's head is larger than {LARGEST_HEAD_BYTES} bytes.")
    return None if found < 0 else end


def parse(raw: bytes) -> Head:
    """The head in these bytes, which end in an empty line; BadHead with the status to answer with."""
    if head_ends(raw) != len(raw):
        raise BadHead(400, "The request's head does not end where it should.")
    first, *lines = raw.removesuffix(END).split(b"\r\n")
    begun = _REQUEST_LINE.fullmatch(first)
    if begun is None:
        raise BadHead(400, "The request line is not METHOD TARGET HTTP/1.1.")
    if len(lines) > MOST_HEADERS:
        raise BadHead(431, f"The request has more than {MOST_HEADERS} headers.")
    head = Head(begun[1], begun[2], begun[3], tuple(map(_header, lines)))
    if head.version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead(505, "Torpor speaks HTTP/1.1 here.")
    hosts = head.values(b"host")
    if len(hosts) != 1:
        raise BadHead(400, f"A request has exactly one Host header; this one has {len(hosts)}.")
    _host_and_port(hosts[0])
    return _one_length(_origin_form(head, hosts[0]))


def _header(line: bytes) -> Header:
    if line[:1] in (b" ", b"\t"):
        raise BadHead(400, "A header is folded over several lines, which HTTP no longer allows.")
    match = _HEADER.fullmatch(line)
    if match is None:
        raise BadHead(400, "A header line is not NAME: VALUE.")
    return match[1], match[2]


def _host_and_port(value: bytes) -> tuple[bytes, int | None]:
    match = _HOST.fullmatch(value)
    if match is None:
        raise BadHead(400, "The Host header is not a host name, with or without a port.")
    return match[1].lower(), int(match[2]) if match[2] else None


def _origin_form(head: Head, host: bytes) -> Head:
    """The same request with the target as a server is asked: /path?query, or * for OPTIONS."""
    if head.method == b"CONNECT":
        raise BadHead(405, "Torpor is no proxy to elsewhere: CONNECT is not offered.")
    if head.target.startswith(b"/") or (head.target == b"*" and head.method == b"OPTIONS"):
        return head
    absolute = _ABSOLUTE.fullmatch(head.target)
    if absolute is None:
        raise BadHead(400, "The request's target is neither a path nor an http:// address.")
    scheme, authority, rest = absolute[1].lower(), absolute[2], absolute[3]
    if scheme != b"http" or _with_port(authority, 80) != _with_port(host, 80):
        raise BadHead(400, "The request's target names another host than its Host header.")
    return replace(head, target=rest if rest.startswith(b"/") else b"/" + rest)


def _with_port(host: bytes, default: int) -> tuple[bytes, int]:
    name, port = _host_and_port(host)
    return name, default if port is None else port


def _one_length(head: Head) -> Head:
    """The same head, with one word on how long its body is."""
    codings, lengths = head.values(b"transfer-encoding"), head.values(b"content-length")
    if codings and lengths:
        raise BadHead(400, "A request has a Content-Length or a Transfer-Encoding, not both.")
    if codings and head.version == b"HTTP/1.0":
        raise BadHead(400, "HTTP/1.0 knows no Transfer-Encoding.")
    if codings and [coding.lower() for coding in codings] != [b"chunked"]:
        raise BadHead(501, "The only Transfer-Encoding understood here is chunked, once.")
    if not all(_LENGTH.fullmatch(length) for length in lengths):
        raise BadHead(400, "The Content-Length is not a number.")
    if len(set(lengths)) > 1:
        raise BadHead(400, "The request has several Content-Lengths that differ.")
    if len(lengths) < 2:
        return head
    first = next(index for index, (name, _) in enumerate(head.headers) if name.lower() == b"content-length")
    kept = (header for at, header in enumerate(head.headers) if at == first or header[0].lower() != b"content-length")
    return replace(head, headers=tuple(kept))


def _same_place(origin: bytes, host: bytes) -> bool:
    match = _ORIGIN.fullmatch(origin)
    if match is None or not _HOST.fullmatch(match[2]):
        return False
    default = DEFAULT_PORT[match[1].lower()]
    return _with_port(match[2], default) == _with_port(host, default)


def _words(values: tuple[bytes, ...]) -> Iterator[bytes]:
    return (word.strip().lower() for value in values for word in value.split(b",") if word.strip())


# ── passing on ────────────────────────────────────────────────────────────────────────────────────────────────────────


def pass_on(head: Head, *, client: str, to_workspace: bool) -> Head:
    """The head as it goes on: one request on its connection, from whom we say; without the platform's secrets inside."""
    upgrade = head.is_upgrade
    named = frozenset() if upgrade else frozenset(_words(head.values(b"connection"))) - NOT_FOR_CONNECTION_TO_NAME
    kept: list[Header] = []
    for name, value in head.headers:
        lower = name.lower()
        if lower in (b"connection", b"upgrade") and upgrade:
            kept.append((name, value))
        elif lower in HOP_BY_HOP or lower in named or _is_ours_to_say(lower):
            continue
        elif to_workspace and lower == b"cookie":
            kept += _without_session(name, value)
        elif to_workspace and lower == b"authorization" and _PLATFORM_TOKEN.fullmatch(value):
            continue
        else:
            kept.append((name, value))
    kept += [
        (b"X-Forwarded-For", client.encode("ascii")),
        (b"X-Forwarded-Proto", b"http"),
        (b"X-Forwarded-Host", head.values(b"host")[0]),
    ]
    if not upgrade:
        kept.append((b"Connection", b"close"))
    return replace(head, headers=tuple(kept))


def _is_ours_to_say(lower: bytes) -> bool:
    # To a CGI-like program X_Forwarded_For and X-Forwarded-For are one name.
    dashed = lower.replace(b"_", b"-")
    return dashed in OURS_TO_SAY or dashed.startswith(b"x-forwarded-")


def _without_session(name: bytes, value: bytes) -> list[Header]:
    pairs = value.split(b";")
    kept = [pair for pair in pairs if pair.partition(b"=")[0].strip() != SESSION_COOKIE]
    if len(kept) == len(pairs):
        return [(name, value)]
    rest = b";".join(kept).strip(b" \t;")
    return [(name, rest)] if rest else []


# ── the answer ────────────────────────────────────────────────────────────────────────────────────────────────────────


_CHUNKED = re.compile(rb"transfer-encoding[ \t]*:(?:.*,)?[ \t]*chunked[ \t]*", re.IGNORECASE)
_CONTENT_LENGTH = re.compile(rb"content-length[ \t]*:[ \t]*([0-9]{1,18})[ \t]*", re.IGNORECASE)
_EVENT_STREAM = re.compile(rb"content-type[ \t]*:[ \t]*text/event-stream", re.IGNORECASE)
_ANSWER_ENDS = re.compile(rb"\r?\n\r?\n")
_ABOUT_THE_CONNECTION = re.compile(rb"(?:connection|keep-alive|proxy-connection)[ \t]*:", re.IGNORECASE)
_SETS_SESSION = re.compile(rb"set-cookie[ \t]*:[ \t]*" + SESSION_COOKIE + rb"[ \t]*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """How an answer begins. Its lines are passed on as they came; here only its end has to be known."""

    status: int
    lines: tuple[bytes, ...]

    @property
    def is_interim(self) -> bool:
        """Whether the real answer is still to come (100 Continue, 103 Early Hints)."""
        return 100 <= self.status < 200 and self.status != 101

    def framing(self, method: bytes) -> Framing:
        """How long its body is, when the request had this method."""
        if method == b"HEAD" or self.status in (204, 304):
            return NoBody()
        if any(_CHUNKED.fullmatch(line) for line in self.lines):
            return Chunked()
        lengths = {match[1] for line in self.lines if (match := _CONTENT_LENGTH.fullmatch(line))}
        if len(lengths) != 1:
            return UntilClose()
        length = int(lengths.pop())
        return Length(length) if length else NoBody()

    @property
    def is_event_stream(self) -> bool:
        """Whether it may go on for ever, with signs of life that are no use."""
        return any(_EVENT_STREAM.match(line) for line in self.lines)

    def render(self) -> bytes:
        return b"\r\n".join(self.lines) + END


def answer_ends(part: bytes) -> int | None:
    """Where the answer's head ends in what has arrived of it; None while it has not."""
    found = _ANSWER_ENDS.search(part)
    return found.end() if found else None


def parse_answer(raw: bytes) -> AnswerHead:
    """The head of an answer; BadHead when it is none."""
    lines = tuple(line.removesuffix(b"\r") for line in raw.rstrip(b"\r\n").split(b"\n"))
    begun = _STATUS_LINE.fullmatch(lines[0])
    if begun is None:
        raise BadHead(502, "What came back is not HTTP.")
    return AnswerHead(int(begun[1]), lines)


def pass_back(answer: AnswerHead, *, from_workspace: bool) -> AnswerHead:
    """The answer's head as the client gets it: the last on its connection, and from inside no cookie of the platform's."""
    lines = answer.lines
    if from_workspace:
        lines = tuple(line for line in lines if not _SETS_SESSION.match(line))
    if answer.is_interim or answer.status == 101:
        return replace(answer, lines=lines)
    kept = (line for line in lines if not _ABOUT_THE_CONNECTION.match(line))
    return replace(answer, lines=(*kept, b"Connection: close"))
