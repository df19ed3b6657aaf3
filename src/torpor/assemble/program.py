"""Which parts are started, in which order, and who knows whom?"""

import asyncio
import contextlib
import uuid
from functools import partial

from torpor.api import wire
from torpor.api.app import make_app, make_health_app
from torpor.api.event_fanout import EventFeed
from torpor.api.events import EventSources
from torpor.api.gc import GcSources
from torpor.api.sign_in_link import SIGN_IN_LINK
from torpor.assemble import accounts_wiring, archive_directory, controller_wiring, embedded, engines
from torpor.assemble.controller_wiring import ControllerServices
from torpor.assemble.credentials import ADMIN, CREDENTIALS, ensure_credentials
from torpor.assemble.health import health, until_ready
from torpor.assemble.logs import configure_log
from torpor.assemble.process import background, open_database, run, running_front, serve_app, short_folder
from torpor.assemble.proxy_wiring import ProxyServices, ProxyWiring
from torpor.assemble.roles import EVERY_PART, ProcessRole
from torpor.bus.activity import RedisActivity
from torpor.bus.feed import RedisFeed
from torpor.bus.hints import RedisHints
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.control.coordinator import Coordinator
from torpor.domain.errors import Refused
from torpor.ports import Address, Runtime
from torpor.service.activity import TouchQueue, use_reader
from torpor.service.use import UseService
from torpor.service.wishes import Ttls, Wishes
from torpor.settings import Settings
from torpor.store.database import Role
from torpor.store.events import EventStore
from torpor.store.gc import GcStore
from torpor.store.migrate import migrate, require_migrated
from torpor.store.service_store import ServiceStore

PREDECESSOR_S = 10.0
READY_WITHIN_S = 10.0
EXCLUSIVE_GRACE_S = 1.0
EXTERNAL = ("database_url", "redis_url", "archive_url")


def run_up(settings: Settings) -> int:
    """The whole product on this machine, until Ctrl-C or TERM; the exit code."""
    configure_log(settings)

    async def start(stack: contextlib.AsyncExitStack) -> str:
        if settings.archive_url is None:
            await asyncio.to_thread(archive_directory.ensure, settings.data)
        code = await _start(settings, EVERY_PART, stack, is_first_user_made=True)
        ready = f"torpor is ready at {settings.base_url} (sign in as {ADMIN}; the password is in {settings.data / CREDENTIALS})"
        if code is None:
            return ready
        # Last, so that a terminal that recognises addresses recognises this one.
        return f"{ready}; or open this link, which works once within 15 minutes: {settings.base_url}{SIGN_IN_LINK}?code={code}"

    return run(start, alone_in=settings.data)


def run_serve(settings: Settings, parts: frozenset[ProcessRole]) -> int:
    """Some parts of the product, on services that are there already; the exit code."""
    configure_log(settings)

    async def start(stack: contextlib.AsyncExitStack) -> str:
        missing = [f"TORPOR_{name.upper()}" for name in EXTERNAL if getattr(settings, name) is None]
        if missing:
            raise Refused("bad_setting", f"serve runs on services that are there already; set {', '.join(missing)}")
        await _start(settings, parts, stack, is_first_user_made=False)
        return f"torpor is ready at {settings.base_url} ({', '.join(sorted(parts))})"

    # The runtime `process` keeps its workspaces in the data directory; any other leaves it alone.
    return run(start, alone_in=settings.data if settings.runtime != "fake" else None)


async def _start(
    settings: Settings, parts: frozenset[ProcessRole], stack: contextlib.AsyncExitStack, *, is_first_user_made: bool
) -> str | None:
    """Everything in the order it needs each other; the stack takes it down in the reverse.

    The code of a one-time sign-in link, where this is the first start of an installation.
    """
    folder = await short_folder(stack)
    doors = ProxyWiring(settings, parts, Address(unix_path=str(folder / "api.sock")))
    # Bound first: a port in use is said at once, not after a database was started.
    await stack.enter_async_context(running_front(doors.front))

    url = await embedded.database(settings, stack)
    # In production that is an operator's step: older processes may still be running on this schema.
    await (migrate(url) if is_first_user_made else require_migrated(url))
    database = await stack.enter_async_context(open_database(url, Role.SERVICE))
    bus = await Bus.open(await embedded.bus(settings, stack))
    stack.push_async_callback(bus.close)
    hints, activity, feed = RedisHints(bus), RedisActivity(bus), RedisFeed(bus)
    touches = TouchQueue(activity, lease_s=settings.connection_lease)
    heard = ChangeNotifier(hints)
    runtime, archives = await engines.choose_runtime(settings, parts, stack, on_change=heard.here)
    using = UseService(
        ServiceStore(database),
        new_id=_new_id,
        hint=heard.everywhere,
        touch=touches.touch,
        ask=use_reader(activity),
        lease_s=settings.connection_lease,
    )
    await stack.enter_async_context(background(touches.run(using.seen_in_use), "touches"))
    wishes = Wishes(
        ServiceStore(database),
        limits=settings.running_limits,
        ttls=Ttls(standby_s=settings.standby_ttl, archive_s=settings.archive_ttl),
        new_id=_new_id,
        hint=heard.everywhere,
        using=using,
        require_space=engines.space_check(runtime, settings.disk_reserve_bytes),
        name_reserved_s=settings.name_reserved_for,
    )
    revocations = Revocations(bus)
    confinement = await engines.confinement(settings, runtime)
    accounts = accounts_wiring.accounts(settings, database, bus, revocations, confinement)
    await stack.enter_async_context(background(accounts.run(), "people"))
    coordinator = None
    if ProcessRole.CONTROLLER in parts:
        controlled = await stack.enter_async_context(open_database(url, Role.CONTROLLER))
        coordinator = await controller_wiring.coordinator(
            settings, url, controlled, runtime, archives, using, ControllerServices(activity, feed, touches.touch), confinement
        )
        heard.listener = coordinator
        await coordinator.join(within_s=PREDECESSOR_S)
        await controller_wiring.require_our_store(archives, controlled, settings)
    # After joining: whoever else sees this world and goes on living must not be disturbed.
    await engines.start(runtime, parts, confinement, settings.disk_reserve_bytes, stack)
    code = await ensure_credentials(settings, accounts) if is_first_user_made else None
    if coordinator is not None:
        await stack.enter_async_context(background(coordinator.run(), "coordinator"))
        await stack.enter_async_context(background(hints.listen(coordinator.hint), "hints"))
        watch = controller_wiring.busy_watch(settings, runtime, activity, using)
        await stack.enter_async_context(background(watch.run(), "busy"))
    if ProcessRole.PROXY in parts:
        behind = ProxyServices(
            ServiceStore(database), EventStore(database), wishes, accounts, revocations, runtime, activity, feed
        )
        await stack.enter_async_context(doors.open(behind))
    checks = health(settings, database, runtime, archives, bus, coordinator)
    app, events = make_health_app(checks), None
    if ProcessRole.API in parts:
        events = EventFeed(EventStore(database), feed, encode=partial(wire.workspace_json, hosts=doors.hosts))
        app = make_app(
            wishes,
            accounts,
            runtime,
            checks,
            hosts=doors.hosts,
            events=EventSources(EventStore(database), events, settings.events_heartbeat),
            gc=GcSources(GcStore(database), archives, settings.retention),
            provider=accounts_wiring.provider(settings),
        )
    await stack.enter_async_context(serve_app(app, folder / "api.sock"))
    # Nobody new is let in, and whoever is there may finish, while everything behind still answers.
    stack.push_async_callback(doors.front.stop, _grace_s(settings, runtime))
    if events is not None:
        # Last, so that it ends first: a stream has no end of its own that a server could wait for.
        await stack.enter_async_context(background(events.run(), "events"))
    await until_ready(checks, READY_WITHIN_S)
    return code


def _grace_s(settings: Settings, runtime: Runtime) -> float:
    """Where the workspaces end with this process there is little to wait for: whoever is connected loses them anyway."""
    return min(settings.drain_grace, EXCLUSIVE_GRACE_S) if engines.is_exclusive(runtime) else settings.drain_grace


def _new_id() -> str:
    return str(uuid.uuid4())


class ChangeNotifier:
    """Something about a workspace changed: this process is told at once, the others by the bus."""

    def __init__(self, hints: RedisHints) -> None:
        self.listener: Coordinator | None = None
        self._hints = hints

    def here(self, workspace_id: str) -> None:
        if self.listener is not None:
            self.listener.hint(workspace_id)

    def everywhere(self, workspace_id: str) -> None:
        self.here(workspace_id)
        self._hints.wake(workspace_id)
