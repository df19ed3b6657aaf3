"""Upstream connections are reused, but never for a request that could be lost. On both event loops."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.proxy.open_gate import Stage, echo_heads, hang_up, made, read_answer, read_head, staged
from tests.support.waiting import until
from torpor.proxy.timeouts import ProxyTimeouts

pytestmark = pytest.mark.anyio

ADA = "Host: ada.localhost"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def test_one_connection_serves_many_clients(stage: Stage) -> None:
    await stage.serve("ada", echo_heads)
    for _ in range(10):
        assert (await stage.ask(ADA)).status == 200
    assert stage.accepted["ada"] == 1


async def test_concurrent_requests_have_separate_connections(stage: Stage) -> None:
    both = asyncio.Barrier(2)

    async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await both.wait()
        writer.write(OK)
        await reader.read()

    await stage.serve("ada", together)
    answers = await asyncio.gather(stage.ask(ADA), stage.ask(ADA))
    assert [answer.body for answer in answers] == [b"ok", b"ok"]
    assert stage.accepted["ada"] == 2


async def test_a_request_that_cannot_be_repeated_uses_a_new_connection(stage: Stage) -> None:
    await stage.serve("ada", echo_heads)
    for target in ("GET", "POST", "PATCH", "LOCK"):
        assert (await stage.ask(ADA, target=f"{target} / HTTP/1.1")).status == 200
    assert stage.accepted["ada"] == 4


async def test_a_request_lost_with_a_closing_connection_is_sent_again(stage: Stage) -> None:
    """The program closes after each response without announcing it, at the moment of the next request."""
    asked = 0

    async def treacherous(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_head(reader)
        asked += 1
        writer.write(OK)
        # It reads the next request and closes.
        await reader.read(1)

    await stage.serve("ada", treacherous)
    reader, writer = await stage.open()
    for _ in range(20):
        writer.write(made("GET / HTTP/1.1", ADA))
        assert (await read_answer(reader)).body == b"ok"
    assert asked == 20
    await hang_up(writer)


async def test_a_request_whose_response_has_begun_is_not_sent_again(stage: Stage) -> None:
    asked = 0

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_head(reader)
        asked += 1
        writer.write(OK)
        await read_head(reader)
        asked += 1
        writer.write(b"HTTP/1.1 2")
        await writer.drain()

    await stage.serve("ada", half)
    assert (await stage.ask(ADA)).status == 200
    assert (await stage.ask(ADA)).status == 502
    assert asked == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 204 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
    ],
)
async def test_some_responses_prevent_the_reuse_of_their_connection(stage: Stage, answer: bytes) -> None:
    async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_head(reader)
            writer.write(answer)
            await writer.drain()

    await stage.serve("ada", behind)
    for _ in range(3):
        assert (await stage.ask(ADA)).body == (b"" if b"204" in answer else b"ok")
    assert stage.accepted["ada"] == 3


async def test_an_unrequested_response_is_dropped(stage: Stage) -> None:
    hung_up = asyncio.Event()

    async def talks_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
        await reader.read()
        hung_up.set()

    await stage.serve("ada", talks_on)
    assert (await stage.ask(ADA)).body == b"ok"
    await until(hung_up.is_set)
    assert (await stage.ask(ADA)).body == b"ok"
    assert stage.accepted["ada"] == 2


async def test_the_connection_of_a_disconnected_client_is_not_reused(stage: Stage) -> None:
    """The rest of its response must not become the beginning of another client's."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await reader.read()

    await stage.serve("ada", slow)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    await reader.readuntil(b"half")
    with writer.get_extra_info("socket").dup() as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()
    await until(lambda: stage.front.connections == 0)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    assert (await reader.readuntil(b"half")).startswith(b"HTTP/1.1 200")
    assert stage.accepted["ada"] == 2
    await hang_up(writer)


async def test_kept_connections_are_limited_in_number_and_time(tmp_path: Path, anyio_backend: object) -> None:
    open_now = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            await read_head(reader)
            await asyncio.sleep(0.1)
            writer.write(OK)
            await reader.read()
        finally:
            open_now -= 1

    async with staged(tmp_path, patience=ProxyTimeouts(kept_s=0.6, most_kept=3, look_s=0.02)) as stage:
        await stage.serve("ada", counted)
        await asyncio.gather(*(stage.ask(ADA) for _ in range(10)))
        await until(lambda: open_now == 3)
        await until(lambda: open_now == 0)
