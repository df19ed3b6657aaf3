"""Measure how many events a second reach their readers, and how soon.

From the UPDATE in PostgreSQL to the line of a `text/event-stream`: trigger, notify, numbering, bus, fan-out, HTTP. Everything
but the database and the bus runs in this one process, the readers included, so an installation can do more. It also measures
what events cost the writers. Commits of one row each, by several writers at once: as it is, without the notify (PostgreSQL lets
only one transaction at a time commit that notifies), and without any trigger.

    python bench/events.py [--changes 10000] [--streams 1,100,1000] [--writers 1,8,32] [--json]
"""

import argparse
import asyncio
import contextlib
import json
import re
import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import structlog
import uvicorn

from torpor.accounts import Accounts, digest, new_token
from torpor.api.app import Health, make_app
from torpor.api.event_fanout import EventFeed
from torpor.api.events import STREAMS_PER_USER, EventSources
from torpor.api.gc import GcSources
from torpor.api.wire import workspace_json
from torpor.archives.reader import ArchiveReader
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.feed import RedisFeed
from torpor.bus.login_throttle import Throttle
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.bus.usage import RedisUsageSeries
from torpor.control.duties import run_duty
from torpor.control.events import EventPublisher
from torpor.domain.access import EVERY_SCOPE
from torpor.domain.hostnames import Hosts
from torpor.domain.limits import RunningLimits
from torpor.runtimes.local_access import LocalAccess
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.events import EventStore, Outbox
from torpor.store.gc import GcStore
from torpor.store.migrate import migrate
from torpor.store.pack_gc import PackGcStore
from torpor.store.service_store import ServiceStore
from torpor.store.user_store import NewUser, UserStore
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeWorld

HOSTS = Hosts("http://localhost:8080", "localhost")
TERM = 1
WORKSPACES = 100
SINGLE = 200
ROUND_S = 2.0
ROUNDS = 5
CHANGED = re.compile(rb"id: (\d+)\nevent: state_changed\n")


@dataclass(frozen=True)
class Result:
    streams: int
    changes: int
    written_per_s: float
    """By UPDATEs of 100 rows each, as a controller saves them."""
    events_per_s: float
    """From the first UPDATE until the last stream has the last event."""
    lines_per_s: float
    """The same, counted at the streams."""
    latency_ms_median: float
    """Of one change alone, until the last stream has it."""
    latency_ms_p95: float


@dataclass(frozen=True)
class Cost:
    writers: int
    commits_per_s: float
    """Each commit has a change that makes an event."""
    without_notify_per_s: float
    without_trigger_per_s: float
    notify_ratio: float
    """With it to without it, the median of rounds in turn."""
    trigger_ratio: float


class Reader(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.last_id = 0
        self.count = 0
        self.is_open = False
        self._request = request
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        self.is_open = self.is_open or b"\nevent: heartbeat\n" in data
        end = 0
        for found in CHANGED.finditer(data):
            assert int(found[1]) > self.last_id, "out of order"
            self.last_id = int(found[1])
            self.count += 1
            end = found.end()
        self._rest = data[max(end, len(data) - 64) :]

    def itself(self) -> "Reader":
        return self


async def open_readers(path: Path, tokens: list[str], count: int) -> list[Reader]:
    head = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    readers = [Reader(head.format(token=tokens[number // STREAMS_PER_USER]).encode()) for number in range(count)]
    for start in range(0, count, 50):
        batch = readers[start : start + 50]
        for reader in batch:
            await asyncio.get_running_loop().create_unix_connection(reader.itself, str(path))
        while not all(reader.is_open for reader in batch):
            await asyncio.sleep(0.005)
    return readers


async def all_have(readers: list[Reader], event_id: int) -> None:
    while any(reader.last_id < event_id for reader in readers):
        assert not any(reader.transport.is_closing() for reader in readers), "a reader was dropped"
        await asyncio.sleep(0.0005)


async def measure(connection: Any, path: Path, tokens: list[str], streams: int, changes: int) -> Result:
    readers = await open_readers(path, tokens, streams)

    async def last_id() -> int:
        # Every change gets the next id, so the last id is known before it is published.
        waiting = "SELECT last_id + (SELECT count(*) FROM outbox WHERE event_id IS NULL) FROM event_counter"
        return int(await connection.fetchval(waiting))

    began = time.perf_counter()
    for _ in range(changes // WORKSPACES):
        await connection.execute("UPDATE workspaces SET wish_version = wish_version + 1")
    written_s = time.perf_counter() - began
    await all_have(readers, await last_id())
    delivered_s = time.perf_counter() - began
    assert all(reader.count == changes for reader in readers), "an event is missing"
    latencies_ms = []
    for number in range(SINGLE):
        began = time.perf_counter()
        await connection.execute("UPDATE workspaces SET wish_version = wish_version + 1 WHERE name = 'w-0'")
        want = changes + number + 1
        while any(reader.count < want for reader in readers):
            await asyncio.sleep(0)
        latencies_ms.append((time.perf_counter() - began) * 1000)
    for reader in readers:
        reader.transport.abort()
    return Result(
        streams=streams,
        changes=changes,
        written_per_s=round(changes / written_s),
        events_per_s=round(changes / delivered_s),
        lines_per_s=round(changes * streams / delivered_s),
        latency_ms_median=round(statistics.median(latencies_ms), 2),
        latency_ms_p95=round(statistics.quantiles(latencies_ms, n=20)[-1], 2),
    )


async def commits_per_s(connections: list[Any]) -> float:
    until = time.perf_counter() + ROUND_S

    async def write(number: int, connection: Any) -> int:
        commits = 0
        while time.perf_counter() < until:
            await connection.execute("UPDATE workspaces SET wish_version = wish_version + 1 WHERE name = $1", f"w-{number}")
            commits += 1
        return commits

    return sum(await asyncio.gather(*(write(*one) for one in enumerate(connections)))) / ROUND_S


async def cost(url: str, writers: int) -> Cost:
    """For a database that keeps commits, with one listener, as the leader is."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [await asyncpg.connect(url) for _ in range(writers + 1)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        listening, *writing = connections
        await listening.add_listener("workspace_changes", lambda *_: None)
        whole = await listening.fetchval("SELECT pg_get_functiondef('tell_changed'::regproc)")
        quiet = whole.replace("PERFORM pg_notify('workspace_changes', '');", "NULL;")
        assert quiet != whole, "the function tells in another way"
        enable, disable = (f"ALTER TABLE workspaces {word} TRIGGER tell_changed" for word in ("ENABLE", "DISABLE"))
        ways = {"as it is": (whole, enable), "no notify": (quiet, enable), "no trigger": (whole, disable)}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, statements in ways.items():
                for statement in (*statements, "TRUNCATE outbox", "VACUUM workspaces"):
                    await listening.execute(statement)
                found[way].append(await commits_per_s(writing))
        for statement in ways["as it is"]:
            await listening.execute(statement)

    def ratio(without: str) -> float:
        return statistics.median(told / other for told, other in zip(found["as it is"], found[without], strict=True))

    as_it_is, no_notify, no_trigger = (round(statistics.median(found[way])) for way in ways)
    return Cost(writers, as_it_is, no_notify, no_trigger, round(ratio("no notify"), 2), round(ratio("no trigger"), 2))


@contextlib.asynccontextmanager
async def product(folder: Path, postgres: EmbeddedPostgres, people_count: int) -> AsyncIterator[tuple[Any, Path, list[str]]]:
    """A connection to write with, the API's socket, and the tokens of the users."""
    async with contextlib.AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        service = await Database.open(postgres.dsn, Role.SERVICE)
        stack.push_async_callback(service.close)
        controller = await Database.open(postgres.dsn, Role.CONTROLLER)
        stack.push_async_callback(controller.close)
        bus = await Bus.open(valkey.url)
        stack.push_async_callback(bus.close)
        connection = await asyncpg.connect(postgres.dsn)
        stack.push_async_callback(connection.close)

        accounts = Accounts(UserStore(service), Revocations(bus), Throttle(bus), session_ttl_s=DEFAULTS.session_ttl)
        tokens = []
        for number in range(people_count):
            tokens.append(new_token())
            async with UserStore(service).writing() as writing:
                made = await writing.create_user(NewUser(f"admin-{number}", is_admin=True))
                assert made is not None
                await writing.ensure_token(made.user.id, "bench", digest(tokens[-1]), EVERY_SCOPE)
        await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'bench', $1)", TERM)

        encode = partial(workspace_json, hosts=HOSTS)
        publisher = EventPublisher(Outbox(controller), RedisFeed(bus), encode=encode, retention_s=86_400)
        await connection.add_listener("workspace_changes", lambda *_: publisher.wake.set())
        await publisher.do(TERM)
        feed = EventFeed(EventStore(service), RedisFeed(bus), encode=encode)
        wishes = Wishes(
            ServiceStore(service),
            limits=RunningLimits(per_user=0, overall=0),
            ttls=DEFAULTS.ttls,
            new_id=lambda: str(uuid.uuid4()),
            hint=lambda _: None,
            using=UseService(
                ServiceStore(service), new_id=lambda: str(uuid.uuid4()), hint=lambda _: None, lease_s=DEFAULTS.connection_lease
            ),
        )

        async def nothing() -> dict[str, Any]:
            return {}

        app = make_app(
            wishes,
            accounts,
            LocalAccess(FakeRuntime(FakeWorld())),
            Health(nothing, nothing),
            hosts=HOSTS,
            events=EventSources(EventStore(service), feed, 30),
            gc=GcSources(GcStore(service), FakeArchives(FakeWorld()), DEFAULTS.gc_policy, PackGcStore(service)),
            usage=RedisUsageSeries(bus),
            reading=ArchiveReader("file:///nowhere"),
        )
        path = folder / "api.sock"
        server = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_level="error", lifespan="off", backlog=4096))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        serving = asyncio.create_task(server.serve())
        work = [asyncio.create_task(run_duty(publisher, TERM)), asyncio.create_task(feed.run())]
        while not (server.started and feed.is_following):
            await asyncio.sleep(0.01)
        try:
            yield connection, path, tokens
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)


async def fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    owner = uuid.uuid4()
    await connection.execute("INSERT INTO users (id, username) VALUES ($1, 'ada')", owner)
    insert = (
        "INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s)"
        " VALUES ($1, $2, $3, 'command', 'STANDBY', 300, 86400)"
    )
    await connection.executemany(insert, [(uuid.uuid4(), f"w-{number}", owner) for number in range(WORKSPACES)])
    await connection.close()


async def main(streams: list[int], changes: int, writers: list[int]) -> tuple[list[Result], list[Cost]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results, costs = [], []
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        async with EmbeddedPostgres(Path(folder) / "postgres") as postgres:
            await migrate(postgres.dsn)
            await fill(postgres.dsn)
            for count in writers:
                costs.append(await cost(postgres.dsn, count))
                print(costs[-1], file=sys.stderr, flush=True)
            async with product(Path(folder), postgres, max(streams, default=0) // STREAMS_PER_USER + 1) as (
                connection,
                path,
                tokens,
            ):
                for count in streams:
                    results.append(await measure(connection, path, tokens, count, changes))
                    print(results[-1], file=sys.stderr, flush=True)
    return results, costs


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--changes", type=int, default=10_000)
    arguments.add_argument("--streams", type=numbers, default="1,100,1000")
    arguments.add_argument("--writers", type=numbers, default="1,8,32")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    measured, paid = asyncio.run(main(chosen.streams, chosen.changes // WORKSPACES * WORKSPACES, chosen.writers))
    if chosen.json:
        print(json.dumps({"delivery": [asdict(one) for one in measured], "cost": [asdict(one) for one in paid]}))
    else:
        print(f"{'writers':>8} {'commits/s':>10} {'no notify':>10} {'no trigger':>11} {'notify':>7} {'trigger':>8}")
        for each in paid:
            print(
                f"{each.writers:>8} {each.commits_per_s:>10} {each.without_notify_per_s:>10} {each.without_trigger_per_s:>11}"
                f" {each.notify_ratio:>7} {each.trigger_ratio:>8}"
            )
        print(f"{'streams':>8} {'changes':>8} {'written/s':>10} {'events/s':>9} {'lines/s':>9} {'median ms':>10} {'p95 ms':>7}")
        for one in measured:
            print(
                f"{one.streams:>8} {one.changes:>8} {one.written_per_s:>10} {one.events_per_s:>9} {one.lines_per_s:>9}"
                f" {one.latency_ms_median:>10} {one.latency_ms_p95:>7}"
            )
