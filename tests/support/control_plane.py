"""A whole control plane on a fake world and a real database, stepped by hand or left running."""

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
from torpor.control.effect_executor import EffectExecutor
from torpor.control.schedule import Intervals
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Workspace
from torpor.domain.shards import ALL_SHARDS
from torpor.domain.states import Phase
from torpor.domain.tuning import Tuning
from torpor.ports import Limits
from torpor.service.wishes import Ttls, Wishes
from torpor.store.controller_store import ControllerStore, ShardOwnership
from torpor.store.database import Database, Role
from torpor.store.service_store import ServiceStore
from torpor.templates.catalogue import before_sleep_of, program, template
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeWorld

WORLD = "fake:of this test"
LIFE_S = 86_400
QUICK = Intervals(idle_s=0.2, active_s=0.05)
FAST = Tuning(retry_base_s=0.05, retry_cap_s=0.2, restart_base_s=0.05)


@dataclass(frozen=True)
class OnlyMember:
    """A life of which nobody doubts that it goes on, and to which everything belongs."""

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
        """The workspace as soon as it is so; the last state of it in the failure otherwise."""
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
        """Another life, to which every shard belongs; the one before is over."""
        life = await self.controller_store.join("successor", WORLD, expiry_s=LIFE_S, exclusive=True)
        return make_controller(self.controller_store, self.world, OnlyMember(life), FAST, parallel=8)

    def hold(self) -> ShardOwnership:
        return ShardOwnership(self.life.life, self.life.shards)


def make_controller(
    store: ControllerStore,
    world: FakeWorld,
    life: MembershipView,
    knobs: Tuning,
    *,
    parallel: int,
    listeners: Listeners | None = None,
    intervals: Intervals = QUICK,
) -> Controller:
    hands = EffectExecutor(
        FakeRuntime(world),
        FakeArchives(world),
        lambda workspace: program(template(workspace.template), workspace.command or None),
        Limits(memory_bytes=2**30, processes=100),
        before_sleep_of,
    )
    return Controller(
        store,
        hands,
        life=life,
        knobs=knobs,
        intervals=intervals,
        parallel=parallel,
        draws=SystemSources(),
        listeners=listeners,
    )


@contextlib.asynccontextmanager
async def control_plane(
    database_url: str,
    *,
    knobs: Tuning = FAST,
    runs: bool = True,
    parallel: int = 8,
    limits: RunningLimits = RunningLimits(per_user=1000, overall=1000),
    intervals: Intervals = QUICK,
) -> AsyncIterator[ControlPlane]:
    service_database = await Database.open(database_url, Role.SERVICE)
    controller_database = await Database.open(database_url, Role.CONTROLLER)
    service, store = ServiceStore(service_database), ControllerStore(controller_database, provider="fake")
    world = FakeWorld()
    life = OnlyMember(await store.join("test", WORLD, expiry_s=LIFE_S))
    controller = make_controller(store, world, life, knobs, parallel=parallel, intervals=intervals)
    ada = await person(service_database, "ada", is_admin=True)
    wishes = Wishes(
        service,
        limits=limits,
        ttls=Ttls(),
        new_id=lambda: str(uuid.uuid4()),
        hint=controller.hint,
        require_space=space_check(FakeRuntime(world), knobs.disk_reserve_bytes),
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
