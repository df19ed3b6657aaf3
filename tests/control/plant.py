"""A whole control plane on a fake world and a real database, stepped by hand or left running."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from torpor.control.controller import Controller, Draws
from torpor.control.execute import Hands
from torpor.control.pace import Intervals
from torpor.domain.knobs import Knobs
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Workspace
from torpor.domain.states import Phase
from torpor.ports import Limits
from torpor.runtimes.fake import FakeArchives, FakeRuntime, FakeWorld
from torpor.store.database import Database, Role
from torpor.store.for_controller import ControllerStore
from torpor.store.for_service import ServiceStore, User
from torpor.templates.catalogue import program, template
from torpor.wishes import Ttls, Wishes

FAST = Knobs(retry_base_s=0.05, retry_cap_s=0.2, restart_base_s=0.05)


@dataclass
class Plant:
    world: FakeWorld
    user: User
    wishes: Wishes
    service: ServiceStore
    controller_store: ControllerStore
    controller: Controller

    async def show(self, name: str) -> Workspace:
        return await self.wishes.find(self.user, name)

    async def until(self, name: str, condition: Callable[[Workspace], bool], within_s: float = 10) -> Workspace:
        """The workspace as soon as it is so; the last state of it in the failure otherwise."""
        seen = await self.show(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not condition(seen):
                    await asyncio.sleep(0.01)
                    seen = await self.show(name)
                return seen
        raise AssertionError(f"still not so after {within_s} s: {seen}")

    async def until_phase(self, name: str, phase: Phase) -> Workspace:
        return await self.until(name, lambda seen: seen.phase is phase and seen.operation == "NONE")

    def controller_of_epoch(self, epoch: int, *, knobs: Knobs = FAST) -> Controller:
        return make_controller(self.controller_store, self.world, epoch, knobs, parallel=8)


def make_controller(store: ControllerStore, world: FakeWorld, epoch: int, knobs: Knobs, *, parallel: int) -> Controller:
    hands = Hands(
        FakeRuntime(world),
        FakeArchives(world),
        lambda workspace: program(template(workspace.template), workspace.command or None),
        Limits(memory_bytes=2**30, processes=100),
    )
    return Controller(
        store, hands, epoch=epoch, knobs=knobs, intervals=Intervals(idle_s=0.2, active_s=0.05), parallel=parallel, draws=Draws()
    )


@contextlib.asynccontextmanager
async def plant(
    database_url: str,
    *,
    knobs: Knobs = FAST,
    runs: bool = True,
    parallel: int = 8,
    limits: RunningLimits = RunningLimits(per_user=1000, overall=1000),
) -> AsyncIterator[Plant]:
    service_database = await Database.open(database_url, Role.SERVICE)
    controller_database = await Database.open(database_url, Role.CONTROLLER)
    service, store = ServiceStore(service_database), ControllerStore(controller_database)
    world = FakeWorld()
    controller = make_controller(store, world, await store.take_epoch("test"), knobs, parallel=parallel)
    await service.create_user("ada", is_admin=True, password=None)
    known = await service.user_by_name("ada")
    assert known is not None
    wishes = Wishes(
        service,
        limits=limits,
        ttls=Ttls(),
        new_id=lambda: str(uuid.uuid4()),
        hint=controller.hint,
    )
    loop = asyncio.create_task(controller.run()) if runs else None
    try:
        yield Plant(world, known[0], wishes, service, store, controller)
    finally:
        if loop:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        await service_database.close()
        await controller_database.close()
