"""Start the parts of the product in order, and connect them."""

import asyncio
import contextlib
import uuid
from functools import partial

from torpor.accounts import Accounts
from torpor.api import wire
from torpor.api.app import make_app, make_health_app
from torpor.api.event_fanout import EventFeed
from torpor.api.events import EventSources
from torpor.api.gc import GcSources
from torpor.api.sessions import SIGN_IN_LINK
from torpor.archives.reader import ArchiveReader
from torpor.assemble import accounts_wiring, archive_directory, controller_wiring, embedded, engines
from torpor.assemble.controller_start import start_controller
from torpor.assemble.controller_wiring import ControllerServices
from torpor.assemble.credentials import ADMIN, ensure_credentials
from torpor.assemble.engine_access import require_shared_key
from torpor.assemble.engine_parts import RoleDatabases
from torpor.assemble.health import health, until_ready
from torpor.assemble.logs import configure_log
from torpor.assemble.process import background, open_database, run, running_front, serve_app, short_folder
from torpor.assemble.proxy_wiring import ProxyServices, ProxyWiring
from torpor.assemble.roles import EVERY_PART, ProcessRole
from torpor.assemble.runtime_switch import complete_switch
from torpor.assemble.templates import read_templates
from torpor.bus.activity import RedisActivity
from torpor.bus.feed import RedisFeed
from torpor.bus.hints import RedisHints
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.bus.usage import RedisUsageSeries
from torpor.control.coordinator import Coordinator
from torpor.domain.errors import Refused
from torpor.paths import CREDENTIALS_FILE
from torpor.ports import Address, Archives, Runtime
from torpor.secret_key import SecretKey
from torpor.service.activity import TouchQueue, use_reader
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.settings import Settings
from torpor.store.database import Database, Role
from torpor.store.events import EventStore
from torpor.store.gc import GcStore
from torpor.store.migrate import migrate, require_migrated
from torpor.store.pack_gc import PackGcStore
from torpor.store.service_store import ServiceStore
from torpor.templates.catalogue import Catalogue

PREDECESSOR_S = 10.0
READY_WITHIN_S = 10.0
EXCLUSIVE_GRACE_S = 1.0
EXTERNAL = ("database_url", "redis_url", "archive_url")


def run_up(settings: Settings) -> int:
    """Run the whole product on this machine until Ctrl-C or SIGTERM; return the exit code."""
    configure_log(settings)

    async def start(stack: contextlib.AsyncExitStack) -> str:
        if settings.archive_url is None:
            await asyncio.to_thread(archive_directory.ensure, settings.data)
        code = await _start(settings, EVERY_PART, stack, is_first_user_made=True)
        password_file = settings.data / CREDENTIALS_FILE
        ready = f"torpor is ready at {settings.base_url} (sign in as {ADMIN}; the password is in {password_file})"
        if code is None:
            return ready
        # The link comes last, so that terminals that make links clickable recognise its end.
        return f"{ready}; or open this link, which works once within 15 minutes: {settings.base_url}{SIGN_IN_LINK}?code={code}"

    return run(start, alone_in=settings.data)


def run_serve(settings: Settings, parts: frozenset[ProcessRole]) -> int:
    """Run some roles of the product with existing services; return the exit code."""
    configure_log(settings)

    async def start(stack: contextlib.AsyncExitStack) -> str:
        missing = [f"TORPOR_{name.upper()}" for name in EXTERNAL if getattr(settings, name) is None]
        if missing:
            raise Refused("bad_setting", f"serve needs existing services: set {', '.join(missing)}")
        if settings.uses_engine:
            require_shared_key(settings)
        await _start(settings, parts, stack, is_first_user_made=False)
        return f"torpor is ready at {settings.base_url} ({', '.join(sorted(parts))})"

    # Only the runtime `process` keeps its workspaces in the data directory.
    return run(start, alone_in=settings.data if settings.runtime in ("auto", "process") else None)


async def _start(
    settings: Settings, parts: frozenset[ProcessRole], stack: contextlib.AsyncExitStack, *, is_first_user_made: bool
) -> str | None:
    """Start everything in the order of dependencies; the stack stops it in the reverse order.

    Return the code of a one-time sign-in link on the first start of an installation.
    """
    folder = await short_folder(stack)
    proxy = ProxyWiring(settings, parts, Address(unix_path=str(folder / "api.sock")))
    # Bound first, so that a port in use is reported at once and not after a database was started.
    for front in filter(None, (proxy.front, proxy.monitoring)):
        await stack.enter_async_context(running_front(front))

    catalogue = await asyncio.to_thread(read_templates, settings)
    url = await embedded.database(settings, stack)
    # With `serve`, the operator migrates: older processes may still run on this schema.
    await (migrate(url) if is_first_user_made else require_migrated(url))
    database = await stack.enter_async_context(open_database(url, Role.SERVICE))
    bus = await Bus.open(await embedded.bus(settings, stack))
    stack.push_async_callback(bus.close)
    hints, activity, feed, usage = RedisHints(bus), RedisActivity(bus), RedisFeed(bus), RedisUsageSeries(bus)
    touches = TouchQueue(activity, lease_s=settings.connection_lease)
    notifier = ChangeNotifier(hints)
    controlled = None
    if ProcessRole.CONTROLLER in parts:
        controlled = await stack.enter_async_context(open_database(url, Role.CONTROLLER))
    engine = await engines.choose_engine(settings, parts, RoleDatabases(database, controlled), stack, on_change=notifier.here)
    runtime, archives = engine.runtime, engine.archives
    using = UseService(
        ServiceStore(database),
        new_id=_new_id,
        hint=notifier.everywhere,
        touch=touches.touch,
        ask=use_reader(activity),
        lease_s=settings.connection_lease,
    )
    await stack.enter_async_context(background(touches.run(using.seen_in_use), "touches"))
    wishes = Wishes(
        ServiceStore(database),
        limits=settings.running_limits,
        ttls=settings.ttls,
        new_id=_new_id,
        hint=notifier.everywhere,
        using=using,
        require_space=engines.space_check(runtime, settings.disk_reserve_bytes),
        name_reserved_s=settings.name_reserved_for,
        environment_bytes=settings.environment_bytes,
        most=settings.most,
        seal=SecretKey(settings.secret_key_path).seal,
        catalogue=catalogue,
    )
    revocations = Revocations(bus)
    accounts = accounts_wiring.accounts(settings, database, bus, revocations)
    await stack.enter_async_context(background(accounts.run(), "people"))
    if controlled is not None and runtime is not None:
        around = ControllerServices(activity, feed, touches.touch, usage)
        begun = partial(
            _controller, settings, url, controlled, runtime, archives, wishes, around, catalogue, hints, accounts, notifier
        )
        await start_controller(begun, runtime, stack)
    code = await ensure_credentials(settings, accounts) if is_first_user_made else None
    if ProcessRole.PROXY in parts:
        behind = ProxyServices(
            ServiceStore(database), EventStore(database), wishes, accounts, revocations, engine.access, activity, feed
        )
        await stack.enter_async_context(proxy.open(behind))
    checks = health(settings, database, runtime, archives, bus, lambda: notifier.listener)
    app, events = make_health_app(checks), None
    if ProcessRole.API in parts:
        events = EventFeed(EventStore(database), feed, encode=partial(wire.workspace_json, hosts=proxy.hosts))
        reader = ArchiveReader(settings.archives_at)
        stack.push_async_callback(reader.close)
        app = make_app(
            wishes,
            accounts,
            engine.access,
            checks,
            hosts=proxy.hosts,
            events=EventSources(EventStore(database), events, settings.events_heartbeat),
            gc=GcSources(GcStore(database), archives, settings.gc_policy, PackGcStore(database)),
            usage=usage,
            reading=reader,
            provider=accounts_wiring.provider(settings),
        )
    await stack.enter_async_context(serve_app(app, folder / "api.sock"))
    # No new connection is accepted, and open ones can finish, while everything behind the proxy still works.
    stack.push_async_callback(proxy.front.stop, _grace_s(settings, runtime))
    if events is not None:
        # Last, so that it ends first: a stream never ends by itself, so a server could not wait for it.
        await stack.enter_async_context(background(events.run(), "events"))
    await until_ready(checks, READY_WITHIN_S)
    return code


async def _controller(
    settings: Settings,
    url: str,
    controlled: Database,
    runtime: Runtime,
    archives: Archives,
    wishes: Wishes,
    around: ControllerServices,
    catalogue: Catalogue,
    hints: RedisHints,
    accounts: Accounts,
    notifier: "ChangeNotifier",
    stack: contextlib.AsyncExitStack,
) -> None:
    """Start the controller. Unavailable if its engine does not answer; then this can be repeated."""
    accounts.confinement = confinement = await engines.confinement(settings, runtime)
    coordinator = await controller_wiring.coordinator(
        settings, url, controlled, runtime, archives, wishes.using, around, confinement, catalogue
    )
    stack.push_async_callback(coordinator.leave)  # if the start fails after this
    await coordinator.join(within_s=PREDECESSOR_S)
    await controller_wiring.require_our_store(archives, controlled, settings)
    # After joining, so that another controller of the same world that is still alive is not disturbed.
    await engines.start(runtime, confinement, settings.disk_reserve_bytes, stack)
    await complete_switch(wishes.switch, runtime, archives)
    notifier.listener = coordinator
    await stack.enter_async_context(background(coordinator.run(), "coordinator"))
    await stack.enter_async_context(background(hints.listen(coordinator.hint), "hints"))
    watch = controller_wiring.busy_watch(settings, runtime, around.activity, wishes.using, catalogue, coordinator)
    await stack.enter_async_context(background(watch.run(), "busy"))
    sampling = controller_wiring.usage_watch(runtime, around.usage, coordinator)
    await stack.enter_async_context(background(sampling.run(), "usage"))


def _grace_s(settings: Settings, runtime: Runtime | None) -> float:
    """If the workspaces end with this process, waiting helps little: their connections break anyway."""
    return min(settings.drain_grace, EXCLUSIVE_GRACE_S) if engines.is_exclusive(runtime) else settings.drain_grace


def _new_id() -> str:
    return str(uuid.uuid4())


class ChangeNotifier:
    """Tells the controllers that a workspace changed: this process at once, the others through the bus."""

    def __init__(self, hints: RedisHints) -> None:
        self.listener: Coordinator | None = None
        self._hints = hints

    def here(self, workspace_id: str) -> None:
        if self.listener is not None:
            self.listener.hint(workspace_id)

    def everywhere(self, workspace_id: str) -> None:
        self.here(workspace_id)
        self._hints.wake(workspace_id)
