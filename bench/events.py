"""How many events a second reach their readers, and how soon?

From the UPDATE in PostgreSQL to the line of a `text/event-stream`: trigger, notify, numbering, bus, fan-out, HTTP. Everything
but the database and the bus runs in this one process: leader, API and the readers as well, so an installation has more to give.

    python bench/events.py [--changes 10000] [--streams 1,100,1000] [--json]
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
from torpor.api.collecting import Collecting
from torpor.api.events import Events
from torpor.api.fanout import EventFeed
from torpor.api.wire import workspace_json
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.feed import Feed
from torpor.bus.redis import Bus
from torpor.control.duties import tend
from torpor.control.events import EventPublisher
from torpor.domain.limits import RunningLimits
from torpor.domain.retention import Retention
from torpor.runtimes.fake import FakeArchives, FakeRuntime, FakeWorld
from torpor.store.collecting import CollectingStore
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.events import EventStore, Outbox
from torpor.store.for_service import ServiceStore
from torpor.store.migrate import migrate
from torpor.wishes import Ttls, Wishes

BASE_URL = "http://localhost:8080"
TERM = 1
WORKSPACES = 100
SINGLE = 200
CHANGED = re.compile(rb"id: (\d+)\nevent: state_changed\n")


@dataclass(frozen=True)
class Result:
    streams: int
    changes: int
    written_per_s: float
    """By UPDATEs of 100 rows each, as a controller persists them."""
    events_per_s: float
    """From the first UPDATE until the last stream has the last event."""
    lines_per_s: float
    """The same, counted at the streams."""
    latency_ms_median: float
    """Of one change alone, until the last stream has it."""
    latency_ms_p95: float


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


async def open_readers(path: Path, token: str, count: int) -> list[Reader]:
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    readers = [Reader(head) for _ in range(count)]
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


async def measure(connection: Any, path: Path, token: str, streams: int, changes: int) -> Result:
    readers = await open_readers(path, token, streams)

    async def last_id() -> int:
        # Every change gets the next id, so what the last one will be is known before it is published.
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


@contextlib.asynccontextmanager
async def product(folder: Path) -> AsyncIterator[tuple[Any, Path, str]]:
    """A connection to write with, the API's socket, and a token."""
    async with contextlib.AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres"))
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        await migrate(postgres.dsn)
        service = await Database.open(postgres.dsn, Role.SERVICE)
        stack.push_async_callback(service.close)
        controller = await Database.open(postgres.dsn, Role.CONTROLLER)
        stack.push_async_callback(controller.close)
        bus = await Bus.open(valkey.url)
        stack.push_async_callback(bus.close)
        connection = await asyncpg.connect(postgres.dsn)
        stack.push_async_callback(connection.close)

        people = ServiceStore(service)
        await people.create_user("ada", is_admin=True, password=None)
        known = await people.user_by_name("ada")
        assert known is not None
        token = new_token()
        await people.create_token(known[0].id, "bench", digest(token), lives_s=None)
        insert = (
            "INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s)"
            " VALUES ($1, $2, $3, 'command', 'STANDBY', 300, 86400)"
        )
        owner = uuid.UUID(known[0].id)
        await connection.executemany(insert, [(uuid.uuid4(), f"w-{number}", owner) for number in range(WORKSPACES)])
        await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'bench', $1)", TERM)

        encode = partial(workspace_json, base_url=BASE_URL)
        publisher = EventPublisher(Outbox(controller), Feed(bus), encode=encode, retention_s=86_400)
        await connection.add_listener("workspace_changes", lambda *_: publisher.wake.set())
        await publisher.do(TERM)
        feed = EventFeed(EventStore(service), Feed(bus), encode=encode)
        wishes = Wishes(
            people,
            limits=RunningLimits(per_user=0, overall=0),
            ttls=Ttls(),
            new_id=lambda: str(uuid.uuid4()),
            hint=lambda _: None,
        )

        async def nothing() -> dict[str, Any]:
            return {}

        app = make_app(
            wishes,
            Accounts(people),
            FakeRuntime(FakeWorld()),
            Health(nothing, nothing),
            base_url=BASE_URL,
            events=Events(EventStore(service), feed, 30),
            gc=Collecting(CollectingStore(service), FakeArchives(FakeWorld()), Retention()),
        )
        path = folder / "api.sock"
        server = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_level="error", lifespan="off", backlog=4096))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        serving = asyncio.create_task(server.serve())
        work = [asyncio.create_task(tend(publisher, TERM)), asyncio.create_task(feed.run())]
        while not (server.started and feed.is_following):
            await asyncio.sleep(0.01)
        try:
            yield connection, path, token
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)


async def main(streams: list[int], changes: int) -> list[Result]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = []
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        async with product(Path(folder)) as (connection, path, token):
            for count in streams:
                results.append(await measure(connection, path, token, count, changes))
                print(results[-1], file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--changes", type=int, default=10_000)
    arguments.add_argument("--streams", default="1,100,1000")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    measured = asyncio.run(main([int(count) for count in chosen.streams.split(",")], chosen.changes // WORKSPACES * WORKSPACES))
    if chosen.json:
        print(json.dumps([asdict(one) for one in measured]))
    else:
        print(f"{'streams':>8} {'changes':>8} {'written/s':>10} {'events/s':>9} {'lines/s':>9} {'median ms':>10} {'p95 ms':>7}")
        for one in measured:
            print(
                f"{one.streams:>8} {one.changes:>8} {one.written_per_s:>10} {one.events_per_s:>9} {one.lines_per_s:>9}"
                f" {one.latency_ms_median:>10} {one.latency_ms_p95:>7}"
            )
