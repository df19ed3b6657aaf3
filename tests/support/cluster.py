"""An installation of real processes: PostgreSQL, Valkey, the fake engine, and any number of `torpor serve`."""

import asyncio
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.support.engine_process import EngineProcess, engine_process
from tests.support.product import TORPOR, free_port
from tests.support.users import person, token_for
from tests.support.waiting import until
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.ports import Address
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.migrate import migrate
from torpor.testing.fake_engine import EngineControl

ANSWERS_WITHIN_S = 30.0
ENDS_WITHIN_S = 20.0
READY = "torpor is ready at"

# Short intervals, so that a test takes seconds instead of minutes.
HASTE = {
    "TORPOR_RUNTIME": "fake",
    "TORPOR_COORDINATOR_RETRY_INTERVAL": "1",
    "TORPOR_COORDINATOR_HEARTBEAT": "0.5",
    "TORPOR_COORDINATOR_EXPIRY": "3",
    "TORPOR_RECONCILER_RETRY_BACKOFF": "1",
    "TORPOR_RECONCILER_RETRY_BACKOFF_MAX": "5",
    "TORPOR_MAX_RUNNING_PER_USER": "100000",
    "TORPOR_MAX_RUNNING_GLOBAL": "100000",
    "TORPOR_STANDBY_TTL": "86400",
}


def ask(port: int, method: str, path: str, body: object = None, token: str | None = None) -> tuple[int, Any]:
    """The status and the body; raises OSError or HTTPException without a response. It blocks: call it in a thread."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERS_WITHIN_S)
    try:
        headers = {"Host": f"localhost:{port}", "Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answered = response.read()
        return response.status, json.loads(answered) if answered else None
    finally:
        connection.close()


@dataclass
class Node:
    """One `torpor serve`."""

    name: str
    port: int
    process: "subprocess.Popen[str]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    async def kill(self) -> None:
        """Kill it, as a power cut does."""
        self.process.kill()
        await self._ended()

    def pause(self) -> None:
        """Pause it, as a machine that hangs: it keeps its connections and sends nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def stop(self) -> int:
        """Stop it as an operator does; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self._ended()

    async def health(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return (await asyncio.to_thread(ask, self.port, "GET", "/health"))[0] == 200
        return False

    async def ready(self) -> dict[str, Any]:
        said: dict[str, Any] = (await asyncio.to_thread(ask, self.port, "GET", "/health/ready"))[1]
        return said

    async def leads(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, said = await asyncio.to_thread(ask, self.port, "GET", "/health/coordinator")
            return status == 200 and bool(said["is_leader"])
        return False

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-6000:]

    async def first_line(self) -> str:
        """The line that it prints when it is ready (`READY`), or an empty one if it ends before."""
        assert self.process.stdout
        return await asyncio.to_thread(self.process.stdout.readline)

    async def _ended(self) -> int:
        assert self.process.stdout
        code = await asyncio.to_thread(self.process.wait, ENDS_WITHIN_S)
        self.process.stdout.close()
        return code


@dataclass
class Cluster:
    folder: Path
    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey
    engine: EngineProcess
    fate: EngineControl
    token: str
    nodes: list[Node] = field(default_factory=list)
    wished: dict[str, str] = field(default_factory=dict)
    """The last accepted wish for each workspace."""

    # ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self, role: str, **settings: str) -> Node:
        """Start one more with these additional settings, and wait until it is ready."""
        node = self.begin(role, **settings)
        said = await node.first_line()
        assert said.startswith(READY), f"{node.name} said {said!r}:\n{node.said()}"
        return node

    def begin(self, role: str, **settings: str) -> Node:
        """Start one more without waiting for it."""
        name = f"{role.replace(',', '-')}-{len(self.nodes)}"
        log = self.folder / f"{name}.log"
        port = int(settings.get("port", "0")) or free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
        environment = {
            **kept,
            **HASTE,
            "TORPOR_DATABASE_URL": self.postgres.dsn,
            "TORPOR_REDIS_URL": self.valkey.url,
            "TORPOR_FAKE_ENGINE": str(self.engine.socket),
            "TORPOR_ARCHIVE_URL": (self.folder / "archives").as_uri(),
            "TORPOR_DATA": str(self.folder / name),
            "TORPOR_PORT": str(port),
            "TORPOR_COORDINATOR_NODE_ID": name,
            **{f"TORPOR_{setting.upper()}": value for setting, value in settings.items()},
        }
        with log.open("w", encoding="utf-8") as sink:
            process = subprocess.Popen(
                [TORPOR, "serve", "--role", role],
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environment,
                text=True,
                cwd=self.folder,
            )
        node = Node(name, port, process, log)
        self.nodes.append(node)
        return node

    def living(self, part: str) -> list[Node]:
        return [node for node in self.nodes if part in node.name and node.is_alive]

    async def leader(self, among: Sequence[Node] | None = None, *, within_s: float = 30) -> Node:
        """The leader, as soon as there is one."""

        async def leading() -> Node | None:
            for node in self.living("controller") if among is None else among:
                if await node.leads():
                    return node
            return None

        return await until(leading, within_s=within_s, every_s=0.02)

    async def restart_postgres(self) -> None:
        await self.postgres.stop()
        await self.postgres.start()

    async def restart_valkey(self) -> None:
        await self.valkey.stop()
        await self.valkey.start()

    async def forget_everything(self) -> None:
        bus = await Bus.open(self.valkey.url)
        try:
            await bus.ask(("FLUSHALL",))
        finally:
            await bus.close()

    # ── wishes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def api(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request to any process with the role api."""
        node = random.choice(self.living("api"))
        return await asyncio.to_thread(ask, node.port, method, f"/api/v1{path}", body, self.token)

    async def accepted(self, method: str, path: str, body: object = None, *, within_s: float = 60) -> Any:
        """Retry until the request is accepted or refused; an outage is neither. Returns the body."""
        last: object = None

        async def is_accepted() -> bool:
            nonlocal last
            try:
                status, last = await self.api(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                last = error
                return False
            assert status < 400 or status >= 500, f"{method} {path}: {status} {last}"
            return status < 400

        await until(is_accepted, within_s=within_s, every_s=0.1, otherwise=lambda: f"{method} {path}: {last!r}\n{self.said()}")
        return last

    async def create(self, name: str) -> None:
        status, said = await self.api("POST", "/workspaces", {"name": name, "desired_state": "RUNNING"})
        assert status == 201, said
        self.wished[name] = "RUNNING"

    async def wish(self, name: str, state: str) -> None:
        await self.accepted("PATCH", f"/workspaces/{name}", {"desired_state": state})
        self.wished[name] = state

    async def rows(self) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            return list(
                await connection.fetch(
                    "SELECT id::text, name, desired_state, phase, operation, stage, error_info, epoch, held_by FROM workspaces"
                )
            )
        finally:
            await connection.close()

    async def until_served(self, names: Iterable[str] | None = None, *, within_s: float = 60) -> float:
        """Wait until each of these is in its requested state without an operation in progress; returns the seconds."""
        asked = frozenset(self.wished if names is None else names)
        began = time.monotonic()
        open_: list[asyncpg.Record] = []

        async def are_served() -> bool:
            nonlocal open_
            rows = [row for row in await self.rows() if row["name"] in asked]
            lost = [row["name"] for row in rows if row["desired_state"] != self.wished[row["name"]]]
            assert not lost, f"wishes that were accepted are lost: {lost[:5]}"
            open_ = [row for row in rows if row["phase"] != row["desired_state"] or row["operation"] != "NONE"]
            return not open_ and len(rows) == len(asked)

        def otherwise() -> str:
            counts = Counter((row["desired_state"], row["phase"], row["operation"], row["stage"]) for row in open_)
            return (
                f"{len(open_)} of {len(asked)} are not as wished: {counts}\n"
                f"the first: {[dict(row) for row in open_[:3]]}\n{self.said()}"
            )

        await until(are_served, within_s=within_s, every_s=0.1, otherwise=otherwise)
        return time.monotonic() - began

    def said(self) -> str:
        return "\n".join(f"── {node.name} (alive: {node.is_alive})\n{node.said()}" for node in self.nodes)


async def many(work: Callable[[str], Awaitable[None]], names: Iterable[str], *, at_once: int = 6) -> None:
    """Do the same for each, `at_once` at a time."""
    left = iter(list(names))

    async def worker() -> None:
        for name in left:
            await work(name)

    await asyncio.gather(*(worker() for _ in range(at_once)))


@contextlib.asynccontextmanager
async def restlessly(cluster: Cluster, names: Sequence[str], *, seed: int, workers: int = 3) -> AsyncIterator[None]:
    """Meanwhile several workers change the requested states, each for its own workspaces."""
    states = ("RUNNING", "STANDBY", "ARCHIVED")
    stop = asyncio.Event()

    async def somebody(number: int) -> None:
        dice = random.Random(seed + number)
        own = names[number::workers]
        while not stop.is_set():
            await cluster.wish(dice.choice(own), dice.choice(states))

    people = [asyncio.create_task(somebody(number)) for number in range(workers)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*people)


@contextlib.asynccontextmanager
async def cluster(folder: Path, *, effects_s: float = 0.0) -> AsyncIterator[Cluster]:
    """The services. All processes are stopped at the end, also if the test fails."""
    async with contextlib.AsyncExitStack() as stack:
        engine = stack.enter_context(engine_process(effects_s=effects_s))
        fate = EngineControl(engine.socket)
        stack.push_async_callback(fate.close)
        postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres", durable=False))
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        await migrate(postgres.dsn)
        here = Cluster(folder, postgres, valkey, engine, fate, await _admin(postgres.dsn))
        stack.push_async_callback(_end, here)
        yield here


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[Address]:
    """The program of every workspace, once the engine has its address: it echoes its input."""

    async def answer(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                await connection.send(message)

    async with serve(answer, "127.0.0.1", 0) as server:
        yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])


async def _admin(url: str) -> str:
    """The token of a first user, because `serve` creates none."""
    database = await Database.open(url, Role.SERVICE)
    try:
        return await token_for(database, (await person(database, "admin", is_admin=True)).user)
    finally:
        await database.close()


async def _end(here: Cluster) -> None:
    for node in here.nodes:
        if node.is_alive:
            node.go_on()
            node.process.terminate()
    for node in here.nodes:
        try:
            await node._ended()
        except subprocess.TimeoutExpired:
            await node.kill()
