"""How do settings become a running product? The only wiring there is."""

import asyncio
import contextlib
import fcntl
import json
import os
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from torpor.accounts import Accounts, new_token
from torpor.api.app import Health, make_app
from torpor.archives.archives import HomeArchives
from torpor.control.controller import Controller
from torpor.control.coordinator import Coordinator
from torpor.control.execute import Hands
from torpor.control.pace import Intervals
from torpor.domain.errors import Hopeless, Refused, TorporError
from torpor.domain.records import Workspace
from torpor.domain.states import Phase
from torpor.ports import Address, Limits, Program
from torpor.proxy.front import Front
from torpor.proxy.route import Asleep, Place, Running, Unknown
from torpor.runtimes.process.options import Options
from torpor.runtimes.process.runtime import ProcessRuntime
from torpor.settings import Settings
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.for_controller import ControllerStore
from torpor.store.for_service import ServiceStore
from torpor.store.migrate import migrate
from torpor.templates.catalogue import program, template
from torpor.wishes import Ttls, Wishes

log = structlog.get_logger()

MIB = 1 << 20
ADMIN = "admin"
CREDENTIALS = "credentials.json"
LEADER_RETRY_S = 5.0
DATABASE_RETRY_S = 2.0
PREDECESSOR_S = 10.0
STALE_LOOK_FACTOR = 3


def run_up(settings: Settings) -> int:
    """The whole product on this machine, until Ctrl-C or TERM; the exit code."""
    _configure_log(settings)
    _raise_file_limit()
    try:
        with _only_one(settings.data):
            asyncio.run(_up(settings))
    except TorporError as error:
        print(f"torpor: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _up(settings: Settings) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    living = asyncio.ensure_future(_live(settings, stop, ready))

    def heard() -> None:
        # The first time it stops in its order; the second time, or before it is ready, at once.
        if stop.is_set() or not ready.is_set():
            living.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    with contextlib.suppress(asyncio.CancelledError):
        await living


async def _live(settings: Settings, stop: asyncio.Event, ready: asyncio.Event) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await _start(settings, stack)
        ready.set()
        print(
            f"torpor is ready at {settings.base_url} (sign in as {ADMIN}; the password is in {settings.data / CREDENTIALS})",
            flush=True,
        )
        await stop.wait()
        print("torpor is stopping", flush=True)


async def _start(settings: Settings, stack: contextlib.AsyncExitStack) -> None:
    """Everything in the order it needs each other; the stack takes it down in the reverse."""
    run = await _short_folder(stack)
    product = _Product(settings, Address(unix_path=str(run / "api.sock")))
    # Bound first: a port in use is said at once, not after a database was started.
    await stack.enter_async_context(_running_front(product.front))

    url = await _database(settings, stack)
    await migrate(url)
    service = ServiceStore(await stack.enter_async_context(_open(url, Role.SERVICE)))
    controlled = ControllerStore(await stack.enter_async_context(_open(url, Role.CONTROLLER)))
    archives = HomeArchives(settings.archives_at)
    stack.push_async_callback(archives.close)
    runtime = ProcessRuntime(
        settings.data,
        options=Options(grace_s=settings.workspace_stop_grace),
        on_end=lambda workspace_id: coordinator.hint(workspace_id),
    )
    coordinator = _coordinator(settings, url, controlled, runtime, archives)
    await coordinator.claim(within_s=PREDECESSOR_S)
    await runtime.start()
    stack.push_async_callback(runtime.close)
    for ability in await runtime.abilities():
        if not ability.confined:
            print(f"torpor: not confined on this machine: {ability.what}: {ability.how}. {ability.remedy}", file=sys.stderr)

    accounts = Accounts(service)
    await _ensure_credentials(settings, accounts)
    wishes = Wishes(
        service,
        limits=settings.running_limits,
        ttls=Ttls(standby_s=settings.standby_ttl, archive_s=settings.archive_ttl),
        new_id=lambda: str(uuid.uuid4()),
        hint=coordinator.hint,
    )
    health = _health(settings, service, archives, coordinator)
    app = make_app(wishes, accounts, runtime, health, base_url=settings.base_url)
    product.serve(service, runtime)
    await stack.enter_async_context(_background(coordinator.run(), "coordinator"))
    await stack.enter_async_context(_serving(app, run / "api.sock"))


class _Product:
    """The front is bound before there is anything behind it; until then a workspace cannot be found."""

    def __init__(self, settings: Settings, platform: Address) -> None:
        self.front = Front(platform=platform, find=self._find, port=settings.port)
        self._service: ServiceStore | None = None
        self._runtime: ProcessRuntime | None = None

    def serve(self, service: ServiceStore, runtime: ProcessRuntime) -> None:
        self._service, self._runtime = service, runtime

    async def _find(self, name: str) -> Place:
        if self._service is None or self._runtime is None:
            return Unknown(name)
        found = await self._service.by_name(name)
        if found is None or found.deleted_at is not None:
            return Unknown(name)
        address = self._runtime.address(found.id)
        if found.phase is Phase.RUNNING and address is not None:
            return Running(name, address)
        return Asleep(name, found.phase, found.operation, found.progress, found.error.message if found.error else None)


def _coordinator(
    settings: Settings, url: str, store: ControllerStore, runtime: ProcessRuntime, archives: HomeArchives
) -> Coordinator:
    limits = Limits(memory_bytes=settings.workspace_memory_mb * MIB, processes=settings.workspace_processes)
    hands = Hands(runtime, archives, _program_of, limits)
    intervals = Intervals(idle_s=settings.reconciler_interval, active_s=settings.reconciler_active_interval)
    return Coordinator(
        url=url,
        lock_id=settings.coordinator_lock_id,
        retry_s=LEADER_RETRY_S,
        node_id=socket.gethostname(),
        make_controller=lambda epoch: Controller(
            store,
            hands,
            epoch=epoch,
            knobs=settings.knobs,
            intervals=intervals,
            parallel=settings.reconciler_parallel,
        ),
    )


def _program_of(workspace: Workspace) -> Program:
    chosen = program(template(workspace.template), workspace.command or None)
    return replace(chosen, environment={**chosen.environment, "TORPOR_WORKSPACE": workspace.name})


def _health(settings: Settings, service: ServiceStore, archives: HomeArchives, coordinator: Coordinator) -> Health:
    async def ready() -> dict[str, Any]:
        try:
            held_back = [latch.provider for latch in await service.latches() if latch.released_at is None]
            database = True
        except TorporError:
            held_back = []
            database = False
        controller = coordinator.controller
        age_s = time.monotonic() - controller.tally.last_look_at if controller else float("inf")
        fresh = age_s < STALE_LOOK_FACTOR * settings.reconciler_interval
        store = await archives.reachable()
        return {
            "ready": database and store and fresh and not held_back,
            "database": database,
            "archive_store": store,
            "held_back": held_back,
            "last_look_age_seconds": round(age_s, 3) if age_s != float("inf") else None,
        }

    async def lead() -> dict[str, Any]:
        return {
            "is_leader": coordinator.is_leader,
            "node_id": coordinator.node_id,
            "uptime_seconds": round(coordinator.uptime_s, 1),
            "epoch": coordinator.epoch,
            "members": [coordinator.node_id] if coordinator.is_leader else [],
        }

    return Health(ready=ready, coordinator=lead)


# ── its parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _raise_file_limit() -> None:
    """Every connection and every workspace costs descriptors; the soft limit is there for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """One `up` for one data directory; the lock is the kernel's, so that a kill -9 leaves none behind."""
    try:
        # Where bubblewrap is missing a workspace's own user must find the way to its home; what lies beside it is closed.
        data.mkdir(mode=0o711 if os.getuid() == 0 else 0o700, parents=True, exist_ok=True)
        (data / "archives").mkdir(mode=0o700, exist_ok=True)
        held = (data / "torpor.pid").open("a+", encoding="utf-8")
    except OSError as error:
        raise Refused("bad_data", f"the data directory {data} cannot be used: {error.strerror}") from error
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            raise Refused(
                "already_up",
                f"torpor is already running on {data} (process {held.read().strip() or 'unknown'}); "
                "stop it first, or choose another --data",
            ) from None
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        yield
        held.truncate(0)


@contextlib.asynccontextmanager
async def _running_front(front: Front) -> AsyncIterator[None]:
    await front.start()
    try:
        yield
    finally:
        await front.stop()


@contextlib.asynccontextmanager
async def _open(url: str, role: Role) -> AsyncIterator[Database]:
    database = await Database.open(url, role)
    try:
        yield database
    finally:
        await database.close()


async def _database(settings: Settings, stack: contextlib.AsyncExitStack) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    postgres = EmbeddedPostgres(settings.data / "postgres")
    url = await postgres.start()
    stack.push_async_callback(postgres.stop)
    await stack.enter_async_context(_background(_kept_alive(postgres), "postgres"))
    return url


async def _kept_alive(postgres: EmbeddedPostgres) -> None:
    """A database that ends by itself (killed for want of memory, say) is started again; the loops wait meanwhile."""
    while True:
        log.error("postgres_ended", exit_code=await postgres.wait())
        await postgres.stop()
        while postgres.pid is None:
            try:
                await postgres.start()
            except Exception as error:  # whatever it was, without a database there is nothing better to do than to try again
                log.warning("postgres_did_not_start", why=str(error))
                await asyncio.sleep(DATABASE_RETRY_S)


@contextlib.asynccontextmanager
async def _background(work: Any, name: str) -> AsyncIterator[None]:
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Server(uvicorn.Server):
    """Signals are ours: the whole product stops, in its order, not this part of it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _serving(app: Any, path: Path) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        uds=str(path),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        proxy_headers=True,
        forwarded_allow_ips="*",
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(), name="api")
    try:
        while not server.started:
            if task.done():
                task.result()
                raise Hopeless("the API ended before it was ready")
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


async def _short_folder(stack: contextlib.AsyncExitStack) -> Path:
    """A private folder whose sockets have short names: the kernel allows them 107 bytes."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torpor-")))


async def _ensure_credentials(settings: Settings, accounts: Accounts) -> None:
    """The first user, and a file by which the other commands on this machine act as that user."""
    path = settings.data / CREDENTIALS
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = {"username": ADMIN, "password": secrets.token_urlsafe(12), "token": new_token()}
    except ValueError as error:
        raise Refused("bad_credentials_file", f"{path} is not valid JSON ({error}); mend it or remove it") from error
    if not isinstance(known, dict) or not all(isinstance(known.get(key), str) for key in ("username", "token")):
        raise Refused("bad_credentials_file", f"{path} lacks username or token; mend it or remove it")
    user = await accounts.ensure_admin(known["username"], known.get("password") or secrets.token_urlsafe(12))
    await accounts.ensure_token(user, f"credentials of {settings.data}", known["token"])
    if known.get("password") and not await accounts.knows(known["username"], known["password"]):
        # The database is older than this file, or the password was changed since: say nothing rather than something wrong.
        known["password"] = None
    aside = path.with_suffix(".new")
    aside.touch(mode=0o600)
    aside.write_text(json.dumps({**known, "url": settings.base_url}, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)


def _configure_log(settings: Settings) -> None:
    last = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            last,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
