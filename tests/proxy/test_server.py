"""Bytes pass through the proxy server correctly. With real sockets, on both event loops that the product supports."""

import asyncio
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, unix_serve

from tests.proxy.open_gate import (
    HASTY,
    LOOPBACK,
    PATIENCE_S,
    SORRY,
    TOO_LATE,
    Answer,
    OpenGate,
    Stage,
    echo_heads,
    hang_up,
    made,
    passing,
    read_answer,
    read_head,
    staged,
)
from tests.support.waiting import until
from torpor.domain.errors import Refused
from torpor.ports import Address
from torpor.proxy.gate import Reply, Verdict
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import RequestHead
from torpor.proxy.server import ProxyServer
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.upstream_connection import MOST_INTERIM_ANSWERS

MB = 1 << 20

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


# ── where a request goes ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_platform_gets_the_head_and_the_client_address(stage: Stage) -> None:
    await stage.serve("localhost", echo_heads)
    for host in ("localhost", f"localhost:{stage.port}", "LOCALHOST"):
        answer = await stage.ask(f"Host: {host}", "Cookie: torpor_session=abc", "accept: a", "Accept: b")
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert answer.body == made(
            "GET / HTTP/1.1",
            f"Host: {host}",
            "Cookie: torpor_session=abc",
            "accept: a",
            "Accept: b",
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-Proto: http",
            f"X-Forwarded-Host: {host}",
        )


async def test_a_workspace_answers_and_gets_no_secret_of_the_platform(stage: Stage) -> None:
    await stage.serve("ada", echo_heads)
    answer = await stage.ask(
        "Host: ada.localhost:8080",
        "Cookie: torpor_door=abc; mine=1",
        "Authorization: Bearer torpor_secret",
        "X-Torpor-Token: torpor_secret",
        target="GET /a%2Fb//c?d=%zz HTTP/1.1",
    )
    assert b"GET /a%2Fb//c?d=%zz HTTP/1.1\r\n" in answer.body
    assert b"Cookie: mine=1\r\n" in answer.body
    assert b"torpor" not in answer.body.lower()


async def test_a_workspace_behind_a_port(stage: Stage) -> None:
    await stage.serve_tcp("ada", echo_heads)
    assert (await stage.ask("Host: ada.localhost")).status == 200


async def test_the_preamble_of_an_address_is_sent_once_per_connection(stage: Stage) -> None:
    heard: list[bytes] = []

    async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readline())
        await echo_heads(reader, writer)

    address = await stage.serve("ada", behind)
    stage.gate.verdicts["ada"] = passing(replace(address, preamble=b"port 3000\n"))
    reader, writer = await stage.open()
    for _ in range(3):
        writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
        assert (await read_answer(reader)).body.startswith(b"GET / HTTP/1.1\r\n")
    assert heard == [b"port 3000\n"]
    await hang_up(writer)


async def test_ipv6_is_listened_on_too(stage: Stage) -> None:
    stage.gate.verdicts["[::1]"] = passing(await stage.serve("localhost", echo_heads))
    try:
        reader, writer = await asyncio.open_connection("::1", stage.port)
    except OSError:
        pytest.skip("this machine has no ::1")
    writer.write(made("GET / HTTP/1.1", f"Host: [::1]:{stage.port}"))
    assert b"X-Forwarded-For: ::1" in (await read_answer(reader)).body
    await hang_up(writer)


async def test_forwarding_headers_count_only_from_trusted_addresses(tmp_path: Path, anyio_backend: object) -> None:
    said = ("X-Forwarded-For: 6.6.6.6, 9.9.9.9, 10.0.0.7", "X-Forwarded-Proto: https", "X-Real-IP: 6.6.6.6")
    for trusted, client, scheme in (((), "127.0.0.1", "http"), (("127.0.0.0/8", "10.0.0.7"), "9.9.9.9", "https")):
        async with staged(tmp_path, trusted=trusted) as stage:
            await stage.serve("ada", echo_heads)
            answer = await stage.ask("Host: ada.localhost", *said)
            assert answer.body == made(
                "GET / HTTP/1.1",
                "Host: ada.localhost",
                f"X-Forwarded-For: {client}",
                f"X-Forwarded-Proto: {scheme}",
                "X-Forwarded-Host: ada.localhost",
            )
            assert stage.gate.seen[0][1] == client
        (tmp_path / "ada").unlink()


async def test_an_invalid_trusted_address_is_refused() -> None:
    with pytest.raises(Refused, match="an address or a network"):
        ProxyServer(OpenGate(), port=0, hosts=LOOPBACK, trusted=["elsewhere"])


# ── verdicts of the gate ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reply_of_the_gate_is_sent(stage: Stage) -> None:
    stage.gate.verdicts["ada"] = Reply(403, RequestOutcome.CROSS_SITE, ((b"A", b"1"), (b"A", b"2")), b"no")
    reader, writer = await stage.open()
    for method, body in (("GET", b"no"), ("HEAD", b""), ("POST", b"no"), ("GET", b"no")):
        lines = ("Host: ada.localhost", "Content-Length: 4") if method == "POST" else ("Host: ada.localhost",)
        writer.write(made(f"{method} / HTTP/1.1", *lines) + (b"body" if method == "POST" else b""))
        got = await read_head(reader)
        assert got.startswith(b"HTTP/1.1 403 Forbidden\r\nA: 1\r\nA: 2\r\nContent-Length: 2\r\nDate: ")
        assert b"Connection" not in got
        assert await reader.readexactly(len(body)) == body
    stage.gate.verdicts["ada"] = Reply(204, RequestOutcome.GATE)
    answer = await stage.ask("Host: ada.localhost")
    assert (answer.status, "content-length" in answer.headers) == (204, False)
    await hang_up(writer)


async def test_an_asynchronous_verdict_is_awaited(stage: Stage) -> None:
    address = await stage.serve("ada", echo_heads)
    may_tell = asyncio.Event()

    async def find_out() -> Verdict:
        await may_tell.wait()
        return passing(address)

    stage.gate.verdicts["ada"] = lambda *_: find_out()
    asking = [asyncio.create_task(stage.ask("Host: ada.localhost")) for _ in range(20)]
    await until(lambda: len(stage.gate.seen) == 20)
    may_tell.set()
    assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


async def test_an_error_in_the_gate_is_500(stage: Stage) -> None:
    async def broken() -> Verdict:
        raise RuntimeError("a bug")

    def broken_at_once(head: RequestHead, client: str) -> Verdict:
        raise RuntimeError("a bug")

    for judging in (lambda *_: broken(), broken_at_once):
        stage.gate.verdicts["ada"] = judging
        assert (await stage.ask("Host: ada.localhost")).status == 500


async def test_a_disconnect_cancels_the_verdict(stage: Stage) -> None:
    was_cancelled = asyncio.Event()

    async def for_ever() -> Verdict:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()
        raise AssertionError

    stage.gate.verdicts["ada"] = lambda *_: for_ever()
    client = socket.create_connection(("127.0.0.1", stage.port))
    client.sendall(made("GET / HTTP/1.1", "Host: ada.localhost"))
    await until(lambda: bool(stage.gate.seen))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    await asyncio.wait_for(was_cancelled.wait(), PATIENCE_S)


async def test_an_address_without_a_listener_is_502(stage: Stage) -> None:
    stage.gate.verdicts["ada"] = passing(Address(unix_path=str(stage.folder / "nowhere")))
    stage.gate.verdicts["eve"] = passing(Address(host="127.0.0.1", port=1))
    for host in ("ada", "eve"):
        answer = await stage.ask(f"Host: {host}.localhost")
        assert (answer.status, answer.body) == (502, SORRY.body)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b",
        b"A: b\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: raw\r\n\r\n",
    ],
)
async def test_an_invalid_response_is_502(stage: Stage, said: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(said)
        await writer.drain()

    await stage.serve("ada", odd)
    assert (await stage.ask("Host: ada.localhost")).status == 502


async def test_interim_responses_are_forwarded_before_the_response(stage: Stage) -> None:
    said = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def hint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            writer.write(said)

    await stage.serve("ada", hint)
    reader, writer = await stage.open()
    # Each request has its own limit, which does not count over the connection.
    for _ in range(2 * MOST_INTERIM_ANSWERS):
        writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
        assert await asyncio.wait_for(reader.readexactly(len(said)), PATIENCE_S) == said
    assert stage.accepted["ada"] == 1
    await hang_up(writer)


async def test_endless_interim_responses_are_an_error(stage: Stage) -> None:
    async def hint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        while True:
            writer.write(b"HTTP/1.1 103\n\n" * 1000)
            await writer.drain()

    await stage.serve("ada", hint)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
    for _ in range(MOST_INTERIM_ANSWERS):
        assert await asyncio.wait_for(read_head(reader), PATIENCE_S) == b"HTTP/1.1 103\r\n\r\n"
    assert (await read_answer(reader)).status == 502
    await hang_up(writer)


async def test_a_response_that_does_not_begin_in_time_is_504(hasty: Stage) -> None:
    async def never(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    await hasty.serve("ada", never)
    for lines in ((), ("Connection: upgrade", "Upgrade: raw")):
        answer = await hasty.send_raw(made("GET / HTTP/1.1", "Host: ada.localhost", *lines) + b"")
        assert (answer.status, answer.body) == (504, TOO_LATE.body)


async def test_a_response_that_has_begun_has_no_timeout(hasty: Stage) -> None:
    async def pauses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await asyncio.sleep(6 * HASTY.answer_s)
        writer.write(b"data: late\n\n")
        await writer.drain()

    await hasty.serve("ada", pauses)
    assert (await hasty.ask("Host: ada.localhost")).body == b"data: late\n\n"


# ── bad requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

BAD = {
    "LF line ends": (400, b"GET / HTTP/1.1\nHost: localhost\n\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "never ending": (431, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000),
    "one endless line": (431, b"GET /" + b"a" * 200_000),
    "many headers": (431, made("GET / HTTP/1.1", "Host: localhost", *["A: b"] * 100)),
    "an endless body": (413, made("POST / HTTP/1.1", "Host: localhost", "Content-Length: " + "9" * 30)),
    "both framings": (400, made("POST / HTTP/1.1", "Host: localhost", "Content-Length: 4", "Transfer-Encoding: chunked")),
    "a bad chunk": (400, made("POST / HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked") + b"zz\r\n"),
    "a bad trailer": (
        400,
        made("POST / HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked") + b"0\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n",
    ),
}


@pytest.mark.parametrize(("status", "raw"), BAD.values(), ids=BAD)
async def test_a_bad_request_is_refused_at_once(stage: Stage, status: int, raw: bytes) -> None:
    async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    await stage.serve("localhost", swallow)
    answer = await stage.send_raw(raw)
    assert answer.status == status
    assert answer.headers["connection"] == "close"


async def test_a_bad_body_leaves_no_connection_behind(stage: Stage) -> None:
    ended = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        ended.set()

    await stage.serve("ada", swallow)
    raw = made("POST / HTTP/1.1", "Host: ada.localhost", "Transfer-Encoding: chunked") + b"ZZ\r\n"
    assert (await stage.send_raw(raw)).status == 400
    await asyncio.wait_for(ended.wait(), PATIENCE_S)


async def test_a_refused_client_that_continues_to_send_is_cut(hasty: Stage) -> None:
    reader, writer = await hasty.open()
    writer.write(b"this is no request\r\n\r\n")
    assert (await read_answer(reader)).status == 400

    def is_gone() -> bool:
        writer.write(b"x")
        return hasty.front.connections == 0

    await until(is_gone)
    await hang_up(writer)


async def test_a_slow_head_is_given_up(hasty: Stage) -> None:
    answer = await hasty.send_raw(b"GET / HTTP/1.1\r\nHost: loc")
    assert answer.status == 408
    reader, writer = await hasty.open()
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"", "a spare connection is closed without a word"
    await hang_up(writer)


async def test_a_slow_body_is_given_up(hasty: Stage) -> None:
    async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    await hasty.serve("ada", swallow)
    answer = await hasty.ask("Host: ada.localhost", "Content-Length: 9", body=b"half", target="PUT / HTTP/1.1")
    assert answer.status == 408


async def test_connections_without_a_request_are_limited_and_the_oldest_is_closed(
    tmp_path: Path, anyio_backend: object
) -> None:
    async with staged(tmp_path, patience=ProxyTimeouts(most_newcomers=3)) as stage:
        await stage.serve("localhost", echo_heads)
        waiting = [await stage.open() for _ in range(3)]
        await until(lambda: stage.front.connections == 3)
        # Clients that never send a request do not keep others out: the oldest connection is closed.
        assert (await stage.ask("Host: localhost")).status == 200
        assert (await read_answer(waiting[0][0])).status == 503
        for reader, writer in waiting[1:]:
            writer.write(made("GET / HTTP/1.1", "Host: localhost"))
            assert (await read_answer(reader)).status == 200
        for _, writer in waiting:
            await hang_up(writer)
        # Refused clients that are still connected do not either.
        refused = [await stage.open() for _ in range(6)]
        for _, writer in refused:
            writer.write(b"no request\r\n\r\n")
        assert (await stage.ask("Host: localhost")).status == 200
        for _, writer in refused:
            await hang_up(writer)
        # A client that has sent a request no longer takes a slot of the newcomers.
        kept = []
        for _ in range(10):
            reader, writer = await stage.open()
            writer.write(made("GET / HTTP/1.1", "Host: localhost"))
            assert (await read_answer(reader)).status == 200
            kept.append(writer)
        for writer in kept:
            await hang_up(writer)


async def test_disconnects_at_any_point_do_no_harm(stage: Stage) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    await stage.serve("localhost", echo_heads)
    await stage.serve("ada", endless)
    whole = made("POST / HTTP/1.1", "Host: ada.localhost", "Content-Length: 100")
    for length in range(0, len(whole) + 1, 7):
        client = socket.create_connection(("127.0.0.1", stage.port))
        client.sendall(whole[:length])
        await asyncio.sleep(0.001)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    assert (await stage.ask("Host: localhost")).status == 200
    await until(lambda: stage.front.connections == 0)


async def test_a_disconnect_is_noticed_while_the_client_is_not_read(hasty: Stage) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        with suppress(ConnectionError):
            await reader.read()
        ended.set()

    await hasty.serve("ada", silent)
    reader, writer = await hasty.open()
    # The proxy does not read beyond the beginning of the next request.
    writer.write(made("GET / HTTP/1.1", "Host: ada.localhost") + b"GET / HT")
    await read_head(reader)
    await asyncio.sleep(2 * HASTY.half_closed_s)
    assert not ended.is_set(), "whoever is there may wait"
    await hang_up(writer)
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    await until(lambda: hasty.front.connections == 0)


async def test_a_server_that_responds_and_does_not_read_the_body_is_given_up(hasty: Stage) -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await until(lambda: hasty.front.connections == 0)

    await hasty.serve("ada", begin)
    reader, writer = await hasty.open()
    writer.write(made("PUT / HTTP/1.1", "Host: ada.localhost", f"Content-Length: {100 * MB}"))
    await read_head(reader)
    # Far more than any buffer takes.
    writer.write(bytes(50 * MB))
    await until(lambda: hasty.front.connections == 0)
    await hang_up(writer)


async def test_a_reply_to_a_disconnected_client_causes_no_error(tmp_path: Path, anyio_backend: object) -> None:
    patience = replace(HASTY, answer_s=1.0, half_closed_s=PATIENCE_S)
    async with staged(tmp_path, patience=patience) as stage:

        async def idle(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await read_head(reader)
            await until(lambda: stage.front.connections == 0)

        await stage.serve("ada", idle)
        client = socket.create_connection(("127.0.0.1", stage.port))
        client.setblocking(False)
        client.sendall(made("PUT / HTTP/1.1", "Host: ada.localhost", f"Content-Length: {100 * MB}"))
        silent = 0
        while silent < 20:
            try:
                client.send(bytes(MB))
                silent = 0
            except BlockingIOError:
                silent += 1
            await asyncio.sleep(0.01)
        # It follows data that is not read, so it is not noticed until the response is sent.
        client.close()
        with capture_logs() as logs:
            await until(lambda: stage.front.connections == 0)
        assert [line["event"] for line in logs if line["log_level"] == "error"] == []


async def test_an_error_in_the_check_of_one_connection_does_not_affect_the_others(hasty: Stage) -> None:
    async def never(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()

    address = await hasty.serve("ada", never)
    await hasty.serve("eve", never)
    unsayable = Reply(504, RequestOutcome.NO_ANSWER, ((b"only a name",),), b"")  # type: ignore[arg-type]
    hasty.gate.verdicts["ada"] = replace(passing(address), too_late=unsayable)
    reader, writer = await hasty.open()
    writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    assert (await hasty.ask("Host: eve.localhost")).status == 504
    await hang_up(writer)


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_slow_client_blocks_the_response_of_the_server(stage: Stage) -> None:
    poured = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while poured < 100 * MB:
            writer.write(bytes(MB // 4))
            await writer.drain()
            poured += MB // 4

    await stage.serve("ada", pour)
    client = socket.create_connection(("127.0.0.1", stage.port))
    client.sendall(made("GET / HTTP/1.1", "Host: ada.localhost"))
    await until(lambda: poured > 0)
    await asyncio.sleep(0.5)
    assert poured < 25 * MB, "what fits into the kernel's buffers, and no more"
    client.close()


async def test_a_server_that_does_not_read_blocks_the_body_of_the_client(stage: Stage) -> None:
    async def idle(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await asyncio.Event().wait()

    await stage.serve("ada", idle)
    client = socket.create_connection(("127.0.0.1", stage.port))
    client.setblocking(False)
    client.sendall(made("PUT / HTTP/1.1", "Host: ada.localhost", f"Content-Length: {100 * MB}"))
    sent, silent = 0, 0
    while silent < 20:
        try:
            sent, silent = sent + client.send(bytes(MB)), 0
        except BlockingIOError:
            silent += 1
        await asyncio.sleep(0.01)
    assert sent < 25 * MB
    client.close()


async def test_a_client_that_never_reads_is_given_up(hasty: Stage) -> None:
    ended = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(bytes(MB // 4))
                await writer.drain()
        finally:
            ended.set()

    await hasty.serve("ada", pour)
    client = socket.create_connection(("127.0.0.1", hasty.port))
    client.sendall(made("GET / HTTP/1.1", "Host: ada.localhost"))
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    client.close()


async def test_expect_continue_is_forwarded(stage: Stage) -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await read_head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        got = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + got)
        await writer.drain()

    await stage.serve("ada", careful)
    reader, writer = await stage.open()
    writer.write(made("POST / HTTP/1.1", "Host: ada.localhost", "Expect: 100-continue", "Content-Length: 4"))
    assert await read_head(reader) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    assert await read_head(reader) == b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    assert await reader.read() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"
    await hang_up(writer)


async def test_a_refused_expect_continue_closes_without_waiting_for_the_body(stage: Stage) -> None:
    stage.gate.verdicts["ada"] = Reply(401, RequestOutcome.UNAUTHORIZED)
    reader, writer = await stage.open()
    writer.write(made("POST / HTTP/1.1", "Host: ada.localhost", "Expect: 100-continue", "Content-Length: 4"))
    answer = await read_answer(reader)
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    await hang_up(writer)


@pytest.mark.parametrize("over_tcp", [False, True])
async def test_a_response_may_come_before_the_end_of_the_body(stage: Stage, over_tcp: bool) -> None:
    async def too_large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()

    await (stage.serve_tcp if over_tcp else stage.serve)("ada", too_large)
    for _ in range(20):
        body = bytes(4 * MB)
        answer = await stage.ask("Host: ada.localhost", f"Content-Length: {len(body)}", body=body, target="PUT / HTTP/1.1")
        assert (answer.status, answer.body) == (413, b"no")


async def test_a_half_closed_client_gets_the_response(stage: Stage) -> None:
    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await asyncio.sleep(0.2)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nlater")
        await writer.drain()

    await stage.serve("ada", later)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
    writer.write_eof()
    assert Answer.read(await reader.read()).body == b"later"
    await hang_up(writer)


async def test_waiting_for_a_half_closed_client_has_a_timeout(tmp_path: Path, anyio_backend: object) -> None:
    ended = asyncio.Event()

    async def never(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    async with staged(tmp_path, patience=ProxyTimeouts(half_closed_s=0.2, look_s=0.02)) as stage:
        await stage.serve("ada", never)
        _, writer = await stage.open()
        writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
        await hang_up(writer)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)


async def test_a_chunked_response_ends_at_its_last_chunk(stage: Stage) -> None:
    async def lazy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nDigest: x\r\n\r\nmore")
        await reader.read()

    await stage.serve("ada", lazy)
    assert (await stage.ask("Host: ada.localhost")).body == b"2\r\nok\r\n0\r\nDigest: x\r\n\r\n"


@pytest.mark.parametrize("framing", [b"", b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_an_interrupted_response_is_reset(stage: Stage, framing: bytes) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n64\r\nhalf of wh" % framing)
        await writer.drain()
        await asyncio.sleep(0.1)
        cut = b"\1\0\0\0\0\0\0\0"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, cut)

    await stage.serve_tcp("ada", breaks)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", "Host: ada.localhost"))
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    await hang_up(writer)


# ── upgrades ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_websockets_are_forwarded(stage: Stage) -> None:
    cookies: list[str | None] = []

    async def echo(connection: ServerConnection) -> None:
        assert connection.request is not None
        cookies.append(connection.request.headers.get("Cookie"))
        async for message in connection:
            await connection.send(message)

    path = stage.folder / "ada"
    stage.gate.verdicts["ada"] = passing(Address(unix_path=str(path)))
    async with (
        unix_serve(echo, str(path), max_size=None),
        connect(
            f"ws://ada.localhost:{stage.port}/a/b?c",
            host="127.0.0.1",
            max_size=None,
            compression=None,
            proxy=None,
            additional_headers={"Cookie": "torpor_session=abc"},
        ) as client,
    ):
        for message in ("hello", b"\0" * (4 * MB), ""):
            await client.send(message)
            assert await asyncio.wait_for(client.recv(), PATIENCE_S) == message
    assert cookies == [None]


async def tunnel_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_head(reader)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
    while piece := await reader.read(1000):
        writer.write(piece)
    writer.write(b"<end>")
    await writer.drain()


ASK_TO_UPGRADE = made("GET / HTTP/1.1", "Host: ada.localhost", "Connection: upgrade", "Upgrade: raw")


async def test_a_tunnel_forwards_each_half_close(stage: Stage) -> None:
    await stage.serve("ada", tunnel_echo)
    reader, writer = await stage.open()
    writer.write(ASK_TO_UPGRADE + b"early,")
    assert b"101 Switching" in await read_head(reader)
    writer.write(b"late")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"early,late<end>"
    await hang_up(writer)


async def test_a_half_closed_tunnel_has_a_timeout(hasty: Stage) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
        await reader.read()
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(4 * HASTY.half_closed_s)
                writer.write(b"x")
                await writer.drain()
        ended.set()

    await hasty.serve("ada", silent)
    reader, writer = await hasty.open()
    writer.write(ASK_TO_UPGRADE)
    await read_head(reader)
    writer.write_eof()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    await hang_up(writer)


async def test_a_tunnel_runs_at_the_speed_of_the_slower_side(stage: Stage) -> None:
    poured = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        await read_head(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
        while poured < 40 * MB:
            writer.write(bytes(MB // 4))
            await writer.drain()
            poured += MB // 4

    await stage.serve("ada", pour)
    reader, writer = await stage.open()
    writer.write(ASK_TO_UPGRADE)
    await read_head(reader)
    await asyncio.sleep(0.5)
    assert poured < 25 * MB
    total = 0
    while piece := await asyncio.wait_for(reader.read(MB), PATIENCE_S):
        total += len(piece)
    assert total == 40 * MB
    await hang_up(writer)


async def test_a_declined_upgrade_is_a_plain_response_and_closes(stage: Stage) -> None:
    await stage.serve("ada", echo_heads)
    answer = await stage.send_raw(ASK_TO_UPGRADE + made("GET /second HTTP/1.1", "Host: ada.localhost"))
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert b"second" not in answer.body
    assert len(stage.gate.seen) == 1


# ── revoked credentials ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_cutting_a_credential_ends_only_its_connections(stage: Stage) -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        await reader.read()

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    await stage.serve("ada", stream, bearer="mine")
    await stage.serve("eve", stream, bearer="another")
    path = stage.folder / "socket"
    stage.gate.verdicts["socket"] = passing(Address(unix_path=str(path)), bearer="mine")
    readers = {}
    for name in ("ada", "eve"):
        reader, writer = await stage.open()
        writer.write(made("GET / HTTP/1.1", f"Host: {name}.localhost"))
        await reader.readuntil(b"begun")
        readers[name] = (reader, writer)
    async with unix_serve(echo, str(path)):
        async with connect(f"ws://socket.localhost:{stage.port}/", host="127.0.0.1", proxy=None) as client:
            await client.send("hello")
            assert await client.recv() == "hello"
            stage.front.cut("mine")
            await asyncio.wait_for(client.wait_closed(), PATIENCE_S)
            assert client.close_code == 1008
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(readers["ada"][0].read(), PATIENCE_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(readers["eve"][0].read(), 0.1)
    for _, writer in readers.values():
        await hang_up(writer)


# ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_port_in_use_is_reported(stage: Stage) -> None:
    second = ProxyServer(OpenGate(), port=stage.port, hosts=LOOPBACK)
    with pytest.raises(Refused) as refused:
        await second.start()
    assert refused.value.code == "port_in_use"
    assert f"port {stage.port} is in use" in refused.value.message
    assert "--port" in refused.value.message


async def test_an_address_of_another_machine_is_skipped(anyio_backend: object) -> None:
    front = ProxyServer(OpenGate(), port=0, hosts=("127.0.0.1", "2001:db8::1"))
    await front.start()
    await front.stop()


async def test_thousands_of_concurrent_requests_are_answered(stage: Stage) -> None:
    """Also if the accept queue of the listener is shorter."""
    path = stage.folder / "ada"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(4)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await hang_up(writer)

    stage.servers.append(await asyncio.start_unix_server(answer, sock=listener, backlog=4))
    stage.gate.verdicts["ada"] = passing(Address(unix_path=str(path)))
    at = time.monotonic()
    answers = await asyncio.gather(*(stage.ask("Host: ada.localhost") for _ in range(500)))
    assert {answer.status for answer in answers} == {200}, time.monotonic() - at
