"""Many requests share a connection and do not disturb each other. On both event loops."""

import asyncio
from pathlib import Path

import pytest

from tests.proxy.open_gate import (
    HASTY,
    PATIENCE_S,
    Stage,
    echo_heads,
    hang_up,
    made,
    read_answer,
    read_head,
    staged,
)
from tests.support.waiting import until
from torpor.proxy.gate import Reply
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.timeouts import ProxyTimeouts

pytestmark = pytest.mark.anyio

ADA = "Host: ada.localhost"


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def echo_bodies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the target and the body, and keep the connection."""
    while True:
        head = await read_head(reader)
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        body = await reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""
        said = head.split(b" ")[1] + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
        await writer.drain()


async def test_requests_of_all_kinds_share_one_connection(stage: Stage) -> None:
    await stage.serve("ada", echo_bodies)
    await stage.serve("eve", echo_bodies)
    stage.gate.verdicts["gate"] = Reply(404, RequestOutcome.UNKNOWN, (), b"unknown")
    reader, writer = await stage.open()
    for number in range(30):
        host = ("ada", "eve", "gate")[number % 3]
        body = b"x" * (number * 1000)
        writer.write(made(f"PUT /{number} HTTP/1.1", f"Host: {host}.localhost", f"Content-Length: {len(body)}"))
        # In pieces, so that the head is forwarded before its body has arrived.
        for at in range(0, len(body), 4000):
            writer.write(body[at : at + 4000])
            await writer.drain()
            await asyncio.sleep(0)
        answer = await read_answer(reader)
        if host == "gate":
            assert (answer.status, answer.body) == (404, b"unknown")
            if "connection" in answer.headers:
                # The upstream answered before it had the body, and the proxy cannot tell where the next request begins.
                await hang_up(writer)
                reader, writer = await stage.open()
        else:
            assert answer.body == b"/%d%s" % (number, body)
    await hang_up(writer)


async def test_earlier_requests_do_not_change_a_forwarded_head(stage: Stage) -> None:
    for host in ("ada", "localhost"):
        await stage.serve(host, echo_heads)
    mine, other = "Cookie: torpor_door=a; mine=1", "Cookie: torpor_door=a; mine=2"
    asked = [
        made(line, f"Host: {host}", *more)
        for line, host, more in [
            ("GET /a HTTP/1.1", "ada.localhost", [mine]),
            ("GET /b?c=%20&d HTTP/1.1", "ada.localhost", [mine]),
            ("GET /b?c=%20&d HTTP/1.1", "ada.localhost", [mine]),
            ("GET /b?c=%20&d HTTP/1.1", "ada.localhost", [other]),
            ("DELETE /b?c=%20&d HTTP/1.1", "ada.localhost", [other]),
            ("GET /b HTTP/1.1", "localhost", [other]),
            ("GET /a HTTP/1.1", "localhost", [other]),
            ("GET http://localhost/c HTTP/1.1", "localhost", [other]),
            ("GET /d HTTP/1.1", "localhost", [other]),
            (f"GET /{'e' * 3000} HTTP/1.1", "localhost", [other]),
            ("GET /f HTTP/1.1", "localhost", [other]),
            ("GET /f HTTP/1.1", "ada.localhost", [other, "Authorization: Bearer torpor_x"]),
            ("GET /g HTTP/1.1", "ada.localhost", [other, "Authorization: Bearer torpor_x"]),
        ]
    ]
    alone: list[bytes] = []
    for raw in asked:
        reader, writer = await stage.open()
        writer.write(raw)
        alone.append((await read_answer(reader)).body)
        await hang_up(writer)
    assert alone[1].startswith(b"GET /b?c=%20&d HTTP/1.1\r\nHost: ada.localhost\r\nCookie: mine=1\r\n")
    reader, writer = await stage.open()
    for raw, expected in zip(asked, alone, strict=True):
        writer.write(raw)
        assert (await read_answer(reader)).body == expected
    await hang_up(writer)


async def test_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    async def sometimes_slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            if b"/slow" in head:
                await asyncio.sleep(0.05)
            said = head.split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))

    await stage.serve("ada", sometimes_slow)
    targets = [f"/{'slow' if number % 5 == 0 else 'fast'}{number}" for number in range(40)]
    reader, writer = await stage.open()
    writer.write(b"".join(made(f"GET {target} HTTP/1.1", ADA) for target in targets))
    for target in targets:
        assert (await read_answer(reader)).body == target.encode()
    assert len(stage.gate.seen) == len(targets), "each is judged"
    await hang_up(writer)


async def test_pipelined_requests_of_a_half_closed_client_are_answered(stage: Stage) -> None:
    await stage.serve("ada", echo_bodies)
    reader, writer = await stage.open()
    posts = [made(f"POST /{number} HTTP/1.1", ADA, "Content-Length: 3") + b"%03d" % number for number in range(20)]
    writer.write(b"".join(posts) + b"GET /half HTT")
    writer.write_eof()
    for number in range(20):
        assert (await read_answer(reader)).body == b"/%d%03d" % (number, number)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    await hang_up(writer)


async def test_a_bad_request_after_a_good_one_is_refused_and_the_good_one_answered(stage: Stage) -> None:
    await stage.serve("ada", echo_bodies)
    reader, writer = await stage.open()
    writer.write(made("GET /good HTTP/1.1", ADA) + b"GET /bad HTTP/1.1\nHost: ada\n\n" + made("GET /never HTTP/1.1", ADA))
    assert (await read_answer(reader)).body == b"/good"
    answer = await read_answer(reader)
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    assert len(stage.gate.seen) == 1
    await hang_up(writer)


@pytest.mark.parametrize("framing", ["Content-Length: 4", "Transfer-Encoding: chunked"])
async def test_bytes_after_a_body_belong_to_the_next_request(stage: Stage, framing: str) -> None:
    received: list[bytes] = []

    async def greedy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_head(reader))
        while True:
            piece = await reader.read(1000)
            if not piece:
                return
            received[-1] += piece
            if received[-1].endswith((b"body", b"0\r\n\r\n")):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await stage.serve("ada", greedy)
    body = b"body" if "Length" in framing else b"4\r\nbody\r\n0\r\n\r\n"
    one = made("POST /one HTTP/1.1", ADA, framing) + body
    two = made("POST /two HTTP/1.1", ADA, framing) + body
    reader, writer = await stage.open()
    writer.write(one + two)
    for _ in range(2):
        assert (await read_answer(reader)).body == b"ok"
    assert [part.split(b" ")[1] for part in received] == [b"/one", b"/two"]
    assert all(part.endswith(b"\r\n\r\n" + body) for part in received)
    await hang_up(writer)


async def test_http_1_0_and_connection_close_close_the_connection(stage: Stage) -> None:
    await stage.serve("ada", echo_heads)
    for raw in (made("GET / HTTP/1.0", ADA), made("GET / HTTP/1.1", ADA, "Connection: close")):
        answer = await stage.send_raw(raw)
        assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_answers_without_a_body_do_not_end_the_connection(stage: Stage) -> None:
    async def empty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            status = (await read_head(reader)).split(b" ")[1].removeprefix(b"/")
            length = b"" if status == b"204" else b"Content-Length: 7\r\n"
            writer.write(b"HTTP/1.1 %s X\r\n%s\r\n" % (status, length))

    await stage.serve("ada", empty)
    reader, writer = await stage.open()
    for method, status in (("HEAD", "200"), ("GET", "204"), ("GET", "304"), ("HEAD", "404")):
        writer.write(made(f"{method} /{status} HTTP/1.1", ADA))
        head = await asyncio.wait_for(read_head(reader), PATIENCE_S)
        assert head.startswith(b"HTTP/1.1 " + status.encode())
    assert stage.accepted["ada"] == 1
    await hang_up(writer)


async def test_a_response_without_length_is_the_last(stage: Stage) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the end")
        await writer.drain()

    await stage.serve("ada", endless)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    assert await reader.read() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end"
    await hang_up(writer)


async def test_an_idle_connection_is_closed(tmp_path: Path, anyio_backend: object) -> None:
    async with staged(tmp_path, patience=HASTY) as stage:
        await stage.serve("ada", echo_heads)
        reader, writer = await stage.open()
        writer.write(made("GET / HTTP/1.1", ADA))
        assert (await read_answer(reader)).status == 200
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        await until(lambda: stage.front.connections == 0)
        await hang_up(writer)


async def test_the_timeout_of_a_head_starts_with_its_first_byte(tmp_path: Path, anyio_backend: object) -> None:
    async with staged(tmp_path, patience=ProxyTimeouts(head_s=1.0, look_s=0.02)) as stage:
        await stage.serve("ada", echo_heads)
        reader, writer = await stage.open()
        raw = made("GET / HTTP/1.1", ADA)
        for _ in range(2):
            writer.write(raw[:10])
            await asyncio.sleep(0.1)
            writer.write(raw[10:])
            assert (await read_answer(reader)).status == 200
            await asyncio.sleep(1.2)
        writer.write(raw[:10])
        assert (await read_answer(reader)).status == 408
        await hang_up(writer)


async def test_a_client_that_never_reads_uses_bounded_memory(stage: Stage) -> None:
    """Endless requests from a client that never reads use a bounded amount of memory."""
    asked = 0

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while True:
            await read_head(reader)
            asked += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
            await writer.drain()

    await stage.serve("ada", large)
    reader, writer = await stage.open()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(made("GET / HTTP/1.1", ADA) * 200)
    await asyncio.sleep(0.5)
    assert 0 < asked < 50
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        assert len((await read_answer(reader)).body) == 1_000_000
    await hang_up(writer)
