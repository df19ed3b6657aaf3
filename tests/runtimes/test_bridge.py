"""The bridge inside a workspace carries every byte, at the pace of the reader, and ends with its connections."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.waiting import until
from torpor.inside.bridge import SPLICED_AT_ONCE, Bridge

pytestmark = pytest.mark.anyio
PATIENCE_S = 20


@dataclass
class Bridged:
    """The two ends of the connection."""

    bridge: Bridge
    client: socket.socket
    program: socket.socket

    async def heard(self, by: socket.socket) -> bytes:
        """All data, to the end."""
        loop, heard = asyncio.get_running_loop(), b""
        async with asyncio.timeout(PATIENCE_S):
            while data := await loop.sock_recv(by, 1 << 16):
                heard += data
        return heard

    async def say(self, by: socket.socket, said: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_sendall(by, said)

    @staticmethod
    def has_something_for(one: socket.socket) -> bool:
        try:
            return bool(one.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    async def until_over(self) -> None:
        await until(lambda: not self.bridge._ends)


def connected() -> tuple[socket.socket, socket.socket]:
    """TCP connections, like the program's: they have resets, which Unix sockets do not have."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    made = Bridge()
    made.listen()
    yield made
    asyncio.get_running_loop().remove_reader(made._poll.fileno())
    for end in list(made._ends.values()):
        made._close(end)
    made._poll.close()


@pytest.fixture
async def talk(bridge: Bridge) -> AsyncIterator[Bridged]:
    with contextlib.ExitStack() as stack:
        client, near = socket.socketpair()
        program, far = connected()
        for one in (client, program):
            one.setblocking(False)
            stack.enter_context(one)
        bridge.splice(near, far)
        yield Bridged(bridge, client, program)


async def test_every_byte_arrives_in_both_directions(talk: Bridged) -> None:
    for seed in range(5):
        dice = random.Random(seed)
        said = [dice.randbytes(dice.choice((1, 100, 5000, 300_000, 3_000_000))) for _ in range(4)]

        async def speak(by: socket.socket, parts: list[bytes]) -> None:
            for part in parts:
                await talk.say(by, part)

        async def hear(by: socket.socket, size: int) -> bytes:
            heard = b""
            async with asyncio.timeout(PATIENCE_S):
                while len(heard) < size:
                    heard += await asyncio.get_running_loop().sock_recv(by, 1 << 15)
            return heard

        there, back = b"".join(said), b"".join(said[::-1])
        _, _, asked, answered = await asyncio.gather(
            speak(talk.client, said),
            speak(talk.program, said[::-1]),
            hear(talk.program, len(there)),
            hear(talk.client, len(back)),
        )
        assert (asked, answered) == (there, back), seed


async def test_a_slow_reader_slows_its_writer(talk: Bridged) -> None:
    sent = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while True:
                await asyncio.get_running_loop().sock_sendall(talk.program, b"x" * 65536)
                sent += 65536
    assert sent < 64 * SPLICED_AT_ONCE, "it is held up"
    assert sum(len(end.waiting) for end in talk.bridge._ends.values()) <= SPLICED_AT_ONCE
    assert talk.bridge._poll.poll(0) == [], "and nobody is asked again and again"
    talk.program.close()
    assert len(await talk.heard(talk.client)) >= sent, "what was said before the end is heard"


@pytest.mark.parametrize("first", ["client", "program"])
async def test_a_half_close_is_forwarded_and_the_other_half_continues(talk: Bridged, first: str) -> None:
    ends = (talk.client, talk.program) if first == "client" else (talk.program, talk.client)
    await talk.say(ends[0], b"all I have")
    ends[0].shutdown(socket.SHUT_WR)
    assert await talk.heard(ends[1]) == b"all I have"
    assert talk.bridge._poll.poll(0) == [], "who has said all is not asked again and again"
    await talk.say(ends[1], b"y" * 2_000_000)
    ends[1].shutdown(socket.SHUT_WR)
    assert await talk.heard(ends[0]) == b"y" * 2_000_000
    await talk.until_over()


async def test_data_sent_before_a_reset_arrives(talk: Bridged) -> None:
    await talk.say(talk.client, b"which it never reads")
    await talk.say(talk.program, b"the last word")
    await until(lambda: talk.has_something_for(talk.client))
    talk.program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    talk.program.close()
    assert await talk.heard(talk.client) == b"the last word"
    await talk.until_over()


async def test_a_closed_side_closes_the_other(talk: Bridged) -> None:
    talk.client.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await talk.say(talk.program, b"x" * 20_000_000)
    await talk.until_over()


async def test_early_data_is_forwarded_first(bridge: Bridge) -> None:
    client, near = socket.socketpair()
    program, far = connected()
    with client, program:
        program.setblocking(False)
        client.sendall(b" and late")
        bridge.splice(near, far, b"early")
        client.shutdown(socket.SHUT_WR)
        assert await Bridged(bridge, client, program).heard(program) == b"early and late"
