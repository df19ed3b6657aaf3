"""`torpor serve` processes whose connections to PostgreSQL and Valkey pass through relays, restarted when they end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.support.cluster import READY, Cluster, Node
from tests.support.product import free_port
from tests.support.relay import Relay
from torpor.store.embedded import DATABASE, PORT

ROLES = "api,proxy,controller"
LOOK_EVERY_S = 0.1
READY_WITHIN_S = 180.0


def postgres_relay(here: Cluster) -> Relay:
    return Relay(here.postgres.socket / f".s.PGSQL.{PORT}")


def url_through(relay: Relay, here: Cluster) -> str:
    """The URL of the database, through its relay."""
    login = urlsplit(here.postgres.dsn)
    return f"postgresql://{login.username}:{login.password}@127.0.0.1:{relay.port}/{DATABASE}"


@dataclass
class RelayedNode:
    """One process and its connections. A restart replaces the process; name, port and relays stay."""

    name: str
    """The node id of the process."""
    port: int
    postgres: Relay
    valkey: Relay
    settings: Mapping[str, str]
    node: Node
    is_ready: bool = True
    exits: list[int] = field(default_factory=list)
    """The exit code of each process that was ready and ended without a stop."""
    failed_starts: int = 0
    """Restarts that ended before they were ready: a process refuses to start while its database is unavailable."""


class RelayedNodes:
    def __init__(self, here: Cluster) -> None:
        self.here = here
        self.all: list[RelayedNode] = []
        """Without the nodes that were killed for good."""

    @property
    def ready(self) -> list[RelayedNode]:
        return [place for place in self.all if place.is_ready and place.node.is_alive]

    @contextlib.asynccontextmanager
    async def opened(self, count: int, settings: Mapping[str, str]) -> AsyncIterator[None]:
        """Start this many processes, ready and supervised."""
        async with contextlib.AsyncExitStack() as stack:
            for number in range(count):
                self.all.append(await self._begin(stack, f"node-{number}", settings))
            await asyncio.gather(*(self._until_ready(place) for place in self.all))
            supervisors = [
                asyncio.create_task(self._supervise(place), name=f"supervisor of {place.name}") for place in self.all
            ]
            try:
                yield
            finally:
                for supervisor in supervisors:
                    supervisor.cancel()
                await asyncio.gather(*supervisors, return_exceptions=True)

    async def kill(self, place: RelayedNode) -> None:
        """Kill it for good, as a power cut does."""
        self.all.remove(place)
        await place.node.kill()

    async def _begin(self, stack: contextlib.AsyncExitStack, name: str, settings: Mapping[str, str]) -> RelayedNode:
        postgres = postgres_relay(self.here)
        valkey = Relay(self.here.valkey.socket)
        for relay in (postgres, valkey):
            await stack.enter_async_context(relay.running())
        port = free_port()
        settings = {
            **settings,
            "database_url": url_through(postgres, self.here),
            "redis_url": f"redis://127.0.0.1:{valkey.port}/0",
            "coordinator_node_id": name,
            "port": str(port),
        }
        return RelayedNode(name, port, postgres, valkey, settings, self.here.begin(ROLES, **settings))

    async def _until_ready(self, place: RelayedNode) -> None:
        async with asyncio.timeout(READY_WITHIN_S):
            said = await place.node.first_line()
        assert said.startswith(READY), f"{place.name} said {said!r}:\n{place.node.said()}"

    async def _supervise(self, place: RelayedNode) -> None:
        """Restart the process when it has ended, as systemd and Kubernetes do."""
        while place in self.all:
            if place.node.is_alive:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            if place.is_ready:
                place.exits.append(place.node.process.returncode)
            else:
                place.failed_starts += 1
            place.is_ready = False
            place.node = self.here.begin(ROLES, **place.settings)
            place.is_ready = (await place.node.first_line()).startswith(READY)
