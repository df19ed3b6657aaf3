"""How does a request find its workspace?"""

import contextlib
from collections.abc import AsyncIterator

from torpor.domain.states import Phase
from torpor.ports import Activity, Address, Runtime
from torpor.proxy.front import Front
from torpor.proxy.leases import ConnectionLeases
from torpor.proxy.route import Asleep, Place, Running, Unknown
from torpor.settings import Settings
from torpor.store.for_service import ServiceStore
from torpor.using import Using


class Doors:
    """The front is bound before there is anything behind it; until it is opened a workspace cannot be found."""

    def __init__(self, settings: Settings, platform: Address) -> None:
        self.front = Front(platform=platform, find=self._find, port=settings.port)
        self._lease_s = settings.connection_lease
        self._service: ServiceStore | None = None
        self._runtime: Runtime | None = None
        self._using: Using | None = None

    @contextlib.asynccontextmanager
    async def open(self, service: ServiceStore, runtime: Runtime, activity: Activity, using: Using) -> AsyncIterator[None]:
        leases = ConnectionLeases(
            activity, using.touch, lease_s=self._lease_s, write_down=using.seen_in_use, ttls_of=using.ttls_s
        )
        async with leases.running():
            self.front.usage = leases
            self._service, self._runtime, self._using = service, runtime, using
            yield

    async def _find(self, name: str) -> Place:
        if self._service is None or self._runtime is None or self._using is None:
            return Unknown(name)
        found = await self._service.living(name)
        if found is None:
            return Unknown(name)
        found = await self._using.stay(found)
        address = self._runtime.address(found.id)
        if found.phase is Phase.RUNNING and address is not None:
            return Running(name, address, found.id, found.standby_ttl_s)
        return Asleep(name, found.phase, found.operation, found.progress, found.error.message if found.error else None)
