"""The API with real parts: PostgreSQL, Valkey, a leader that publishes events, and a server on a Unix socket."""

import asyncio
import contextlib
import json
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import uvicorn

from tests.support.users import accounts_of, person, token_for
from tests.support.waiting import until
from torpor.accounts import Accounts, Caller
from torpor.api.app import Health, make_app
from torpor.api.event_fanout import EventFeed
from torpor.api.events import EventSources
from torpor.api.gc import GcSources
from torpor.api.wire import workspace_json
from torpor.archives.reader import ArchiveReader
from torpor.bus.feed import RedisFeed
from torpor.bus.redis import Bus
from torpor.bus.usage import RedisUsageSeries
from torpor.control.duties import run_duty
from torpor.control.events import EventPublisher
from torpor.domain.hostnames import Hosts
from torpor.domain.image_policy import NO_IMAGES, ImagePolicy
from torpor.domain.limits import RunningLimits
from torpor.runtimes.local_access import LocalAccess
from torpor.secret_key import SecretKey
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.database import Database, Role
from torpor.store.events import EventStore, Outbox
from torpor.store.gc import GcStore
from torpor.store.pack_gc import PackGcStore
from torpor.store.service_store import ServiceStore
from torpor.templates.catalogue import load_catalogue
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeWorld

BASE_URL = "http://localhost:8080"
HOSTS = Hosts(BASE_URL, "localhost")
TERM = 1
PATIENCE_S = 20
INSERT = """
INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s)
VALUES ($1, $2, $3, 'command', 'STANDBY', 300, 86400)
"""


@dataclass(frozen=True)
class LiveUser:
    id: uuid.UUID
    token: str
    caller: Caller


@dataclass(frozen=True)
class Received:
    id: int
    event: str
    body: dict[str, Any]

    @property
    def wish_version(self) -> int:
        version: int = self.body["workspace"]["wish_version"]
        return version


class Client:
    """A client of one event stream, which reads when a test asks it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._reader, self._writer = reader, writer
        self._received = b""

    @classmethod
    async def open(
        cls,
        path: Path,
        target: str,
        token: str,
        *,
        since: int | str | None = None,
        buffer_bytes: int | None = None,
        is_session: bool = False,
    ) -> "Client":
        ours = socket.socket(socket.AF_UNIX)
        if buffer_bytes:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        ours.setblocking(False)
        await asyncio.get_running_loop().sock_connect(ours, str(path))
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=buffer_bytes or 2**16)
        shown = f"Cookie: {HOSTS.session_cookie}={token}" if is_session else f"Authorization: Bearer {token}"
        head = f"GET /api/v1{target} HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n"
        writer.write((head + (f"Last-Event-ID: {since}\r\n" if since is not None else "") + "\r\n").encode())
        client = cls(reader, writer)
        client.status = int((await reader.readline()).split()[1])
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(": ")
            client.headers[name.lower()] = value
        return client

    async def next(self) -> Received | None:
        """The next event; None at the end of the stream."""
        async with asyncio.timeout(PATIENCE_S):
            while b"\n\n" not in self._received:
                chunk = await self._chunk()
                if not chunk:
                    return None
                self._received += chunk
        one, _, self._received = self._received.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in one.decode().splitlines())
        read = Received(int(fields["id"]), fields["event"], json.loads(fields["data"]))
        assert (read.body["id"], read.body["event"]) == (read.id, read.event)
        return read

    async def some(self, count: int) -> Sequence[Received]:
        """The next `count` events, without heartbeats."""
        found: list[Received] = []
        while len(found) < count:
            one = await self.next()
            assert one is not None, f"ended after {len(found)} of {count}"
            if one.event != "heartbeat":
                found.append(one)
        return found

    async def text(self) -> Any:
        """The JSON body of an answer that is not a stream."""
        return json.loads(await self._reader.readexactly(int(self.headers["content-length"])))

    async def _chunk(self) -> bytes:
        try:
            size = int(await self._reader.readline() or b"0", 16)
            return (await self._reader.readexactly(size + 2))[:-2]
        except (ConnectionError, asyncio.IncompleteReadError):
            return b""

    def leave(self) -> None:
        self._writer.transport.abort()


class LiveApi:
    def __init__(
        self,
        path: Path,
        url: str,
        connection: Any,
        feed: EventFeed,
        publisher: EventPublisher,
        events_store: EventStore,
        service: Database,
        accounts: Accounts,
    ) -> None:
        self.path = path
        self.url = url
        self.db = connection
        self.feed = feed
        self.publisher = publisher
        self.people: dict[str, LiveUser] = {}
        self.clients: list[Client] = []
        self.following: asyncio.Task[None] | None = None
        self.described: dict[str, Any] = {}
        self.app: Any = None
        self.wishes: Any = None
        self.usage: Any = None
        self.service = service
        self.accounts = accounts
        self.world = FakeWorld()
        self.store = path.parent / "store"
        """The archives that the API reads."""
        self.store.mkdir()
        self.events_store = events_store

    async def sign_up(self, name: str, *, is_admin: bool = False) -> LiveUser:
        user = (await person(self.service, name, is_admin=is_admin)).user
        token = await token_for(self.service, user)
        self.people[name] = LiveUser(uuid.UUID(user.id), token, await self.accounts.recognise(token))
        return self.people[name]

    async def create(self, name: str, owner: str = "ada") -> str:
        workspace_id = uuid.uuid4()
        await self.db.execute(INSERT, workspace_id, name, self.people[owner].id)
        return str(workspace_id)

    async def change(self, name: str, *, times: int = 1) -> None:
        for _ in range(times):
            await self.db.execute("UPDATE workspaces SET wish_version = wish_version + 1 WHERE name = $1", name)

    async def call(
        self, method: str, target: str, body: Any = None, *, by: str = "ada", headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        shown = {"Authorization": f"Bearer {self.people[by].token}", **(headers or {})}
        async with calling(self.path) as client:
            return await client.request(method, f"/api/v1{target}", headers=shown, json=body)

    async def follow(self, target: str, *, by: str = "ada", since: int | str | None = None, **how: Any) -> Client:
        client = await Client.open(self.path, target, self.people[by].token, since=since, **how)
        self.clients.append(client)
        return client

    async def stop_following(self) -> None:
        assert self.following is not None
        self.following.cancel()
        await asyncio.gather(self.following, return_exceptions=True)

    def leave(self) -> None:
        for client in self.clients:
            client.leave()

    async def until_following(self) -> None:
        await until(lambda: self.feed.is_following)

    async def until_handed_out(self) -> int:
        """The id of the last event, once the feed has delivered it."""
        await until(lambda: self.db.fetchval("SELECT count(*) = 0 FROM outbox WHERE event_id IS NULL"))
        last: int = await self.db.fetchval("SELECT last_id FROM event_counter")
        await until(lambda: self.feed.cursor >= last)
        return last


@contextlib.asynccontextmanager
async def live_api(
    database_url: str,
    redis_url: str,
    *,
    heartbeat_s: float = 30,
    ask_again_s: float = 30,
    publishes: bool = True,
    name_reserved_s: float = 0,
    images: ImagePolicy = NO_IMAGES,
) -> AsyncIterator[LiveApi]:
    async with contextlib.AsyncExitStack() as stack:
        service = await Database.open(database_url, Role.SERVICE)
        stack.push_async_callback(service.close)
        controller = await Database.open(database_url, Role.CONTROLLER)
        stack.push_async_callback(controller.close)
        bus = await Bus.open(redis_url)
        stack.push_async_callback(bus.close)
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)

        encode = partial(workspace_json, hosts=HOSTS)
        publisher = EventPublisher(Outbox(controller), RedisFeed(bus), encode=encode, retention_s=86_400)
        await connection.add_listener("workspace_changes", lambda *_: publisher.wake.set())
        events_store = EventStore(service)
        feed = EventFeed(events_store, RedisFeed(bus), encode=encode)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torpor-")))
        accounts = accounts_of(service, bus)
        accounts._watching._recheck_s = ask_again_s
        here = LiveApi(folder / "api.sock", database_url, connection, feed, publisher, events_store, service, accounts)
        for name, is_admin in (("ada", False), ("bob", False), ("root", True)):
            await here.sign_up(name, is_admin=is_admin)

        wishes = here.wishes = Wishes(
            ServiceStore(service),
            limits=RunningLimits(per_user=9, overall=9),
            ttls=DEFAULTS.ttls,
            new_id=lambda: str(uuid.uuid4()),
            hint=lambda _: None,
            name_reserved_s=name_reserved_s,
            environment_bytes=DEFAULTS.environment_bytes,
            most=DEFAULTS.most,
            catalogue=load_catalogue(None, images),
            seal=SecretKey(folder / "secrets.key").seal,
            using=UseService(
                ServiceStore(service), new_id=lambda: str(uuid.uuid4()), hint=lambda _: None, lease_s=DEFAULTS.connection_lease
            ),
        )

        here.usage = RedisUsageSeries(bus)

        async def nothing() -> dict[str, Any]:
            return {}

        async def ready() -> dict[str, Any]:
            return {"ready": True}

        app = make_app(
            wishes,
            accounts,
            LocalAccess(FakeRuntime(here.world)),
            Health(ready, nothing),
            hosts=HOSTS,
            events=EventSources(events_store, feed, heartbeat_s),
            gc=GcSources(GcStore(service), FakeArchives(here.world), DEFAULTS.gc_policy, PackGcStore(service)),
            usage=here.usage,
            reading=ArchiveReader(f"file://{here.store}"),
        )
        here.described = app.openapi()
        here.app = app
        await stack.enter_async_context(background(accounts.run()))
        await stack.enter_async_context(serving(app, here.path))
        if publishes:
            await stack.enter_async_context(background(run_duty(publisher, TERM)))
        here.following = await stack.enter_async_context(background(feed.run()))
        stack.callback(here.leave)
        await here.until_following()
        yield here


@contextlib.asynccontextmanager
async def calling(path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.AsyncHTTPTransport(uds=str(path))
    async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL) as client:
        yield client


@contextlib.asynccontextmanager
async def background(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(app: Any, path: Path) -> AsyncIterator[None]:
    config = uvicorn.Config(app, uds=str(path), log_level="critical", lifespan="off", timeout_graceful_shutdown=2, backlog=4096)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
