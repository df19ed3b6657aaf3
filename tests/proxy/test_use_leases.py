"""The bus learns which connections are in use, and no request waits for it. Real proxy server, Valkey and WebSockets."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, unix_serve

from tests.proxy.open_gate import LOOPBACK, OpenGate, passing
from tests.support.waiting import until
from torpor import metrics
from torpor.bus.activity import RedisActivity
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.ports import Address, Use
from torpor.proxy.gate import Verdict
from torpor.proxy.request_head import RequestHead
from torpor.proxy.server import ProxyServer
from torpor.proxy.use_leases import ConnectionLeases
from torpor.service.activity import TouchQueue
from torpor.testing.defaults import DEFAULTS

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
LEASE_S = 0.9


@dataclass
class Stage:
    front: ProxyServer
    activity: RedisActivity
    leases: ConnectionLeases
    folder: Path
    standby_ttl_s: float = 60

    async def use(self, name: str = "ada") -> Use:
        return (await self.activity.uses([name]))[name]

    async def until(self, is_so: Callable[[Use], bool], name: str = "ada") -> Use:
        async def use() -> Use | None:
            seen = await self.use(name)
            return seen if is_so(seen) else None

        return await until(use)

    async def connect(self, name: str = "ada") -> ClientConnection:
        url = f"ws://{name}.localhost:{self.front.port}/"
        return await connect(url, host="127.0.0.1", proxy=None, ping_interval=None, open_timeout=PATIENCE_S)


@contextlib.asynccontextmanager
async def staged(folder: Path, url: str) -> AsyncIterator[Stage]:
    """Every name is a running workspace whose id is its name, and which echoes its input."""
    bus = await Bus.open(url)
    activity = RedisActivity(bus)
    touches = TouchQueue(activity, lease_s=DEFAULTS.connection_lease)
    leases = ConnectionLeases(activity, touches.touch, lease_s=LEASE_S)

    def watched(head: RequestHead, client: str) -> Verdict:
        name = head.host.partition(".")[0]
        return passing(Address(unix_path=str(folder / "w")), use=leases.of(name, standby_ttl_s=made.standby_ttl_s))

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    names = ("ada", "eve", "before", "closed", "during")
    gate = OpenGate({"localhost": passing(Address(unix_path="/nowhere"))})
    gate.verdicts.update(dict.fromkeys(names, watched))
    front = ProxyServer(gate, port=0, hosts=LOOPBACK)
    made = Stage(front, activity, leases, folder)
    touching = asyncio.create_task(touches.run())
    try:
        async with unix_serve(echo, str(folder / "w"), ping_interval=None), leases.running():
            await front.start()
            try:
                yield made
            finally:
                await front.stop(grace_s=0)
    finally:
        touching.cancel()
        await asyncio.gather(touching, return_exceptions=True)
        await bus.close()


@pytest.fixture
async def stage(tmp_path: Path, redis_url: str) -> AsyncIterator[Stage]:
    async with staged(tmp_path, redis_url) as made:
        yield made


async def while_doing(seconds: float, act: Callable[[], Awaitable[object]]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await act()
        await asyncio.sleep(0.05)


async def test_a_websocket_has_a_lease_from_its_beginning_to_its_end(stage: Stage) -> None:
    client = await stage.connect()
    await stage.until(lambda use: use.connections == 1)
    second = await stage.connect()
    await stage.until(lambda use: use.connections == 2)
    await second.close()
    await stage.until(lambda use: use.connections == 1)
    # Longer than a lease, so it is renewed.
    lowest = 9
    until = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < until:
        lowest = min(lowest, (await stage.use()).connections)
        await asyncio.sleep(0.05)
    assert lowest == 1
    await client.close()
    use = await stage.until(lambda use: use.connections == 0)
    assert use.idle_timer_s is not None
    assert 50 < use.idle_timer_s <= 60


async def test_a_lease_expires_with_pings_alone_and_returns_with_data(stage: Stage) -> None:
    stage.standby_ttl_s = 1
    async with await stage.connect() as client:
        await stage.until(lambda use: use.connections == 1)

        async def ping() -> None:
            await (await client.ping())

        pinging = asyncio.create_task(while_doing(PATIENCE_S, ping))
        await stage.until(lambda use: use.connections == 0)
        assert not pinging.done()
        pinging.cancel()
        await client.send("hello")
        assert await client.recv() == "hello"
        await stage.until(lambda use: use.connections == 1)


async def test_data_keeps_the_lease(stage: Stage) -> None:
    stage.standby_ttl_s = 1
    async with await stage.connect() as client:
        await stage.until(lambda use: use.connections == 1)
        counts: list[int] = []

        async def work() -> None:
            await client.send(b"x")
            await client.recv()
            counts.append((await stage.use()).connections)

        await while_doing(2 * (LEASE_S + 1), work)
        assert set(counts) == {1}


async def test_closing_a_connection_with_an_expired_lease_is_not_use(stage: Stage) -> None:
    stage.standby_ttl_s = 1
    client = await stage.connect()
    await stage.until(lambda use: use.connections == 1)
    await stage.until(lambda use: use.connections == 0 and use.idle_timer_s is None)
    await client.close()
    await until(lambda: not stage.leases._open)
    await stage.leases._release_closed()
    assert await stage.use() == Use(0, None)


async def test_a_request_starts_the_idle_timer_and_one_to_an_unknown_host_does_not(stage: Stage) -> None:
    for name, status in (("ada", b"426"), ("nobody", b"404")):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.front.port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n".encode())
        assert status in await reader.readline()
        writer.close()
    use = await stage.until(lambda use: use.idle_timer_s is not None)
    assert use.connections == 0
    assert 50 < (use.idle_timer_s or 0) <= 60
    assert await stage.use("nobody") == Use(0, None)


async def test_an_event_stream_is_not_use_but_a_download_is(stage: Stage) -> None:
    stage.standby_ttl_s = 1

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        kind = b"text/event-stream" if b"/events" in head else b"application/zip"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n" % kind)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b": still here\n\n")
                await writer.drain()
                await asyncio.sleep(0.05)

    (stage.folder / "w").unlink()
    server = await asyncio.start_unix_server(pour, stage.folder / "w")
    writers = []
    for name, path in (("eve", "/events"), ("ada", "/file.zip")):
        _, writer = await asyncio.open_connection("127.0.0.1", stage.front.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n".encode())
        writers.append(writer)
    await stage.until(lambda use: use.idle_timer_s is not None, "eve")
    await stage.until(lambda use: use.idle_timer_s is None, "eve")
    assert (await stage.use("ada")).connections == 1
    for writer in writers:
        writer.close()
    server.close()


async def test_a_request_counts_as_use_until_it_is_answered(stage: Stage) -> None:
    stage.standby_ttl_s = 1
    may_answer = asyncio.Event()

    async def think(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await may_answer.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    (stage.folder / "w").unlink()
    server = await asyncio.start_unix_server(think, stage.folder / "w")
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.front.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: ada.localhost\r\n\r\n")
    await stage.until(lambda use: use.idle_timer_s is not None)

    async def is_used() -> None:
        use = await stage.use()
        assert use.connections or use.idle_timer_s is not None

    await while_doing(2 * (stage.standby_ttl_s + LEASE_S), is_used)
    may_answer.set()
    assert b"204" in await reader.readline()
    use = await stage.until(lambda use: use.connections == 0)
    assert use.idle_timer_s is not None
    await stage.until(lambda use: use == Use(0, None))
    writer.close()
    server.close()


async def test_quick_requests_cause_fewer_messages_to_the_bus_than_requests(stage: Stage) -> None:
    async def commands() -> int:
        (told,) = await stage.activity._bus.ask(("INFO", "commandstats"))
        return sum(int(stat["calls"]) for name, stat in told.items() if name in ("cmdstat_eval", "cmdstat_set"))

    before = await commands()
    for _ in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.front.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: ada.localhost\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()
    await stage.until(lambda use: use.idle_timer_s is not None)
    # `until` itself calls scripts; the rest must be less than one for each request.
    assert await commands() - before < 20


async def test_a_lowered_ttl_counts_for_open_connections(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.proxy.use_leases.TTLS_EVERY_S", 0.05)
    bus = await Bus.open(redis_url)
    ttls = {"ada": 60.0}

    async def ttls_of(workspace_ids: Collection[str]) -> Mapping[str, float]:
        assert set(workspace_ids) == {"ada", "eve"}
        return ttls

    leases = ConnectionLeases(RedisActivity(bus), lambda *_: None, lease_s=LEASE_S, ttls_of=ttls_of)
    try:
        async with leases.running():
            for name in ("ada", "eve"):
                leases.connect(name, 60)
            await until(lambda: _connections(bus, "ada", 1))
            ttls["ada"] = 0.5
            await until(lambda: _connections(bus, "ada", 0))
            assert await _connections(bus, "eve", 1), "of which nothing is known any more"
    finally:
        await bus.close()


async def test_traffic_continues_without_the_bus_and_use_is_reported_afterwards(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "bus")
    url = await server.start()
    folder = tmp_path / "f"
    folder.mkdir()
    try:
        async with staged(folder, url) as stage:
            before, closed = await stage.connect("before"), await stage.connect("closed")
            for name in ("before", "closed"):
                await stage.until(lambda use: use.connections == 1, name)
            await server.stop()
            during = await stage.connect("during")
            await closed.close()
            for client in (before, during):
                async with asyncio.timeout(PATIENCE_S):
                    await client.send("hello")
                    assert await client.recv() == "hello"
            await server.start()
            for name in ("before", "during"):
                await stage.until(lambda use: use.connections == 1, name)
            await stage.until(lambda use: use.connections == 0 and use.idle_timer_s is not None, "closed")
            await before.close()
            await during.close()
    finally:
        await server.stop()


async def test_a_proxy_that_stops_releases_all_leases(tmp_path: Path, redis_url: str) -> None:
    async with staged(tmp_path, redis_url) as stage:
        clients = [await stage.connect() for _ in range(5)]
        await stage.until(lambda use: use.connections == 5)
    bus = await Bus.open(redis_url)
    use = (await RedisActivity(bus).uses(["ada"]))["ada"]
    assert use.connections == 0
    assert use.idle_timer_s is not None
    await bus.close()
    for client in clients:
        with contextlib.suppress(Exception):
            await client.close()


async def test_requests_and_connections_are_counted(stage: Stage) -> None:
    def counted(outcome: str) -> float:
        return metrics.REGISTRY.get_sample_value("torpor_proxy_requests_total", {"outcome": outcome}) or 0

    def connections() -> float:
        return metrics.REGISTRY.get_sample_value("torpor_proxy_connections") or 0

    before = {outcome: counted(outcome) for outcome in ("tunnel", "unknown", "bad_request", "no_answer")}
    at_first = connections()
    client = await stage.connect()
    assert connections() == at_first + 1
    for raw in (
        b"GET / HTTP/1.1\r\nHost: nobody.localhost\r\nConnection: close\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.front.port)
        writer.write(raw)
        await reader.read()
        writer.close()
    assert {outcome: counted(outcome) - was for outcome, was in before.items()} == dict.fromkeys(before, 1)
    await client.close()
    await until(lambda: connections() == at_first)


async def _connections(bus: Bus, name: str, count: int) -> bool:
    return (await RedisActivity(bus).uses([name]))[name].connections == count
