"""Which effects are at work, and what did those report that have ended?

One for each workspace, never two. Archives, restores, commands of users and all other effects have slots of their own: no
archive keeps a restore or a start waiting. The slots of each kind are shared between owners (`torpor.domain.fairness`). An
effect that waits for its slot loses no time of its deadline.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog

from torpor.control.effect_executor import EffectExecutor
from torpor.control.slots import Slots
from torpor.domain.effects import (
    AcceptHome,
    BeforeSleep,
    DropHome,
    Effect,
    MakeHome,
    Pack,
    PackEmpty,
    Remove,
    Restore,
    Start,
    Stop,
)
from torpor.domain.errors import Reason
from torpor.domain.records import EffectFailed, Report, Workspace
from torpor.domain.settle import Progress
from torpor.loops import stop
from torpor.ports import Fence

log = structlog.get_logger()


class Lane(StrEnum):
    """Effects that share slots."""

    ARCHIVES = "archives"
    RESTORES = "restores"
    COMMANDS = "commands"
    QUICK = "quick"


LANE_OF: Mapping[type[Effect], Lane] = {
    Pack: Lane.ARCHIVES,
    Restore: Lane.RESTORES,
    BeforeSleep: Lane.COMMANDS,
    MakeHome: Lane.QUICK,
    AcceptHome: Lane.QUICK,
    Start: Lane.QUICK,
    Stop: Lane.QUICK,
    PackEmpty: Lane.QUICK,
    DropHome: Lane.QUICK,
    Remove: Lane.QUICK,
}
# The work of a command is done inside its workspace; here it only waits.
SLOTS_PER_PARALLEL: Mapping[Lane, int] = {Lane.ARCHIVES: 1, Lane.RESTORES: 1, Lane.COMMANDS: 16, Lane.QUICK: 4}


@dataclass(slots=True)
class RunningEffect:
    op_id: str
    attempt: int
    effect: Effect
    waits_since: float
    has_slot: bool = False
    waited_s: float = 0.0
    """For its slot, and not yet credited to its deadline."""
    task: "asyncio.Task[None] | None" = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class EffectResult:
    op_id: str
    attempt: int
    report: Report


class RunningEffects:
    def __init__(
        self,
        hands: EffectExecutor,
        *,
        may_act: Callable[[], bool],
        parallel: int,
        on_end: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hands = hands
        self._may_act = may_act
        self._on_end = on_end
        self._monotonic = monotonic
        self._slots = {lane: Slots(SLOTS_PER_PARALLEL[lane] * parallel) for lane in Lane}
        self._flights: dict[str, RunningEffect] = {}
        self._landed: dict[str, EffectResult] = {}
        self._fencing: set[asyncio.Task[None]] = set()

    def of(self, workspace_id: str) -> RunningEffect | None:
        return self._flights.get(workspace_id)

    def landed(self, workspace_ids: Collection[str]) -> Mapping[str, EffectResult]:
        """What those of these that have ended reported."""
        return {one: self._landed[one] for one in workspace_ids if one in self._landed}

    def has_landed_since(self, workspace_id: str, known: EffectResult | None) -> bool:
        return self._landed.get(workspace_id) is not known

    def was_used(self, workspace_id: str, known: EffectResult | None) -> None:
        """This report has gone into the row, or says nothing any more."""
        if known is not None and self._landed.get(workspace_id) is known:
            del self._landed[workspace_id]

    def launch(self, workspace: Workspace, effect: Effect) -> None:
        assert workspace.op_id is not None, "intent is committed before any effect"
        assert workspace.id not in self._flights, "one effect in flight"
        flight = RunningEffect(workspace.op_id, workspace.op_attempt, effect, waits_since=self._monotonic())
        self._flights[workspace.id] = flight
        flight.task = asyncio.create_task(self._fly(workspace, flight), name=f"{workspace.operation} {workspace.id}")

    def cancel(self, workspace_id: str, why: str) -> None:
        flight = self._flights.get(workspace_id)
        if flight is not None and flight.task is not None:
            log.info("cancelled", workspace=workspace_id, effect=type(flight.effect).__name__, why=why)
            flight.task.cancel()

    def fence_off(self, workspace: Workspace) -> None:
        """Taken over in the middle of something: the provider is to refuse whoever held it before, whatever comes next."""
        task = asyncio.create_task(self._hands.fence_off(workspace), name=f"fence {workspace.id}")
        self._fencing.add(task)
        task.add_done_callback(self._fencing.discard)

    async def end_all(self) -> None:
        """Nothing of ours goes on after us."""
        tasks = [*(flight.task for flight in self._flights.values() if flight.task), *self._fencing]
        await stop(*tasks)

    async def _fly(self, workspace: Workspace, flight: RunningEffect) -> None:
        def progress(done: int, total: int | None) -> None:
            flight.progress = Progress(done, total)

        try:
            async with self._slots[LANE_OF[type(flight.effect)]].of(workspace.owner):
                flight.has_slot = True
                flight.waited_s = self._monotonic() - flight.waits_since
                fence = Fence(flight.op_id, workspace.epoch)
                if not self._may_act():
                    return  # Somebody else may be at it by now: this life is over, and the loop is about to find out.
                report = await self._hands.carry_out(workspace, flight.effect, fence, progress)
        except Exception as error:
            log.exception("flight_broke", workspace=workspace.id, effect=type(flight.effect).__name__)
            report = EffectFailed(Reason.ACTION_FAILED, f"{type(error).__name__}: {error}")
        finally:
            del self._flights[workspace.id]
            self._on_end(workspace.id)
        self._landed[workspace.id] = EffectResult(flight.op_id, flight.attempt, report)
