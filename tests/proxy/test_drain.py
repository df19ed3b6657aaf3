"""A server that stops lets requests finish, and closes WebSockets with a close frame. On both event loops."""

import asyncio

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, unix_serve

from tests.proxy.open_gate import (
    PATIENCE_S,
    Stage,
    echo_heads,
    hang_up,
    made,
    passing,
    read_answer,
    read_head,
)
from tests.support.waiting import until
from torpor.ports import Address
from torpor.proxy.gate import Verdict
from torpor.proxy.server import ProxyServer

pytestmark = pytest.mark.anyio

ADA = "Host: ada.localhost"


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def is_draining(front: ProxyServer) -> bool:
    return front._traffic is not None and front._traffic.is_draining


async def test_a_request_in_progress_is_answered_and_new_ones_are_not_accepted(stage: Stage) -> None:
    begun = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        begun.set()
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
        await reader.read()

    await stage.serve("ada", slow)
    await stage.serve("eve", echo_heads)
    spare, kept = await stage.open(), await stage.open()
    kept[1].write(made("GET / HTTP/1.1", "Host: eve.localhost"))
    assert "connection" not in (await read_answer(kept[0])).headers
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    await begun.wait()
    stopping = asyncio.create_task(stage.front.stop(grace_s=PATIENCE_S))
    for idle in (spare, kept):
        assert await asyncio.wait_for(idle[0].read(), PATIENCE_S) == b""
    with pytest.raises(OSError):
        await stage.open()
    answer = await read_answer(reader)
    assert (answer.body, answer.headers["connection"]) == (b"done", "close")
    await asyncio.wait_for(stopping, PATIENCE_S)
    for each in (spare[1], kept[1], writer):
        await hang_up(each)


async def test_a_response_that_began_before_the_drain_closes_its_connection(stage: Stage) -> None:
    may_end = asyncio.Event()

    async def long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
        await may_end.wait()
        writer.write(b"half")
        await reader.read()

    await stage.serve("ada", long)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    await reader.readuntil(b"half")
    stopping = asyncio.create_task(stage.front.stop(grace_s=PATIENCE_S))
    await until(lambda: is_draining(stage.front))
    may_end.set()
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"half"
    await asyncio.wait_for(stopping, PATIENCE_S)
    await hang_up(writer)


async def echoing(stage: Stage) -> ClientConnection:
    stage.gate.verdicts["socket"] = passing(Address(unix_path=str(stage.folder / "socket")))
    return await connect(f"ws://socket.localhost:{stage.port}/", host="127.0.0.1", proxy=None, compression=None)


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def test_a_websocket_continues_for_the_grace_period_and_gets_a_close_frame(stage: Stage) -> None:
    codes: list[int | None] = []

    async def noted(connection: ServerConnection) -> None:
        await echo(connection)
        codes.append(connection.close_code)

    async with unix_serve(noted, str(stage.folder / "socket")):
        client = await echoing(stage)
        stopping = asyncio.create_task(stage.front.stop(grace_s=0.5))
        await until(lambda: is_draining(stage.front))
        await client.send("still here")
        assert await asyncio.wait_for(client.recv(), PATIENCE_S) == "still here"
        await asyncio.wait_for(stopping, PATIENCE_S)
        await asyncio.wait_for(client.wait_closed(), PATIENCE_S)
        assert client.close_code == 1001
        await until(lambda: codes == [1001])


async def test_a_half_closed_websocket_does_not_delay_the_drain(stage: Stage) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(made("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket"))
        await reader.read()
        ended.set()
        await asyncio.sleep(PATIENCE_S)

    await stage.serve("ada", silent)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA, "Connection: Upgrade", "Upgrade: websocket"))
    await read_head(reader)
    writer.write_eof()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    await asyncio.wait_for(stage.front.stop(grace_s=0), PATIENCE_S)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"\x88\x02\x03\xe9", "it is told: going away"
    assert stage.front.connections == 0
    await hang_up(writer)


async def test_the_drain_ends_when_the_last_websocket_ends(stage: Stage) -> None:
    async with unix_serve(echo, str(stage.folder / "socket")):
        client = await echoing(stage)
        stopping = asyncio.create_task(stage.front.stop(grace_s=600))
        await until(lambda: is_draining(stage.front))
        await client.close()
        await asyncio.wait_for(stopping, PATIENCE_S)


async def test_a_request_that_waits_for_a_workspace_gets_503_with_retry_after(stage: Stage) -> None:
    async def for_ever() -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError

    stage.gate.verdicts["ada"] = lambda *_: for_ever()
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    await until(lambda: bool(stage.gate.seen))
    await stage.front.stop(grace_s=0.05)
    answer = await read_answer(reader)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    await hang_up(writer)


async def test_a_response_that_does_not_end_is_reset(stage: Stage) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        await reader.read()

    await stage.serve("ada", endless)
    reader, writer = await stage.open()
    writer.write(made("GET / HTTP/1.1", ADA))
    await reader.readuntil(b"begun")
    await stage.front.stop(grace_s=0.05)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert stage.front.connections == 0
    await hang_up(writer)
