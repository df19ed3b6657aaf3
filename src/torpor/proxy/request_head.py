"""Parse the head of a request strictly and build the head that is forwarded.

A head that two programs could parse in two ways is refused, because the second program would see another request than the one
that was judged. An accepted head keeps its raw target, and its headers keep their order, repetition and case.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

from torpor.domain.access import TOKEN_PREFIX
from torpor.domain.errors import Refused

LARGEST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
END = b"\r\n\r\n"

PLATFORM_COOKIES = frozenset(
    {
        b"torpor_session",
        b"torpor_door",
        b"torpor_knock",
        b"torpor_workspace",
        b"__Host-torpor_session",
        b"__Host-torpor_door",
        b"__Host-torpor_knock",
        b"__Host-torpor_workspace",
    }
)
TOKEN_HEADER = b"x-torpor-token"

Header: TypeAlias = tuple[bytes, bytes]

_VISIBLE = bytes((*range(0x21, 0x7F), *range(0x80, 0x100)))
TEXT = _VISIBLE + b" \t"
# The bytes that remain of a head when all text is removed.
_LINE_ENDS = b"\r\n" * (MOST_HEADERS + 2)
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_VERSIONS = frozenset({b"HTTP/1.1", b"HTTP/1.0"})
_OTHER_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_ORIGIN = re.compile(rb"(https?)://([^/]+)", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"([a-z][a-z0-9+.-]*)://([^/?#]*)(.*)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]+")
_MOST_DIGITS = 18
_NO_HEADER = "A header line is not NAME: VALUE."
_PLATFORM_TOKEN = re.compile(rb"bearer[ \t]+" + TOKEN_PREFIX.encode() + rb".*", re.IGNORECASE | re.DOTALL)
# NUL, LF without CR, CR without LF. A CR at the very end may still get its LF.
_NEVER = re.compile(rb"\x00|(?<!\r)\n|\r(?=[^\n])")

_LONGEST_NAME_BYTES = 256

DEFAULT_PORT = {b"http": 80, b"https": 443}

# A client cannot remove these by naming them in Connection: without them it would be another request.
NOT_FOR_CONNECTION_TO_NAME = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"cookie", b"authorization", b"origin"}
)
_NOTHING: frozenset[bytes] = frozenset()
# Values of Connection that name no header, or one that is handled separately.
_ABOUT_ITSELF = frozenset({b"keep-alive", b"close", b"upgrade", b"te"})
# Through h2c a client could send further requests on the connection that the proxy does not parse.
UPGRADES_REFUSED = frozenset({b"h2c"})


class BadHead(Refused):
    """The head is refused; `status` is the status of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("bad_head", message)
        self.status = status


@dataclass(frozen=True, slots=True)
class NoBody:
    """The message has no body."""


@dataclass(frozen=True, slots=True)
class Length:
    """The body has this many bytes."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """The body is chunked."""


@dataclass(frozen=True, slots=True)
class UntilClose:
    """The body ends with the connection. Only responses do so."""


Framing: TypeAlias = NoBody | Length | Chunked | UntilClose
NO_BODY, CHUNKED, UNTIL_CLOSE = NoBody(), Chunked(), UntilClose()


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class HeaderKind(Enum):
    """The meaning of a header for the proxy."""

    REST = auto()
    """Forwarded without change."""
    HOP = auto()
    """Belongs to one connection and is not forwarded. (Transfer-Encoding is not one of these: the body is forwarded as it
    came.)"""
    CONNECTION = auto()
    UPGRADE = auto()
    TRAILERS = auto()
    """TE: trailers are forwarded, so the header may be."""
    ORIGIN_OF_REQUEST = auto()
    """The origin of the request, which only the proxy knows."""
    COOKIE = auto()
    AUTHORIZATION = auto()
    TOKEN = auto()
    """The platform's own header for API tokens."""
    LENGTH = auto()
    CODING = auto()
    SET_COOKIE = auto()
    CLEAR_SITE_DATA = auto()
    CONTENT_TYPE = auto()


_PARTS: Mapping[bytes, HeaderKind] = {
    b"connection": HeaderKind.CONNECTION,
    b"upgrade": HeaderKind.UPGRADE,
    b"te": HeaderKind.TRAILERS,
    b"keep-alive": HeaderKind.HOP,
    b"proxy-connection": HeaderKind.HOP,
    b"proxy-authenticate": HeaderKind.HOP,
    b"proxy-authorization": HeaderKind.HOP,
    b"forwarded": HeaderKind.ORIGIN_OF_REQUEST,
    b"x-real-ip": HeaderKind.ORIGIN_OF_REQUEST,
    b"cookie": HeaderKind.COOKIE,
    b"authorization": HeaderKind.AUTHORIZATION,
    TOKEN_HEADER: HeaderKind.TOKEN,
    b"content-length": HeaderKind.LENGTH,
    b"transfer-encoding": HeaderKind.CODING,
    b"set-cookie": HeaderKind.SET_COOKIE,
    b"clear-site-data": HeaderKind.CLEAR_SITE_DATA,
    b"content-type": HeaderKind.CONTENT_TYPE,
}
# A CGI-like program reads X_Forwarded_For and X-Forwarded-For as the same name.
_IN_BOTH_SPELLINGS = frozenset({HeaderKind.ORIGIN_OF_REQUEST, HeaderKind.TOKEN})
# A program might take a trailer for a header, which the gate has not judged.
_NEVER_IN_A_TRAILER = frozenset(HeaderKind) - {HeaderKind.REST, HeaderKind.CONTENT_TYPE}


@dataclass(frozen=True, slots=True)
class HeaderName:
    lower: bytes
    part: HeaderKind


@lru_cache(maxsize=4096)
def name_of(name: bytes) -> HeaderName | None:
    """The meaning of a header name; None if the name is malformed. Cached, because the same few hundred names repeat."""
    if len(name) > _LONGEST_NAME_BYTES:
        # Raised, so that the name is not cached.
        raise BadHead(431, f"The name of a header is longer than {_LONGEST_NAME_BYTES} bytes.")
    if not name or name.translate(None, _TOKEN):
        return None
    lower = name.lower()
    dashed = lower.replace(b"_", b"-")
    if dashed.startswith(b"x-forwarded-"):
        return HeaderName(lower, HeaderKind.ORIGIN_OF_REQUEST)
    part = _PARTS.get(dashed, HeaderKind.REST)
    return HeaderName(lower, part if lower == dashed or part in _IN_BOTH_SPELLINGS else HeaderKind.REST)


def is_trailer(line: bytes) -> bool:
    """Whether this line may follow a body."""
    name, found, value = line.partition(b":")
    meaning = name_of(name)
    return bool(
        found
        and meaning is not None
        and meaning.part not in _NEVER_IN_A_TRAILER
        and meaning.lower not in NOT_FOR_CONNECTION_TO_NAME
        and not value.translate(None, TEXT)
    )


# ── the head ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_SHOWN = (b"host", b"cookie", b"authorization", TOKEN_HEADER, b"accept", b"origin", b"sec-fetch-site")
# For longer values only the digest is kept: a client may send tens of kilobytes, different ones each time.
_LONGEST_SHOWN = 2_000

HeadCacheKey: TypeAlias = tuple[tuple[bytes, ...], ...] | bytes
"""The values, or their digest."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: bytes
    target: bytes
    version: bytes
    headers: tuple[Header, ...]
    _by_name: dict[bytes, tuple[bytes, ...]] = field(init=False, repr=False, compare=False)
    _parts: tuple[HeaderKind, ...] = field(init=False, repr=False, compare=False)
    _shown: HeadCacheKey | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        by_name: dict[bytes, tuple[bytes, ...]] = {}
        parts = []
        for name, value in self.headers:
            meaning = name_of(name)
            if meaning is None:
                raise BadHead(400, _NO_HEADER)
            lower = meaning.lower
            parts.append(meaning.part)
            by_name[lower] = (*by_name[lower], value) if lower in by_name else (value,)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_parts", tuple(parts))

    @property
    def parts(self) -> tuple[HeaderKind, ...]:
        """The kind of each header."""
        return self._parts

    def values(self, name: bytes) -> tuple[bytes, ...]:
        """All values of this header (named in lower case), in order."""
        return self._by_name.get(name, ())

    @property
    def shown(self) -> HeadCacheKey:
        """The headers that tell who sends the request and how; computed once, because the same head is often judged again."""
        shown = self._shown
        if shown is None:
            shown = tuple(map(self.values, _SHOWN))
            if sum(map(len, chain.from_iterable(shown))) > _LONGEST_SHOWN:
                shown = hashlib.sha256(repr(shown).encode()).digest()
            object.__setattr__(self, "_shown", shown)
        return shown

    @property
    def host(self) -> str:
        """In lower case, without the port."""
        return _host_and_port(self._by_name[b"host"][0])[0]

    @property
    def framing(self) -> Framing:
        """How long the body is."""
        if b"transfer-encoding" in self._by_name:
            return CHUNKED
        lengths = self._by_name.get(b"content-length")
        return Length(size) if lengths and (size := int(lengths[0])) else NO_BODY

    @property
    def closes(self) -> bool:
        """Whether the connection closes after the response."""
        return self.version != b"HTTP/1.1" or (
            b"connection" in self._by_name and b"close" in header_tokens(self._by_name[b"connection"])
        )

    @property
    def is_upgrade(self) -> bool:
        """Whether it asks for an upgrade to another protocol that may pass."""
        if b"upgrade" not in self._by_name:
            return False
        wanted = set(header_tokens(self.values(b"upgrade")))
        return (
            bool(wanted)
            and not wanted & UPGRADES_REFUSED
            and b"upgrade" in header_tokens(self.values(b"connection"))
            and self.version == b"HTTP/1.1"
            and self.framing == NO_BODY
        )

    @property
    def is_websocket(self) -> bool:
        return self.is_upgrade and set(header_tokens(self.values(b"upgrade"))) == {b"websocket"}

    @property
    def is_cross_site(self) -> bool:
        """Whether a page of another origin sent it. Programs send no Origin."""
        origins = self.values(b"origin")
        return bool(origins) and not (len(origins) == 1 and _same_place(origins[0], self.values(b"host")[0]))

    @property
    def wants_html(self) -> bool:
        return b"text/html" in b",".join(self.values(b"accept")).lower()

    def towards(self, target: bytes) -> "RequestHead":
        """The same head with another target. It shares the values computed from its headers."""
        head = object.__new__(RequestHead)
        for name, value in (
            ("method", self.method),
            ("target", target),
            ("version", self.version),
            ("headers", self.headers),
            ("_by_name", self._by_name),
            ("_parts", self._parts),
            ("_shown", self._shown),
        ):
            object.__setattr__(head, name, value)
        return head

    def render(self) -> bytes:
        lines = [b"%s %s %s" % (self.method, self.target, self.version), *(b"%s: %s" % header for header in self.headers)]
        return b"\r\n".join(lines) + END


# ── parsing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def head_ends(part: bytes, searched: int = 0) -> int | None:
    """The index where the head ends; None while it is incomplete. `searched`: how many bytes were searched before.

    Raises BadHead as soon as the head cannot become valid, without waiting for its end.
    """
    found = part.find(END, max(0, searched - len(END) + 1))
    end = len(part) if found < 0 else found + len(END)
    if part and part[:1].translate(None, _TOKEN):
        raise BadHead(400, "This is not HTTP. This port uses plain HTTP: use an address with http://, not https://.")
    if _NEVER.search(part, max(0, searched - 1), end):
        raise BadHead(400, "The request's head has a line that does not end in CR LF, or a NUL.")
    if end > LARGEST_HEAD_BYTES:
        raise BadHead(431, f"The request's head is larger than {LARGEST_HEAD_BYTES} bytes.")
    return None if found < 0 else end


def parse(raw: bytes) -> RequestHead:
    """Parse a head that ends in an empty line; raises BadHead with the status of the response."""
    lines = text_lines(raw)
    if lines is None or len(raw) > LARGEST_HEAD_BYTES:
        # Slower, to find what is wrong.
        if head_ends(raw) != len(raw):
            raise BadHead(400, "The request's head does not end in an empty line.")
        if raw.count(b"\r\n") > MOST_HEADERS + 2:
            raise BadHead(431, f"The request has more than {MOST_HEADERS} headers.")
        raise BadHead(400, "The request's head has a control character in it.")
    method, target, version = _request_line(lines[0])
    parts = [line.partition(b":") for line in lines[1:]]
    headers = tuple([(name, value.strip(b" \t")) for name, colon, value in parts if colon])
    if len(headers) < len(parts):
        raise BadHead(400, _NO_HEADER)
    head = RequestHead(method, target, version, headers)
    if version not in _VERSIONS:
        raise BadHead(505, "Torpor supports HTTP/1.1 only.")
    hosts = head.values(b"host")
    if len(hosts) != 1:
        raise BadHead(400, f"A request has exactly one Host header; this one has {len(hosts)}.")
    _host_and_port(hosts[0])
    if not target.startswith(b"/") or method == b"CONNECT":
        head = _origin_form(head, hosts[0])
    return _one_length(head)


def parse_next(raw: bytes, last_raw: bytes, last: RequestHead) -> RequestHead | None:
    """The result of `parse` if only the target differs from the last head on this connection; else None."""
    end = raw.find(b"\r\n")
    if raw[end:] != last_raw[last_raw.find(b"\r\n") :]:
        return None
    before, behind = last.method + b" ", b" " + last.version
    target = raw[len(before) : end - len(behind)]
    if not target.startswith(b"/") or target.translate(None, _VISIBLE) or raw[:end] != before + target + behind:
        return None
    return last.towards(target)


def text_lines(raw: bytes) -> list[bytes] | None:
    """The lines of a head without the empty one, if it is text whose lines all end in CR LF; each step is one pass in C."""
    ends = raw.translate(None, TEXT)
    # The count is checked because a CR and an LF with text between them also remain as a pair.
    if not _LINE_ENDS.startswith(ends) or raw.count(b"\r\n") * 2 != len(ends) or raw.find(END) != len(raw) - len(END):
        return None
    return raw[: -len(END)].split(b"\r\n")


def _request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    parts = line.split(b" ")
    if len(parts) == 3:
        method, target, version = parts
        if (
            target
            and b"\t" not in target
            and (version in _VERSIONS or _OTHER_VERSION.fullmatch(version))
            and (method in _METHODS or (method and not method.translate(None, _TOKEN)))
        ):
            return method, target, version
    raise BadHead(400, "The request line is not METHOD TARGET HTTP/1.1.")


@lru_cache(maxsize=4096)
def _host_and_port(value: bytes) -> tuple[str, int | None]:
    match = _HOST.fullmatch(value) if len(value) <= _LONGEST_NAME_BYTES else None
    if match is None:
        raise BadHead(400, "The Host header is not a host name, with or without a port.")
    return match[1].lower().decode("ascii"), int(match[2]) if match[2] else None


def _origin_form(head: RequestHead, host: bytes) -> RequestHead:
    """The same request with the target in the form that servers expect: /path?query, or * for OPTIONS."""
    if head.method == b"CONNECT":
        raise BadHead(405, "Torpor is not a forward proxy: CONNECT is not supported.")
    if head.target == b"*" and head.method == b"OPTIONS":
        return head
    absolute = _ABSOLUTE.fullmatch(head.target)
    if absolute is None:
        raise BadHead(400, "The request's target is neither a path nor an http:// address.")
    scheme, authority, rest = absolute[1].lower(), absolute[2], absolute[3]
    if scheme != b"http" or _with_port(authority, 80) != _with_port(host, 80):
        raise BadHead(400, "The request's target names another host than its Host header.")
    return replace(head, target=rest if rest.startswith(b"/") else b"/" + rest)


def _with_port(host: bytes, default: int) -> tuple[str, int]:
    name, port = _host_and_port(host)
    return name, default if port is None else port


def _one_length(head: RequestHead) -> RequestHead:
    """The same head with exactly one header for the length of its body."""
    codings, lengths = head.values(b"transfer-encoding"), head.values(b"content-length")
    if not codings and not lengths:
        return head
    if codings and lengths:
        raise BadHead(400, "A request has a Content-Length or a Transfer-Encoding, not both.")
    if codings and head.version == b"HTTP/1.0":
        raise BadHead(400, "HTTP/1.0 has no Transfer-Encoding.")
    if codings and [coding.lower() for coding in codings] != [b"chunked"]:
        raise BadHead(501, "The only supported Transfer-Encoding is a single chunked.")
    if not all(_NUMBER.fullmatch(length) for length in lengths):
        raise BadHead(400, "The Content-Length is not a number.")
    if len(set(lengths)) > 1:
        raise BadHead(400, "The request has several Content-Lengths that differ.")
    if lengths and len(lengths[0]) > _MOST_DIGITS:
        raise BadHead(413, "The Content-Length is too large.")
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


def header_tokens(values: tuple[bytes, ...]) -> Iterator[bytes]:
    return (word.strip().lower() for value in values for word in value.split(b",") if word.strip())


# ── forwarding ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The origin of a request, as the upstream gets it."""

    client: str
    scheme: bytes = b"http"


def forwarded_head(head: RequestHead, origin: RequestOrigin, *, to_workspace: bool) -> bytes:
    """The head to forward: with the origin, for our own connection, and without the platform's secrets."""
    upgrade = head.is_upgrade
    connection = head.values(b"connection")
    named = frozenset(header_tokens(connection)) - NOT_FOR_CONNECTION_TO_NAME - _ABOUT_ITSELF if connection else _NOTHING
    lines = [b"%s %s %s" % (head.method, head.target, head.version)]
    for part, header in zip(head.parts, head.headers, strict=True):
        if part is HeaderKind.REST and not named:
            lines.append(b"%s: %s" % header)
        elif header[0].lower() not in named:
            lines += _pass_one_on(part, header, is_upgrade=upgrade, to_workspace=to_workspace)
    if head.version != b"HTTP/1.1":
        lines.append(b"Connection: close")
    lines.append(_FORWARDED % (origin.client.encode("ascii"), origin.scheme, head.values(b"host")[0]))
    return b"\r\n".join(lines)


def next_forwarded_head(message: bytes, head: RequestHead) -> bytes:
    """The result of `forwarded_head` if `message` was the last one and only the target differs."""
    return b"%s %s %s%s" % (head.method, head.target, head.version, message[message.index(b"\r\n") :])


def _pass_one_on(part: HeaderKind, header: Header, *, is_upgrade: bool, to_workspace: bool) -> tuple[bytes, ...]:
    """The lines that are forwarded for one header."""
    name, value = header
    match part:
        case HeaderKind.HOP | HeaderKind.ORIGIN_OF_REQUEST | HeaderKind.CONNECTION:
            return ()
        case HeaderKind.UPGRADE:
            # The other values of the client's Connection header are about its own connection.
            return (b"Connection: Upgrade", b"%s: %s" % header) if is_upgrade else ()
        case HeaderKind.TRAILERS:
            return (b"Connection: TE", b"TE: trailers") if not is_upgrade and b"trailers" in header_tokens((value,)) else ()
        case HeaderKind.COOKIE if to_workspace:
            value = _without_ours(value)
            return (b"%s: %s" % (name, value),) if value else ()
        case HeaderKind.AUTHORIZATION if to_workspace and _PLATFORM_TOKEN.fullmatch(value):
            return ()
        case HeaderKind.TOKEN if to_workspace:
            return ()
        case _:
            return (b"%s: %s" % header,)


_FORWARDED = b"X-Forwarded-For: %s\r\nX-Forwarded-Proto: %s\r\nX-Forwarded-Host: %s\r\n\r\n"


def _without_ours(value: bytes) -> bytes:
    """The value of a Cookie header without the platform's cookies; unchanged if there are none."""
    if b"torpor_" not in value:
        return value
    pairs = value.split(b";")
    kept = [pair for pair in pairs if pair.partition(b"=")[0].strip() not in PLATFORM_COOKIES]
    return value if len(kept) == len(pairs) else b";".join(kept).strip(b" \t;")
