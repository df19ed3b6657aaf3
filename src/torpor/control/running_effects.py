"""Run effects in tasks, limit how many run at once, and keep their results.

At most one effect runs for each workspace, and only with a slot (`torpor.control.slots`). The time that an effect waits for its
slot does not count against its deadline.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from torpor.control.effect_executor import EffectExecutor
from torpor.control.slots import POOL_OF, SlotPool, Slots, capacity
from torpor.domain.effects import Effect
from torpor.domain.errors import Reason
from torpor.domain.records import EffectFailed, FileCount, Report, Workspace
from torpor.domain.settle import Progress
from torpor.loops import stop
from torpor.ports import Fence

log = structlog.get_logger()


@dataclass(slots=True)
class RunningEffect:
    op_id: str
    attempt: int
    effect: Effect
    waits_since: float
    has_slot: bool = False
    waited_s: float = 0.0
    """The wait for its slot that is not yet added to its deadline."""
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
        executor: EffectExecutor,
        *,
        may_act: Callable[[], bool],
        parallel: int,
        on_end: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._may_act = may_act
        self._on_end = on_end
        self._monotonic = monotonic
        self._slots = {pool: Slots(capacity(pool, parallel)) for pool in SlotPool}
        self._running: dict[str, RunningEffect] = {}
        self._results: dict[str, EffectResult] = {}
        self._fencing: set[asyncio.Task[None]] = set()

    def of(self, workspace_id: str) -> RunningEffect | None:
        return self._running.get(workspace_id)

    def results(self, workspace_ids: Collection[str]) -> Mapping[str, EffectResult]:
        """Return the results of those effects that have ended."""
        return {one: self._results[one] for one in workspace_ids if one in self._results}

    def has_ended_since(self, workspace_id: str, known: EffectResult | None) -> bool:
        return self._results.get(workspace_id) is not known

    def was_used(self, workspace_id: str, known: EffectResult | None) -> None:
        """This result is in the row, or no longer matters."""
        if known is not None and self._results.get(workspace_id) is known:
            del self._results[workspace_id]

    def launch(self, workspace: Workspace, effect: Effect) -> None:
        assert workspace.op_id is not None, "intent is committed before any effect"
        assert workspace.id not in self._running, "one effect at a time for each workspace"
        running = RunningEffect(workspace.op_id, workspace.op_attempt, effect, waits_since=self._monotonic())
        self._running[workspace.id] = running
        running.task = asyncio.create_task(self._run(workspace, running), name=f"{workspace.operation} {workspace.id}")

    def cancel(self, workspace_id: str, why: str) -> None:
        running = self._running.get(workspace_id)
        if running is not None and running.task is not None:
            log.info("cancelled", workspace=workspace_id, effect=type(running.effect).__name__, why=why)
            running.task.cancel()

    def fence_off(self, workspace: Workspace) -> None:
        """Taken over during an operation: the provider must refuse the previous controller from now on."""
        task = asyncio.create_task(self._executor.fence_off(workspace), name=f"fence {workspace.id}")
        self._fencing.add(task)
        task.add_done_callback(self._fencing.discard)

    async def end_all(self) -> None:
        """Stop all effects of this process."""
        tasks = [*(running.task for running in self._running.values() if running.task), *self._fencing]
        await stop(*tasks)

    async def _run(self, workspace: Workspace, running: RunningEffect) -> None:
        def progress(done: int, total: int | None, files: FileCount | None = None) -> None:
            running.progress = Progress(done, total, files)

        try:
            async with self._slots[POOL_OF[type(running.effect)]].of(workspace.owner):
                running.has_slot = True
                running.waited_s = self._monotonic() - running.waits_since
                fence = Fence(running.op_id, workspace.epoch)
                if not self._may_act():
                    return  # This membership has expired: another controller may run the effect.
                report = await self._executor.carry_out(workspace, running.effect, fence, progress)
        except Exception as error:
            log.exception("flight_broke", workspace=workspace.id, effect=type(running.effect).__name__)
            report = EffectFailed(Reason.ACTION_FAILED, f"{type(error).__name__}: {error}")
        finally:
            del self._running[workspace.id]
            self._on_end(workspace.id)
        self._results[workspace.id] = EffectResult(running.op_id, running.attempt, report)
