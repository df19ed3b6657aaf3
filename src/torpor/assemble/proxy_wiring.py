"""How does a request find its way to the platform, or to a workspace?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from torpor.accounts import Accounts
from torpor.assemble.process import background
from torpor.assemble.roles import ProcessRole
from torpor.bus.revocations import Revocations
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.hostnames import Hosts
from torpor.loops import stop
from torpor.ports import Activity, Address, Feed, WorkspaceAccess
from torpor.proxy.caller_cache import CallerCache
from torpor.proxy.connection_limits import ConnectionLimits, descriptor_limit, total_connections
from torpor.proxy.host_router import GateHandlers, HostRouter, PlatformAddress
from torpor.proxy.limit_page import LimitPage
from torpor.proxy.monitoring_gate import MonitoringGate
from torpor.proxy.route_cache import Routes
from torpor.proxy.server import ProxyServer
from torpor.proxy.use_leases import ConnectionLeases
from torpor.proxy.wake import WakeService
from torpor.proxy.workspace_gate import WorkspaceGate
from torpor.service.wishes import Wishes
from torpor.settings import Settings
from torpor.store.events import EventStore
from torpor.store.service_store import ServiceStore

HTTP_PORT = 80
MONITORING_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class ProxyServices:
    """What the workspace gate uses."""

    service: ServiceStore
    events: EventStore
    wishes: Wishes
    accounts: Accounts
    revocations: Revocations
    access: WorkspaceAccess
    activity: Activity
    feed: Feed


class ProxyWiring:
    """Binds the ports before the other parts run; until `open`, no workspace can be reached."""

    def __init__(self, settings: Settings, parts: frozenset[ProcessRole], here: Address) -> None:
        """`here`: the address of this process's own API."""
        self.hosts = Hosts(settings.base_url, settings.workspace_domain)
        elsewhere = _api_of(settings) if ProcessRole.API not in parts else None
        self._gate = HostRouter(
            self.hosts,
            PlatformAddress(here, elsewhere),
            has_workspaces=ProcessRole.PROXY in parts,
            has_metrics=settings.metrics_port is None,
        )
        total, listen = total_connections(descriptor_limit()), _words(settings.listen)
        self.monitoring: ProxyServer | None = None
        if settings.metrics_port is not None:
            # Probes and monitoring need few connections, and all ports share the descriptors of the process.
            few = max(1, min(MONITORING_CONNECTIONS, total // 8))
            total = max(1, total - few)
            self.monitoring = ProxyServer(
                MonitoringGate(here),
                port=settings.metrics_port,
                hosts=listen,
                limits=ConnectionLimits(per_address=few, total=few),
                option="the setting metrics_port",
            )
        self.front = ProxyServer(
            self._gate,
            port=settings.port,
            hosts=listen,
            trusted=_words(settings.trusted_proxies),
            limits=ConnectionLimits(settings.connections_per_address, total),
        )
        self._settings = settings
        self._checks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self, behind: ProxyServices) -> AsyncIterator[None]:
        """Workspaces can be reached inside this context."""
        using, access = behind.wishes.using, behind.access
        leases = ConnectionLeases(
            behind.activity,
            using.touch,
            lease_s=self._settings.connection_lease,
            write_down=using.seen_in_use,
            ttls_of=using.ttls_s,
        )
        visitors = CallerCache(behind.accounts, behind.revocations, cut=self.front.cut)
        routes = Routes(
            behind.service,
            behind.events,
            behind.feed,
            on_change=lambda workspace_id, name: self._check_open_connections(visitors, routes, workspace_id, name),
        )
        waking = WakeService(behind.wishes, using, routes, is_reachable=lambda workspace: access.address(workspace) is not None)
        house = WorkspaceGate(
            self.hosts,
            behind.accounts,
            routes=routes,
            visitors=visitors,
            waking=waking,
            usage=leases,
            address_of=access.address,
            patience_s=self._settings.wake_patience,
        )
        room = LimitPage(self.hosts, behind.wishes, routes=routes, visitors=visitors, waking=waking)
        async with leases.running(), background(routes.run(), "routes"), background(visitors.run(), "visitors"):
            self._gate.inside = GateHandlers(house, room)
            try:
                yield
            finally:
                self._gate.inside = None
                await stop(*self._checks)

    def _check_open_connections(self, visitors: CallerCache, routes: Routes, workspace_id: str, name: str) -> None:
        """The workspace's shares may have changed; that matters at once only if a connection to it is open."""
        if visitors.has_open(workspace_id):
            check = asyncio.create_task(
                _check_open_connections(visitors, routes, workspace_id, name), name=f"check connections of {name}"
            )
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)


async def _check_open_connections(visitors: CallerCache, routes: Routes, workspace_id: str, name: str) -> None:
    # While the database is down, no share can be removed there.
    with contextlib.suppress(Unavailable):
        found = await routes.find(name)
        if found is None or found.id == workspace_id:
            visitors.look_at(workspace_id, found)


def _api_of(settings: Settings) -> Address | None:
    if settings.api_url is None:
        return None
    parts = urlsplit(settings.api_url)
    if parts.scheme != "http":
        raise Refused(
            "bad_setting", f"TORPOR_API_URL is {settings.api_url!r}. A proxy reaches the API only at http://HOST:PORT"
        )
    return Address(host=parts.hostname, port=parts.port or HTTP_PORT)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))
