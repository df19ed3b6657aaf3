"""The product's own gate on PostgreSQL and Valkey, with a leader that publishes. Tests write the rows as a controller would."""

import asyncio
import contextlib
import hashlib
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.users import person, token_for
from tests.support.waiting import until
from torpor.accounts import Accounts, AuthMethod, Caller
from torpor.accounts.passwords import Passwords
from torpor.api.wire import workspace_json
from torpor.assemble.proxy_wiring import ProxyServices, ProxyWiring
from torpor.assemble.roles import EVERY_PART
from torpor.bus.activity import RedisActivity
from torpor.bus.feed import RedisFeed
from torpor.bus.login_throttle import Throttle
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.control.duties import run_duty
from torpor.control.events import EventPublisher
from torpor.domain.hostnames import Hosts
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish
from torpor.ports import Address
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.host_router import GateHandlers, HostRouter
from torpor.proxy.request_head import RequestHead, parse
from torpor.runtimes.local_access import LocalAccess
from torpor.service.activity import TouchQueue, use_reader
from torpor.service.use import UseService
from torpor.service.wishes import Wishes, skip_disk_check
from torpor.settings import Settings
from torpor.store.database import Database, Role
from torpor.store.events import EventStore, Outbox
from torpor.store.service_store import ServiceStore
from torpor.store.user_store import NewCredential, UserStore
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeRuntime, FakeWorld

TERM = 1
PATIENCE_S = 20.0
SOMEWHERE = "192.0.2.7"
PORT = 8080
GOES_THERE = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", "Sec-Fetch-Site: none", "Accept: text/html")
FETCHES = ("Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty", "Sec-Fetch-Site: same-origin", "Accept: */*")
CONNECTS = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    f"Origin: http://ada.localhost:{PORT}",
)


class Reachable(FakeRuntime):
    """The port of a running workspace is derived from its address."""

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        if workspace_id not in self.reached:
            return None
        return Address(unix_path=f"/run/{workspace_id}", preamble=b"" if port is None else b"%d\n" % port)

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.reached: set[str] = set()


@dataclass
class GateStage:
    gate: HostRouter
    doors: ProxyWiring
    db: Any
    """A connection as the owner of the database."""
    database: Database
    """The connection of the gate, which counts statements."""
    bus: Bus
    accounts: Accounts
    revocations: Revocations
    wishes: Wishes
    runtime: Reachable
    ada: Caller
    hints: list[str] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)

    @property
    def inside(self) -> GateHandlers:
        assert self.gate.inside is not None
        return self.gate.inside

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, *headers: str, target: str = "/", method: str = "GET", host: str = "ada") -> Verdict | Awaitable[Verdict]:
        where = f"{host}.localhost" if host else "localhost"
        return self.gate.judge(head(*headers, target=target, method=method, host=f"{where}:{PORT}"), SOMEWHERE)

    async def ask(self, *headers: str, **how: str) -> Verdict:
        judged = self.begin(*headers, **how)
        async with asyncio.timeout(PATIENCE_S):
            return judged if isinstance(judged, Forward | Reply) else await judged

    async def told(self, *headers: str, **how: str) -> Reply:
        verdict = await self.ask(*headers, **how)
        assert isinstance(verdict, Reply), verdict
        return verdict

    async def passed(self, *headers: str, **how: str) -> Forward:
        verdict = await self.ask(*headers, **how)
        assert isinstance(verdict, Forward), verdict
        return verdict

    # ── people ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def token(self, caller: Caller, **how: Any) -> str:
        return f"Authorization: Bearer {await token_for(self.database, caller.user, **how)}"

    async def session(self, caller: Caller) -> tuple[Caller, str]:
        """A browser that is signed in on the platform: its caller and the value of its cookie."""
        token = f"torpor_{secrets.token_urlsafe(32)}"
        async with UserStore(self.database).writing() as writing:
            made = NewCredential(
                caller.user.id, AuthMethod.SESSION, "session", hashlib.sha256(token.encode()).digest(), lives_s=3600
            )
            await writing.create_credential(made)
        return await self.accounts.recognise(token), token

    async def door(self, session: Caller, workspace: Workspace) -> str:
        """The header of a browser that is signed in on a workspace's host."""
        nonce = secrets.token_urlsafe(32)
        code = await self.accounts.door_code(session, workspace.id, hashlib.sha256(nonce.encode()).digest())
        token, _ = await self.accounts.redeem(code, nonce, workspace.id)
        return f"Cookie: torpor_door={token}"

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def workspace(self, name: str = "ada", *, phase: Phase = Phase.RUNNING, by: Caller | None = None) -> Workspace:
        """A workspace in this phase, which is also its requested state."""
        owner = by or self.ada
        made = await self.wishes.create(owner, name=name, desired_state=Wish(phase.value))
        await self.becomes(made, phase)
        self.hints.clear()
        return await self.wishes.find(owner, made.id)

    async def becomes(self, workspace: Workspace, phase: Phase, more: str = "") -> None:
        """Write the phase as a controller would."""
        is_running = phase is Phase.RUNNING
        (self.runtime.reached.add if is_running else self.runtime.reached.discard)(workspace.id)
        await self.set(workspace, f"phase = '{phase}', container_present = {is_running}{more}")

    async def set(self, workspace: Workspace, change: str) -> None:
        await self.db.execute(f"UPDATE workspaces SET {change}, version = version + 1 WHERE id = $1", uuid.UUID(workspace.id))

    async def look(self, workspace: Workspace) -> Workspace:
        return await self.wishes.find(self.ada, workspace.id)

    async def until_heard(self) -> None:
        """Wait until all events so far have reached the gate."""
        routes = self.inside.house._routes

        async def is_heard() -> bool:
            if await self.db.fetchval("SELECT count(*) FROM outbox WHERE event_id IS NULL"):
                return False
            return bool(routes._heard >= await self.db.fetchval("SELECT last_id FROM event_counter"))

        await until(is_heard)


def head(*headers: str, target: str = "/", method: str = "GET", host: str = f"ada.localhost:{PORT}") -> RequestHead:
    return parse("\r\n".join((f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", "")).encode("latin-1"))


def header(reply: Reply, name: str) -> str:
    (value,) = [value.decode() for found, value in reply.headers if found.decode() == name]
    return value


@contextlib.asynccontextmanager
async def gate_stage(
    database_url: str,
    redis_url: str,
    folder: Path,
    *,
    limits: RunningLimits = RunningLimits(100, 100),
    space: Callable[[int], Awaitable[None]] = skip_disk_check,
    **settings: Any,
) -> AsyncIterator[GateStage]:
    async with contextlib.AsyncExitStack() as stack:
        database = await Database.open(database_url, Role.SERVICE)
        stack.push_async_callback(database.close)
        controller = await Database.open(database_url, Role.CONTROLLER)
        stack.push_async_callback(controller.close)
        bus = await Bus.open(redis_url)
        stack.push_async_callback(bus.close)
        owner = await asyncpg.connect(database_url)
        stack.push_async_callback(owner.close)
        await owner.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)

        service, activity, feed, revocations = ServiceStore(database), RedisActivity(bus), RedisFeed(bus), Revocations(bus)
        hints: list[str] = []
        touches = TouchQueue(activity, lease_s=DEFAULTS.connection_lease)
        new_id = lambda: str(uuid.uuid4())  # noqa: E731
        using = UseService(
            service,
            new_id=new_id,
            hint=hints.append,
            touch=touches.touch,
            ask=use_reader(activity),
            lease_s=DEFAULTS.connection_lease,
        )
        wishes = Wishes(
            service, limits=limits, ttls=DEFAULTS.ttls, new_id=new_id, hint=hints.append, using=using, require_space=space
        )
        accounts = Accounts(
            UserStore(database), revocations, Throttle(bus), session_ttl_s=DEFAULTS.session_ttl, passwords=Passwords()
        )
        runtime = Reachable(FakeWorld())
        made = Settings.model_validate({"data": folder, "port": PORT, "wake_patience": 5, **settings})
        doors = ProxyWiring(made, EVERY_PART, Address(unix_path="/platform"))
        encode = partial(workspace_json, hosts=Hosts(made.base_url, made.workspace_domain))
        publisher = EventPublisher(Outbox(controller), feed, encode=encode, retention_s=86_400)
        await owner.add_listener("workspace_changes", lambda *_: publisher.wake.set())
        await stack.enter_async_context(_background(run_duty(publisher, TERM)))
        behind = ProxyServices(
            service, EventStore(database), wishes, accounts, revocations, LocalAccess(runtime), activity, feed
        )
        ada = await person(database, "ada")
        await stack.enter_async_context(doors.open(behind))
        here = GateStage(doors._gate, doors, owner, database, bus, accounts, revocations, wishes, runtime, ada, hints)
        here.inside.house._visitors._cut = here.cuts.append
        await here.until_heard()
        yield here


@contextlib.asynccontextmanager
async def _background(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
