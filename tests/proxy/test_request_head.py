"""A request head is parsed strictly and forwarded correctly."""

from contextlib import suppress

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.proxy.body import Body
from torpor.proxy.request_head import (
    LARGEST_HEAD_BYTES,
    MOST_HEADERS,
    PLATFORM_COOKIES,
    BadHead,
    Chunked,
    Framing,
    HeaderKind,
    Length,
    NoBody,
    RequestHead,
    RequestOrigin,
    UntilClose,
    forwarded_head,
    head_ends,
    name_of,
    next_forwarded_head,
    parse,
    parse_next,
)
from torpor.proxy.response_head import own_cookie, parse_response_head, response_head_end

TOKEN = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VISIBLE = (bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100))).decode("latin-1")


def made(*lines: bytes) -> bytes:
    return b"\r\n".join((*lines, b"", b""))


def got(*headers: bytes, target: bytes = b"/", host: bytes = b"localhost:8080") -> RequestHead:
    return parse(made(b"GET %s HTTP/1.1" % target, b"Host: " + host, *headers))


def inside(*headers: bytes) -> RequestHead:
    return parse(forwarded_head(got(*headers, host=b"ada.localhost:8080"), RequestOrigin("127.0.0.1"), to_workspace=True))


# ── refused heads ─────────────────────────────────────────────────────────────────────────────────────────────────────

HOST = b"Host: localhost"
REFUSED = {
    "no request line": (400, made(b"hello", HOST)),
    "no target": (400, made(b"GET  HTTP/1.1", HOST)),
    "two spaces": (400, made(b"GET  / HTTP/1.1", HOST)),
    "a tab between": (400, made(b"GET\t/ HTTP/1.1", HOST)),
    "a space in the target": (400, made(b"GET /a b HTTP/1.1", HOST)),
    "a control character in the target": (400, made(b"GET /a\x7fb HTTP/1.1", HOST)),
    "a name without an end": (431, made(b"GET / HTTP/1.1", HOST, b"A" * 300 + b": b")),
    "a host without an end": (400, made(b"GET / HTTP/1.1", b"Host: " + b"a" * 300)),
    "an empty line first": (400, b"\r\n" + made(b"GET / HTTP/1.1", HOST)),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01"),
    "HTTP/0.9": (400, made(b"GET /", HOST)),
    "HTTP/2": (505, made(b"PRI * HTTP/2.0", HOST)),
    "lower case version": (400, made(b"GET / http/1.1", HOST)),
    "CONNECT": (405, made(b"CONNECT localhost:80 HTTP/1.1", HOST)),
    "no Host": (400, made(b"GET / HTTP/1.1", b"Accept: */*")),
    "two Hosts": (400, made(b"GET / HTTP/1.1", HOST, HOST)),
    "an empty Host": (400, made(b"GET / HTTP/1.1", b"Host:")),
    "a Host with a user": (400, made(b"GET / HTTP/1.1", b"Host: a@localhost")),
    "a Host with a path": (400, made(b"GET / HTTP/1.1", b"Host: localhost/x")),
    "two names in a Host": (400, made(b"GET / HTTP/1.1", b"Host: localhost, evil.example")),
    "another host in the target": (400, made(b"GET http://evil.example/ HTTP/1.1", HOST)),
    "another port in the target": (400, made(b"GET http://localhost:81/ HTTP/1.1", HOST)),
    "a user in the target": (400, made(b"GET http://a@localhost/ HTTP/1.1", HOST)),
    "another scheme in the target": (400, made(b"GET https://localhost/ HTTP/1.1", HOST)),
    "an authority as the target": (400, made(b"GET localhost:80 HTTP/1.1", HOST)),
    "* for GET": (400, made(b"GET * HTTP/1.1", HOST)),
    "a folded header": (400, made(b"GET / HTTP/1.1", HOST, b"A: b", b" c")),
    "a space before the first header": (400, made(b"GET / HTTP/1.1", b" Host: localhost")),
    "a space before the colon": (400, made(b"GET / HTTP/1.1", HOST, b"Content-Length : 5")),
    "no colon": (400, made(b"GET / HTTP/1.1", HOST, b"what")),
    "no name": (400, made(b"GET / HTTP/1.1", HOST, b": what")),
    "NUL in a value": (400, made(b"GET / HTTP/1.1", HOST, b"A: b\0c")),
    "a bell in a value": (400, made(b"GET / HTTP/1.1", HOST, b"A: b\ac")),
    "a bare CR": (400, made(b"GET / HTTP/1.1", HOST, b"A: b\rContent-Length: 5")),
    "a bare LF": (400, made(b"GET / HTTP/1.1", HOST, b"A: b\nContent-Length: 5")),
    "a CR and an LF apart": (400, made(b"GET / HTTP/1.1", HOST, b"A: b\rC: d\nContent-Length: 5")),
    "LF line ends": (400, b"GET / HTTP/1.1\nHost: localhost\n\n"),
    "length and chunked": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length: 5", b"Transfer-Encoding: chunked")),
    "chunked and length": (400, made(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked", b"Content-Length: 5")),
    "differing lengths": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length: 5", b"Content-Length: 6")),
    "a list of lengths": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length: 5, 5")),
    "a signed length": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length: +5")),
    "a negative length": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length: -5")),
    "a length in hex": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length: 0x5")),
    "an empty length": (400, made(b"POST / HTTP/1.1", HOST, b"Content-Length:")),
    "an endless length": (413, made(b"POST / HTTP/1.1", HOST, b"Content-Length: " + b"9" * 19)),
    "another coding": (501, made(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: gzip")),
    "two codings": (501, made(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: gzip, chunked")),
    "chunked twice": (501, made(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked")),
    "chunked disguised": (501, made(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: xchunked")),
    "an empty coding": (501, made(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding:")),
    "chunked in HTTP/1.0": (400, made(b"POST / HTTP/1.0", HOST, b"Transfer-Encoding: chunked")),
    "too many headers": (431, made(b"GET / HTTP/1.1", HOST, *[b"A: b"] * MOST_HEADERS)),
    "too large": (431, made(b"GET / HTTP/1.1", HOST, b"A: " + b"b" * LARGEST_HEAD_BYTES)),
}


@pytest.mark.parametrize(("status", "raw"), REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_head_is_refused(status: int, raw: bytes) -> None:
    with pytest.raises(BadHead) as refused:
        parse(raw)
    assert refused.value.status == status


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_or_refused(noise: bytes) -> None:
    for raw in (noise, made(b"GET / HTTP/1.1", HOST, noise)):
        with suppress(BadHead):
            parse(raw)


@given(st.lists(st.sampled_from(sorted(raw for _, raw in REFUSED.values() if len(raw) < 300)), min_size=1), st.integers(0, 300))
def test_searching_in_pieces_finds_the_same_end_as_at_once(raws: list[bytes], cut: int) -> None:
    raw = b"".join(raws)

    def look(*ends: int) -> tuple[int, ...] | str:
        searched, found = 0, None
        try:
            for end in ends:
                if (found := head_ends(raw[:end], searched)) is not None:
                    return (found,)
                searched = end
        except BadHead as bad:
            return bad.message
        return ()

    assert look(min(cut, len(raw)), len(raw)) == look(len(raw))


# ── accepted heads ────────────────────────────────────────────────────────────────────────────────────────────────────

tokens = st.text(TOKEN, min_size=1, max_size=20).map(str.encode)
visible = st.text(VISIBLE, min_size=1, max_size=30).map(lambda text: text.encode("latin-1"))
values = st.lists(visible, max_size=3).map(b" ".join)
SPECIAL = {b"host", b"content-length", b"transfer-encoding"}
headers = st.lists(st.tuples(tokens, values).filter(lambda header: header[0].lower() not in SPECIAL), max_size=8)
targets = visible.map(lambda rest: b"/" + rest)


@given(tokens.filter(lambda method: method != b"CONNECT"), targets, headers)
def test_target_and_headers_survive_byte_for_byte(
    method: bytes, target: bytes, given_headers: list[tuple[bytes, bytes]]
) -> None:
    head = RequestHead(method, target, b"HTTP/1.1", ((b"hOsT", b"localhost:1"), *given_headers))
    for _ in range(2):
        # A cached head equals a parsed one.
        assert parse(head.render()) == head
        assert parse(head.render()).render() == head.render()


@given(st.text(VISIBLE[:94], max_size=30).map(lambda text: b"/" + text.encode()), headers)
def test_another_parser_reads_a_forwarded_head_the_same(target: bytes, given_headers: list[tuple[bytes, bytes]]) -> None:
    """The forwarded head must mean the same to the next parser; llhttp is the parser of uvicorn and Node."""

    class Seen:
        def __init__(self) -> None:
            self.target = b""
            self.headers: list[tuple[bytes, bytes]] = []
            self.complete = False
            self.keeps_alive = True

        def on_url(self, url: bytes) -> None:
            self.target += url

        def on_header(self, name: bytes, value: bytes) -> None:
            self.headers.append((name, value))

        def on_headers_complete(self) -> None:
            self.keeps_alive = parser.should_keep_alive()

        def on_message_complete(self) -> None:
            self.complete = True

    head = RequestHead(b"GET", target, b"HTTP/1.1", ((b"Host", b"ada.localhost"), *given_headers))
    passed = forwarded_head(parse(head.render()), RequestOrigin("::1"), to_workspace=True)
    seen = Seen()
    parser = httptools.HttpRequestParser(seen)
    parser.feed_data(passed)
    assert seen.complete
    assert seen.target == target
    assert seen.headers == list(parse(passed).headers)
    assert seen.keeps_alive


# ── repeated heads ────────────────────────────────────────────────────────────────────────────────────────────────────

lines_behind = st.lists(
    st.sampled_from(
        [b"Cookie: a=1; torpor_door=x", b"Authorization: Bearer torpor_x", b"Connection: close", b"Connection: a", b"A: b"]
    ),
    max_size=4,
)
first_lines = st.tuples(
    st.sampled_from([b"GET", b"POST", b"G", b"", b" "]),
    st.one_of(
        targets, st.binary(max_size=8), st.sampled_from([b"/", b"*", b"//", b"http://localhost/a", b"/a HTTP/1.1\r\nA: b"])
    ),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1", b""]),
).map(b" ".join)


def read(raw: bytes) -> RequestHead | None:
    try:
        return parse(raw)
    except BadHead:
        return None


@given(first_lines, first_lines, lines_behind, lines_behind | st.none())
def test_parsing_with_the_previous_head_gives_the_same_result(
    first: bytes, second: bytes, behind: list[bytes], others: list[bytes] | None
) -> None:
    last_raw, raw = made(first, HOST, *behind), made(second, HOST, *(behind if others is None else others))
    last, anew = read(last_raw), read(raw)
    head = None if last is None else parse_next(raw, last_raw, last)
    if last is None or head is None:
        return
    assert head == anew
    assert anew is not None
    assert (head.parts, head.shown, head.framing, head.closes, head.host) == (
        anew.parts,
        anew.shown,
        anew.framing,
        anew.closes,
        anew.host,
    )
    for to_workspace in (True, False):
        before = forwarded_head(last, RequestOrigin("::1"), to_workspace=to_workspace)
        assert next_forwarded_head(before, head) == forwarded_head(anew, RequestOrigin("::1"), to_workspace=to_workspace)


def test_the_previous_head_is_reused_only_if_the_rest_is_equal() -> None:
    last_raw = made(b"GET /a HTTP/1.1", HOST, b"A: b")
    last = parse(last_raw)

    def next_one(*lines: bytes) -> RequestHead | None:
        return parse_next(made(*lines), last_raw, last)

    found = next_one(b"GET /b?c=%20 HTTP/1.1", HOST, b"A: b")
    assert found is not None
    assert (found.target, found.headers is last.headers) == (b"/b?c=%20", True)
    assert next_one(b"GET /b HTTP/1.1", HOST, b"A: c") is None
    assert next_one(b"HEAD /b HTTP/1.1", HOST, b"A: b") is None
    assert next_one(b"GET /b HTTP/1.0", HOST, b"A: b") is None
    assert next_one(b"GET http://localhost/b HTTP/1.1", HOST, b"A: b") is None
    assert next_one(b"GET /b c HTTP/1.1", HOST, b"A: b") is None
    assert next_one(b"GET /b\tc HTTP/1.1", HOST, b"A: b") is None
    assert next_one(b"GET /b\0 HTTP/1.1", HOST, b"A: b") is None


def test_an_absolute_target_becomes_the_path_that_it_names() -> None:
    assert got(target=b"http://LOCALHOST:8080/a%2Fb?c").target == b"/a%2Fb?c"
    assert got(target=b"http://localhost:8080?c").target == b"/?c"
    assert got(target=b"HTTP://localhost/", host=b"localhost:80").target == b"/"
    assert parse(made(b"OPTIONS * HTTP/1.1", HOST)).target == b"*"


def test_repeated_equal_content_lengths_are_merged() -> None:
    head = got(b"Content-Length: 5", b"A: b", b"content-length: 5")
    assert head.headers == ((b"Host", b"localhost:8080"), (b"Content-Length", b"5"), (b"A", b"b"))


def test_the_framing() -> None:
    assert got().framing == NoBody()
    assert got(b"Content-Length: 0").framing == NoBody()
    assert got(b"Content-Length: 007").framing == Length(7)
    assert got(b"Transfer-Encoding: Chunked").framing == Chunked()


# ── forwarding ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_forwarded_headers_are_set_and_dropped() -> None:
    head = got(
        b"X-Forwarded-For: 6.6.6.6",
        b"x_forwarded_host: evil.example",
        b"X-Forwarded-Port: 1",
        b"Forwarded: for=6.6.6.6",
        b"X-Real-IP: 6.6.6.6",
        b"Connection: keep-alive, X-Mine, Cookie, Host",
        b"X-Mine: 1",
        b"Keep-Alive: timeout=5",
        b"TE: gzip",
        b"Proxy-Authorization: Basic x",
        b"Upgrade: h2c",
        b"Cookie: torpor_session=abc",
        b"Authorization: Bearer torpor_abc",
        b"a: 1",
        b"A: 2",
    )
    assert parse(forwarded_head(head, RequestOrigin("::1", b"https"), to_workspace=False)).headers == (
        (b"Host", b"localhost:8080"),
        (b"Cookie", b"torpor_session=abc"),
        (b"Authorization", b"Bearer torpor_abc"),
        (b"a", b"1"),
        (b"A", b"2"),
        (b"X-Forwarded-For", b"::1"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Forwarded-Host", b"localhost:8080"),
    )


def test_clients_cannot_set_forwarding_headers() -> None:
    head = inside(
        b"X-Forwarded-For: 6.6.6.6", b"X_FORWARDED-for: 6.6.6.6", b"x_torpor_token: a", b"X-Torpor-Token: a", b"X_Real_IP: 6"
    )
    assert [name for name, _ in head.headers] == [b"Host", b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host"]


def test_only_trailers_is_forwarded_in_te() -> None:
    head = inside(b"Connection: TE", b"TE: gzip, Trailers")
    assert (head.values(b"te"), head.values(b"connection")) == ((b"trailers",), (b"TE",))
    assert inside(b"Connection: TE", b"TE: gzip").values(b"te") == ()


def test_an_http_1_0_request_is_forwarded_as_http_1_0() -> None:
    head = parse(forwarded_head(parse(made(b"GET / HTTP/1.0", HOST)), RequestOrigin("::1"), to_workspace=True))
    assert (head.version, head.values(b"connection")) == (b"HTTP/1.0", (b"close",))


def test_http_1_0_and_connection_close_end_a_connection() -> None:
    assert not got().closes
    assert not got(b"Connection: keep-alive").closes
    assert got(b"Connection: a, Close").closes
    assert parse(made(b"GET / HTTP/1.0", HOST, b"Connection: keep-alive")).closes


def test_special_headers_are_recognised_in_any_case() -> None:
    names = {
        HeaderKind.COOKIE: b"cookie",
        HeaderKind.TOKEN: b"x-torpor-token",
        HeaderKind.LENGTH: b"content-length",
        HeaderKind.CODING: b"transfer-encoding",
    }
    for part, name in names.items():
        for spelled in (name, name.upper(), name.title()):
            meaning = name_of(spelled)
            assert meaning is not None
            assert meaning.part is part


COOKIES = {
    b"torpor_session=abc": (),
    b"torpor_door=abc; __Host-torpor_session=abc; a=1; __Host-torpor_door=abc; torpor_knock=abc": (b"a=1",),
    b"torpor_workspace=abc; a=1; __Host-torpor_workspace=abc": (b"a=1",),
    b" torpor_session = abc ;": (),
    b"a=1; torpor_session=abc; b=2": (b"a=1; b=2",),
    b"torpor_session=abc;a=1": (b"a=1",),
    b"a=1;torpor_session": (b"a=1",),
    b"torpor_session=a; torpor_session=b; c=torpor_session=": (b"c=torpor_session=",),
    b"torpor_sessions=abc; my_torpor_session=x": (b"torpor_sessions=abc; my_torpor_session=x",),
    b"a=1;;b=2": (b"a=1;;b=2",),
}


@pytest.mark.parametrize("cookie", COOKIES, ids=repr)
def test_session_cookies_are_removed_and_others_forwarded(cookie: bytes) -> None:
    assert inside(b"Cookie: " + cookie).values(b"cookie") == COOKIES[cookie]


@pytest.mark.parametrize("value", [b"Bearer torpor_abc", b"bearer  torpor_abc", b"BEARER\ttorpor_"])
def test_tokens_of_the_platform_are_removed(value: bytes) -> None:
    assert inside(b"Authorization: " + value).values(b"authorization") == ()


@pytest.mark.parametrize("value", [b"Bearer abc", b"token torpor_abc", b"Basic dG9ycG9yXw=="])
def test_other_tokens_are_forwarded(value: bytes) -> None:
    assert inside(b"Authorization: " + value).values(b"authorization") == (value,)


def test_an_upgrade_keeps_its_headers() -> None:
    head = inside(b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket", b"Keep-Alive: 1")
    assert head.values(b"connection") == (b"Upgrade",)
    assert head.values(b"upgrade") == (b"WebSocket",)
    assert head.values(b"keep-alive") == ()


@pytest.mark.parametrize(
    "lines",
    [
        (b"Upgrade: websocket",),
        (b"Connection: upgrade",),
        (b"Connection: upgrade", b"Upgrade: h2c"),
        (b"Connection: upgrade", b"Upgrade: websocket, H2C"),
        (b"Connection: upgrade", b"Upgrade: websocket", b"Content-Length: 5"),
        (b"Connection: upgrade", b"Upgrade: websocket", b"Transfer-Encoding: chunked"),
    ],
)
def test_an_invalid_upgrade_is_forwarded_as_a_plain_request(lines: tuple[bytes, ...]) -> None:
    head = inside(*lines)
    assert head.values(b"connection") == ()
    assert head.values(b"upgrade") == ()


ORIGINS = {
    b"http://ada.localhost:8080": False,
    b"HTTP://ADA.localhost:8080": False,
    b"https://ada.localhost:8080": False,
    b"http://ada.localhost": True,
    b"http://localhost:8080": True,
    b"http://eve.localhost:8080": True,
    b"http://ada.localhost:8080.evil.example": True,
    b"http://ada.localhost:8080@evil.example": True,
    b"http://evil.example": True,
    b"null": True,
    b"": True,
}


@pytest.mark.parametrize("origin", ORIGINS, ids=repr)
def test_the_origin_header_determines_cross_site(origin: bytes) -> None:
    assert got(b"Origin: " + origin, host=b"ada.localhost:8080").is_cross_site is ORIGINS[origin]


def test_default_ports_and_no_origin() -> None:
    assert not got(host=b"localhost").is_cross_site
    assert not got(b"Origin: http://localhost", host=b"localhost:80").is_cross_site
    assert not got(b"Origin: http://[::1]:80", host=b"[::1]").is_cross_site
    assert got(b"Origin: http://localhost", b"Origin: http://localhost", host=b"localhost").is_cross_site


# ── the response ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_headers_not_for_the_client_are_removed_from_a_response() -> None:
    raw = (
        b"HTTP/1.1 200 Fine\r\nA: b\r\nConnection: keep-alive, X-Mine\r\nKEEP-ALIVE: timeout=5\r\nX-Mine: 1\r\n"
        b'Clear-Site-Data: "cookies"\r\nset-cookie: torpor_session=x\r\nSet-Cookie: a=b; Domain=example.org; Path=/\r\n'
        b"a:  c \r\n\r\n"
    )
    assert response_head_end(raw + b"body") == len(raw)
    assert response_head_end(raw[:-1]) is None
    answer = parse_response_head(raw, from_workspace=True)
    assert answer.render(closes=True) == (
        b"HTTP/1.1 200 Fine\r\nA: b\r\nSet-Cookie: a=b; Path=/\r\na:  c \r\nConnection: close\r\n\r\n"
    )
    assert (answer.keeps_s, answer.closes, answer.is_as_it_came) == (5, False, False)
    from_platform = parse_response_head(raw, from_workspace=False)
    assert b"set-cookie: torpor_session=x" in from_platform.lines
    assert b'Clear-Site-Data: "cookies"' in from_platform.lines


def test_a_response_without_removed_headers_is_not_rebuilt() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 3\r\n\r\n"
    answer = parse_response_head(raw, from_workspace=True)
    assert answer.is_as_it_came
    assert answer.render() == raw


SET_COOKIES = {
    b"a=b": b"a=b",
    b"a=b; HttpOnly; Domain=.example.org;SameSite=Lax": b"a=b; HttpOnly;SameSite=Lax",
    b"a=b;DOMAIN = example.org": b"a=b",
    b"a=b; domain": b"a=b",
    b"=torpor_session=x": None,
    b" = torpor_door = x": None,
    b"torpor_session": None,
    b"torpor_sessions=x": b"torpor_sessions=x",
}


@pytest.mark.parametrize("cookie", SET_COOKIES, ids=repr)
def test_cookies_set_by_a_workspace_are_filtered(cookie: bytes) -> None:
    assert own_cookie(cookie) == SET_COOKIES[cookie]


@pytest.mark.parametrize("name", sorted(PLATFORM_COOKIES))
def test_a_workspace_cannot_set_platform_cookies(name: bytes) -> None:
    assert own_cookie(name + b"=x; Path=/") is None


def test_responses_with_http_1_0_or_bare_newlines_are_read() -> None:
    old = parse_response_head(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", from_workspace=True)
    assert old.closes
    assert old.render() == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    assert not parse_response_head(b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n", from_workspace=True).closes
    raw = b"HTTP/1.1 200 OK\nA: b\r\nContent-Length: 3\n\n\r\n\r\n"
    assert response_head_end(raw) == len(raw) - 4
    assert (
        parse_response_head(raw[:-4], from_workspace=True).render() == b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\n\r\n"
    )


def test_interim_answers_and_switches() -> None:
    raw = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert parse_response_head(raw, from_workspace=True).render() == raw
    assert parse_response_head(b"HTTP/1.1 100 Continue\r\n\r\n", from_workspace=True).is_interim
    assert not parse_response_head(raw, from_workspace=True).is_interim


@pytest.mark.parametrize(
    ("framing", "method", "status", "lines"),
    [
        (UntilClose(), b"GET", 200, []),
        (Length(5), b"GET", 200, [b"content-length:5 "]),
        (Length(5), b"GET", 200, [b"Content-Length: 5", b"Content-Length: 5"]),
        (NoBody(), b"GET", 200, [b"Content-Length: 0"]),
        (NoBody(), b"HEAD", 200, [b"Content-Length: 5"]),
        (NoBody(), b"GET", 304, [b"Content-Length: 5"]),
        (NoBody(), b"DELETE", 204, []),
        (Chunked(), b"GET", 200, [b"Transfer-Encoding: chunked"]),
        (Chunked(), b"GET", 200, [b"transfer-encoding: Chunked ", b"Content-Length: 5"]),
        (Chunked(), b"GET", 200, [b"Connection: x-foo", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X-Foo: a"]),
        (NoBody(), b"GET", 204, [b"Connection: x-foo", b"Content-Length: 5", b"Transfer-Encoding: chunked"]),
        (UntilClose(), b"GET", 200, [b"Transfer-Encoding: gzip"]),
    ],
)
def test_the_framing_of_an_answer(framing: Framing, method: bytes, status: int, lines: list[bytes]) -> None:
    answer = parse_response_head(made(b"HTTP/1.1 %d OK" % status, *lines), from_workspace=True)
    assert answer.framing(method) == framing
    # The next parser reads the same framing, and reads it once.
    said = answer.render().lower()
    if status != 304 and method != b"HEAD":
        assert said.count(b"content-length") == isinstance(framing, Length) or framing == NoBody()
    assert not (b"content-length" in said and b"transfer-encoding" in said)
    assert b"x-foo" not in said


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 20 x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rc\nSet-Cookie: torpor_session=evil\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
    ],
)
def test_an_invalid_response_is_refused(raw: bytes) -> None:
    with pytest.raises(BadHead):
        parse_response_head(raw, from_workspace=True)


@given(st.binary(max_size=300))
def test_any_response_bytes_are_parsed_or_refused(noise: bytes) -> None:
    for raw in (noise + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + noise + b"\r\n\r\n"):
        with suppress(BadHead):
            end = response_head_end(raw)
            assert end is not None
            answer = parse_response_head(raw[:end], from_workspace=True)
            assert parse_response_head(answer.render(), from_workspace=True).render() == answer.render()


# ── the body ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def follow(body: Body, data: bytes, cuts: list[int]) -> int:
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    taken = begin = 0
    for end in ends:
        part = body.take(data[begin:end])
        taken += part
        if part < end - begin:
            break
        begin = end
    return taken


@given(st.lists(st.binary(min_size=1, max_size=40)), st.booleans(), st.binary(max_size=20), st.lists(st.integers(0, 2000)))
def test_the_end_of_a_chunked_body_is_found_with_any_cuts(
    chunks: list[bytes], has_trailer: bool, behind: bytes, cuts: list[int]
) -> None:
    raw = b"".join(b"%X;x=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n"
    raw += b"Trailer: yes\r\n\r\n" if has_trailer else b"\r\n"
    body = Body(Chunked())
    assert follow(body, raw + behind, cuts) == len(raw)
    assert body.is_complete


@given(st.binary(min_size=1, max_size=50), st.binary(max_size=20), st.lists(st.integers(0, 100)))
def test_the_end_of_a_body_with_a_length_is_found_with_any_cuts(data: bytes, behind: bytes, cuts: list[int]) -> None:
    body = Body(Length(len(data)))
    assert not body.is_complete
    assert follow(body, data + behind, cuts) == len(data)
    assert body.is_complete


@pytest.mark.parametrize(
    "raw",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x5\r\n",
        b"5 \r\n",
        b"5\n",
        b"5\rx\r\n",
        b"5;\0\r\n",
        b"1" * 16 + b"\r\n",
        b"2\r\nabc\r\n",
        b"2\r\nab\n",
        b"5;" + b"x" * 5000,
        b"2\r\nabc",
        b"0\r\nTrailer: a\rb\r\n",
        b"0\r\nno colon\r\n",
        b"0\r\n folded: a\r\n",
        b"0\r\nContent-Length: 5\r\n",
        b"0\r\nX-Forwarded-For: 6.6.6.6\r\n",
        b"0\r\nHost: evil.example\r\n",
        b"0\r\n" + b"A: b%s\r\n" % (b"c" * 4000) * 5,
    ],
)
def test_ambiguous_chunks_are_refused(raw: bytes) -> None:
    with pytest.raises(BadHead):
        Body(Chunked()).take(raw)
