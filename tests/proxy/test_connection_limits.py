"""No client address can use up the connections of others, or all descriptors of the process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.proxy.open_gate import PATIENCE_S, Answer, Stage, hang_up, made, read_answer, read_head, staged
from tests.support.waiting import until
from torpor import metrics
from torpor.proxy.connection_limits import ConnectionLimits, address_group, descriptor_limit, total_connections

pytestmark = pytest.mark.anyio

CAP = 3
ATTACKER, OTHER = "127.0.0.2", "127.0.0.3"
SLOW = made("POST / HTTP/1.1", "Host: ada.localhost", "Content-Length: 9") + b"half"
WEBSOCKET = ("Host: ada.localhost", "Connection: Upgrade", "Upgrade: websocket")


async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a GET at once, switch protocols on request, and wait for every body."""
    while True:
        head = await read_head(reader)
        if b"Upgrade" in head:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        if not head.startswith(b"GET") or b"Upgrade" in head:
            await reader.read()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@asynccontextmanager
async def capped(folder: Path, *, trusted: tuple[str, ...] = (), total: int = 100) -> AsyncIterator[Stage]:
    async with staged(folder, trusted=trusted, limits=ConnectionLimits(CAP, total)) as stage:
        await stage.serve("ada", swallow)
        yield stage


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, stage: Stage, address: str, raw: bytes = b"") -> "Connection":
        made = cls(*await asyncio.open_connection("127.0.0.1", stage.port, local_addr=(address, 0)))
        made.writer.write(raw)
        return made

    async def get(self, *lines: str) -> Answer:
        self.writer.write(made("GET / HTTP/1.1", "Host: ada.localhost", *lines))
        return await read_answer(self.reader)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


async def gets(stage: Stage, address: str, *lines: str) -> Answer:
    connection = await Connection.open(stage, address)
    try:
        return await connection.get(*lines)
    finally:
        await hang_up(connection.writer)


def limited(limit: str) -> float:
    return metrics.REGISTRY.get_sample_value("torpor_proxy_connections_limited_total", {"limit": limit}) or 0


async def test_slow_bodies_of_one_address_do_not_block_others(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path) as stage:
        slow = [await Connection.open(stage, ATTACKER, SLOW) for _ in range(CAP)]
        await until(lambda: stage.accepted.get("ada") == CAP)
        before = limited("address")
        refused = await gets(stage, ATTACKER)
        assert (refused.status, refused.headers["connection"]) == (429, "close")
        assert b"connections_per_address" in refused.body
        assert limited("address") == before + 1
        assert (await gets(stage, OTHER)).status == 200
        await hang_up(slow.pop().writer)
        await until(lambda: stage.front.counted == CAP - 1)
        assert (await gets(stage, ATTACKER)).status == 200
        for one in slow:
            await hang_up(one.writer)
        await until(lambda: (stage.front.connections, stage.front.counted) == (0, 0))


async def test_a_connection_without_a_request_is_closed_for_a_newer_one(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path) as stage:
        kept = await Connection.open(stage, ATTACKER)
        assert (await kept.get()).status == 200
        silent = [await Connection.open(stage, ATTACKER), await Connection.open(stage, ATTACKER, b"GET / HT")]
        await until(lambda: stage.front.counted == CAP)
        busy = []
        for expected in silent:
            # Connections without a request are closed first, the oldest before the others.
            busy.append(await Connection.open(stage, ATTACKER, SLOW))
            assert await expected.is_closed()
        assert (await kept.get()).status == 200
        await until(lambda: stage.accepted.get("ada", 0) >= 1 + len(busy))
        busy.append(await Connection.open(stage, ATTACKER, SLOW))
        assert await kept.is_closed(), "it waited for no answer"
        await until(lambda: stage.accepted.get("ada", 0) >= len(busy))
        assert (await gets(stage, ATTACKER)).status == 429, "all of them have a request under way"
        for one in (*busy, *silent, kept):
            await hang_up(one.writer)
        await until(lambda: (stage.front.connections, stage.front.counted) == (0, 0))


async def test_websockets_count_towards_the_limit(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path) as stage:
        open_ones = [await Connection.open(stage, ATTACKER, made("GET / HTTP/1.1", *WEBSOCKET)) for _ in range(CAP)]
        for one in open_ones:
            assert b" 101 " in await read_head(one.reader)
        assert (await gets(stage, ATTACKER)).status == 429
        assert (await gets(stage, OTHER)).status == 200
        for one in open_ones:
            await hang_up(one.writer)
        await until(lambda: (stage.front.connections, stage.front.counted) == (0, 0))
        assert (await gets(stage, ATTACKER)).status == 200


async def test_behind_a_trusted_proxy_the_forwarded_address_counts(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path, trusted=("127.0.0.1",)) as stage:
        said = "X-Forwarded-For: 9.9.9.9"
        slow = [made("POST / HTTP/1.1", "Host: ada.localhost", "Content-Length: 9", said)] * 2
        socket = made("GET / HTTP/1.1", *WEBSOCKET, said)
        under_way = [await Connection.open(stage, "127.0.0.1", raw) for raw in (*slow, socket)]
        await until(lambda: stage.front.counted == CAP)
        shared = await Connection.open(stage, "127.0.0.1")
        refused = await shared.get(said)
        assert (refused.status, refused.headers.get("connection")) == (429, None), "the proxy's connection serves others, too"
        for number in range(2 * CAP):
            assert (await shared.get(f"X-Forwarded-For: 9.9.9.{number}, 8.8.8.8")).status == 200
        more = [await Connection.open(stage, "127.0.0.1") for _ in range(CAP)]
        for one in more:
            assert (await one.get()).status == 200, "the proxy itself is not limited"
        for one in under_way:
            await hang_up(one.writer)
        await until(lambda: stage.front.counted == 0)
        assert (await shared.get(said)).status == 200
        for one in (shared, *more):
            await hang_up(one.writer)


async def test_the_total_of_all_addresses_is_limited(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path, total=4) as stage:
        addresses = [f"127.0.0.{number}" for number in range(10, 14)]
        slow = [await Connection.open(stage, address, SLOW) for address in addresses]
        await until(lambda: stage.accepted.get("ada") == 4)
        refused = await gets(stage, OTHER)
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        await hang_up(slow.pop().writer)
        await until(lambda: stage.front.counted == 3)
        silent = await Connection.open(stage, ATTACKER)
        await until(lambda: stage.front.counted == 4)
        assert (await gets(stage, OTHER)).status == 200
        assert await silent.is_closed()
        for one in (*slow, silent):
            await hang_up(one.writer)


async def test_idle_connections_of_an_address_with_many_are_closed_at_the_total_limit(
    tmp_path: Path, anyio_backend: object
) -> None:
    async with capped(tmp_path, total=4) as stage:
        idle = [await Connection.open(stage, address) for address in ("127.0.0.10", ATTACKER, ATTACKER, ATTACKER)]
        for one in idle:
            assert (await one.get()).status == 200
        await until(lambda: stage.front.counted == 4)
        assert (await gets(stage, OTHER)).status == 200
        assert await idle[1].is_closed()
        assert (await idle[0].get()).status == 200, "its address has only one"
        for one in idle:
            await hang_up(one.writer)


async def test_silent_connections_are_closed_while_another_is_being_refused(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path, total=4) as stage:
        # It has its response and keeps its half open, so it is read for a while.
        lingering = await Connection.open(stage, ATTACKER, b"no request\r\n\r\n")
        assert (await read_answer(lingering.reader)).status == 400
        silent = [await Connection.open(stage, f"127.0.0.{number}") for number in range(10, 13)]
        await until(lambda: stage.front.counted == 4)
        assert (await gets(stage, OTHER)).status == 200
        assert await silent[0].is_closed()
        for one in (lingering, *silent):
            await hang_up(one.writer)


async def test_refused_connections_do_not_accumulate(tmp_path: Path, anyio_backend: object) -> None:
    async with capped(tmp_path) as stage:
        slow = [await Connection.open(stage, ATTACKER, SLOW) for _ in range(CAP)]
        await until(lambda: stage.accepted.get("ada") == CAP)
        refused = await asyncio.gather(*(Connection.open(stage, ATTACKER, b"POST") for _ in range(200)))
        assert (await gets(stage, OTHER)).status == 200
        await until(lambda: stage.front.connections <= CAP + ConnectionLimits(CAP, 100).answered)
        for one in (*slow, *refused):
            await hang_up(one.writer)
        await until(lambda: (stage.front.connections, stage.front.counted) == (0, 0))


FLOOD = """
import asyncio, resource, sys
from pathlib import Path
from tests.proxy.test_connection_limits import flood
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
asyncio.run(flood(Path(sys.argv[1])))
"""


async def flood(folder: Path) -> None:
    """Run a proxy server in another process with few descriptors."""
    limits = ConnectionLimits(100_000, total_connections(descriptor_limit()))
    async with staged(folder, limits=limits) as stage:
        await stage.serve("ada", swallow)
        print(stage.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        # What the process needs besides connections can still be opened.
        opened = [(folder / "ada.txt").open("w") for _ in range(16)]
        print("ok", len(opened), flush=True)
        for one in opened:
            one.close()


async def test_slow_bodies_do_not_use_up_the_descriptors(tmp_path: Path, anyio_backend: object) -> None:
    """The limit for one address is out of reach here, so only the total limit applies."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, str(tmp_path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    connections = []
    for number in range(400):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{number % 200 + 1}", 0))
        writer.write(SLOW)
        connections.append((reader, writer))
    with suppress(ConnectionError):  # it is answered or closed
        async with asyncio.timeout(PATIENCE_S):
            assert await connections[-1][0].read(12) in (b"HTTP/1.1 503", b"")
    process.stdin.close()
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert (await process.stdout.read()).endswith(b"ok 16\n")
    finally:
        for _, writer in connections:
            await hang_up(writer)
        await process.wait()


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_addresses_are_grouped_by_client(one: str, other: str, are_same: bool) -> None:
    assert (address_group(one) == address_group(other)) is are_same
