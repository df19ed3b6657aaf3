"""A control plane on a fake provider and a real database; the test runs single passes or the loop."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from tests.support.users import person
from tests.support.waiting import until
from torpor.accounts import Caller
from torpor.assemble.engines import space_check
from torpor.control.controller import Controller, Listeners, MembershipView, SystemSources
from torpor.control.effect_executor import NO_BASES, BaseArchives, EffectExecutor
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Workspace
from torpor.domain.shards import ALL_SHARDS
from torpor.domain.states import Phase
from torpor.domain.tuning import Intervals, Tuning
from torpor.ports import Limits
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.archive_bases import ArchiveBases
from torpor.store.controller_store import ControllerStore, ShardOwnership
from torpor.store.database import Database, Role
from torpor.store.service_store import ServiceStore
from torpor.templates.catalogue import shipped
from torpor.testing.defaults import DEFAULTS, tuning
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeWorld

WORLD = "fake:of this test"
LIFE_S = 86_400
QUICK = Intervals(idle_s=0.2, active_s=0.05)
FAST = tuning(retry_base_s=0.05, retry_cap_s=0.2, restart_base_s=0.05)


@dataclass(frozen=True)
class OnlyMember:
    """A membership that never ends and owns all shards."""

    life: int
    shards: frozenset[int] = ALL_SHARDS

    def lives(self) -> bool:
        return True


@dataclass
class ControlPlane:
    world: FakeWorld
    user: Caller
    wishes: Wishes
    service: ServiceStore
    controller_store: ControllerStore
    controller: Controller
    life: MembershipView

    async def show(self, name: str) -> Workspace:
        return await self.wishes.find(self.user, name)

    async def until(self, name: str, condition: Callable[[Workspace], bool], within_s: float = 60) -> Workspace:
        """Return the workspace when the condition holds; the failure shows its last state."""
        seen = await self.show(name)

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.show(name)
            return condition(seen)

        await until(is_so, within_s=within_s, otherwise=lambda: str(seen))
        return seen

    async def until_phase(self, name: str, phase: Phase) -> Workspace:
        return await self.until(name, lambda seen: seen.phase is phase and seen.operation == "NONE")

    async def successor(self) -> Controller:
        """A new membership with all shards; the previous one has ended."""
        life = await self.controller_store.join("successor", WORLD, expiry_s=LIFE_S, exclusive=True)
        return make_controller(self.controller_store, self.world, OnlyMember(life), FAST, parallel=8)

    def hold(self) -> ShardOwnership:
        return ShardOwnership(self.life.life, self.life.shards)


def make_controller(
    store: ControllerStore,
    world: FakeWorld,
    life: MembershipView,
    tuning: Tuning,
    *,
    parallel: int,
    listeners: Listeners | None = None,
    intervals: Intervals = QUICK,
    runtime: FakeRuntime | None = None,
    bases: BaseArchives = NO_BASES,
) -> Controller:
    hands = EffectExecutor(
        runtime or FakeRuntime(world),
        FakeArchives(world),
        shipped().program_of,
        Limits(memory_bytes=2**30, processes=100),
        shipped().before_sleep_of,
        bases=bases,
    )
    return Controller(
        store,
        hands,
        life=life,
        tuning=tuning,
        intervals=intervals,
        parallel=parallel,
        sources=SystemSources(),
        listeners=listeners,
    )


@contextlib.asynccontextmanager
async def control_plane(
    database_url: str,
    *,
    tuning: Tuning = FAST,
    runs: bool = True,
    parallel: int = 8,
    limits: RunningLimits = RunningLimits(per_user=1000, overall=1000),
    intervals: Intervals = QUICK,
    archive_format: int = DEFAULTS.archive_format,
) -> AsyncIterator[ControlPlane]:
    """`archive_format`: the format of new archives."""
    service_database = await Database.open(database_url, Role.SERVICE)
    controller_database = await Database.open(database_url, Role.CONTROLLER)
    service, store = ServiceStore(service_database), ControllerStore(controller_database, provider="fake")
    world = FakeWorld()
    life = OnlyMember(await store.join("test", WORLD, expiry_s=LIFE_S))
    bases = ArchiveBases(controller_database, newest=archive_format, proof_age_s=DEFAULTS.archive_proof_age)
    controller = make_controller(store, world, life, tuning, parallel=parallel, intervals=intervals, bases=bases)
    ada = await person(service_database, "ada", is_admin=True)
    wishes = Wishes(
        service,
        limits=limits,
        ttls=DEFAULTS.ttls,
        new_id=lambda: str(uuid.uuid4()),
        hint=controller.hint,
        require_space=space_check(FakeRuntime(world), tuning.disk_reserve_bytes),
        using=UseService(service, new_id=lambda: str(uuid.uuid4()), hint=controller.hint, lease_s=DEFAULTS.connection_lease),
    )
    loop = asyncio.create_task(controller.run()) if runs else None
    try:
        yield ControlPlane(world, ada, wishes, service, store, controller, life)
    finally:
        if loop:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        await service_database.close()
        await controller_database.close()
