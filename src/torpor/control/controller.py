"""How does the loop go round?

Load the rows, look at the world, decide for each, write what changed in one statement, and only then act. Loading comes first:
an observation begun before a row's last write can then never be written, because the row's version has moved on.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from torpor.control.execute import Hands
from torpor.control.pace import SOON_S, Intervals, Pace
from torpor.domain.effects import Effect
from torpor.domain.errors import Hopeless, Unavailable
from torpor.domain.knobs import Knobs
from torpor.domain.planner import (
    Adopt,
    Again,
    Await,
    Begin,
    Cancel,
    Finish,
    GiveUp,
    Look,
    Recover,
    Rest,
    Restart,
    Run,
    Store,
    Turn,
)
from torpor.domain.reconcile import Decision, reconcile
from torpor.domain.records import Report, Survey, Workspace
from torpor.domain.settle import Progress
from torpor.domain.states import Operation, Stage
from torpor.ports import Fence
from torpor.store.for_controller import ControllerStore

log = structlog.get_logger()

# After these the next step is known already and waits for nothing.
LEADS_ON = (Begin, Adopt, Again, Store, Turn, Finish, Recover, GiveUp)


class Deposed(Hopeless):
    """A later controller has taken over; nothing of ours may be written or begun any more."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Where ids, dice and the passing of time come from."""

    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    dice: Callable[[], float] = random.random
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class Flight:
    """An effect at work. One for each workspace, never two."""

    op_id: str
    attempt: int
    effect: Effect
    task: "asyncio.Task[None] | None" = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    op_id: str
    attempt: int
    report: Report


@dataclass(slots=True)
class Tally:
    """What the loop has done so far, for health, metrics and benchmarks."""

    looks: int = 0
    rows_written: int = 0
    conflicts: int = 0
    last_look_at: float = field(default=float("-inf"))


class Controller:
    def __init__(
        self,
        store: ControllerStore,
        hands: Hands,
        *,
        epoch: int,
        knobs: Knobs,
        intervals: Intervals,
        parallel: int,
        draws: Draws | None = None,
    ) -> None:
        self.tally = Tally()
        self._store = store
        self._hands = hands
        self._epoch = epoch
        self._knobs = knobs
        self._draws = draws or Draws()
        self._pace = Pace(intervals, self._draws.monotonic)
        self._slots = asyncio.Semaphore(parallel)
        self._flights: dict[str, Flight] = {}
        self._landed: dict[str, Landed] = {}
        self._looks_since_start: dict[str, int] = {}
        self._strays: frozenset[str] = frozenset()
        self._out_since: float | None = None

    def hint(self, *workspace_ids: str) -> None:
        """Something about these changed (or about anything): look at once."""
        self._pace.hint(*workspace_ids)

    async def run(self) -> None:
        """Until cancelled or deposed. An error costs one look, not the loop."""
        try:
            while True:
                due = await self._pace.next()
                try:
                    await self.look(due)
                except Unavailable as out:
                    log.warning("look_skipped", why=out.message)
                    self._look_later(due)
                except Deposed:
                    raise
                except Exception:
                    log.exception("look_broke")
                    self._look_later(due)
        finally:
            await self._land_all()

    async def look(self, only: frozenset[str] | None = None) -> None:
        """One pass over everything that needs a look, or over these."""
        loaded = await self._store.load(only=only, also=self._strays)
        # Taken before the look, so that what is seen was there after what they report had been done.
        landed = {one.id: self._landed[one.id] for one in loaded.workspaces if one.id in self._landed}
        survey = await self._observe(only)
        paused_s = self._outage_over() if only is None else 0.0
        decisions: dict[str, tuple[Workspace, Decision]] = {}
        for workspace in loaded.workspaces:
            flight = self._flights.get(workspace.id)
            look = Look(
                now=loaded.now,
                epoch=self._epoch,
                knobs=self._knobs,
                in_flight=flight is not None,
                dice=self._draws.dice(),
                paused_s=paused_s,
            )
            decisions[workspace.id] = (
                workspace,
                reconcile(
                    workspace,
                    survey.of(workspace.id),
                    look,
                    new_op_id=self._draws.new_id(),
                    report=_report_for(workspace, landed.get(workspace.id)),
                    progress=flight.progress if flight else None,
                ),
            )
        if only is None:
            self._strays = frozenset(survey.seen) - decisions.keys()
        refused = await self._persist(decisions)
        for workspace_id, (workspace, decision) in decisions.items():
            if workspace_id in refused:
                self._pace.look_again(workspace_id, 0)
                continue
            if self._landed.get(workspace_id) is landed.get(workspace_id):
                self._landed.pop(workspace_id, None)
            self._act(workspace, decision, loaded.now)
        self.tally.looks += 1
        self.tally.last_look_at = self._draws.monotonic()

    async def _observe(self, only: frozenset[str] | None) -> Survey:
        try:
            return await self._hands.runtime.observe(only)
        except Unavailable:
            # It says nothing about what is in it: what was last seen stands, and deadlines pause.
            if self._out_since is None:
                self._out_since = self._draws.monotonic()
            raise

    def _outage_over(self) -> float:
        if self._out_since is None:
            return 0.0
        paused_s = self._draws.monotonic() - self._out_since
        self._out_since = None
        return paused_s

    async def _persist(self, decisions: Mapping[str, tuple[Workspace, Decision]]) -> frozenset[str]:
        """Write what changed; the ids whose rows were no longer as they had been read."""
        changes = [decision.change for _, decision in decisions.values() if decision.change is not None]
        written = await self._store.persist(changes, epoch=self._epoch)
        refused = frozenset(change.after.id for change in changes) - written
        if refused and not await self._store.holds(self._epoch):
            raise Deposed(f"epoch {self._epoch} was overtaken; this controller writes nothing any more")
        self.tally.rows_written += len(written)
        self.tally.conflicts += len(refused)
        return refused

    def _act(self, workspace: Workspace, decision: Decision, now: datetime) -> None:
        change, step = decision.change, decision.step
        after = change.after if change else workspace
        if change is not None:
            log.info(
                "reconciled",
                workspace=workspace.id,
                name=workspace.name,
                wish=workspace.desired_state.value,
                step=type(step).__name__,
                phase=after.phase.value,
                operation=after.operation.value,
                attempt=after.op_attempt if after.operation is not Operation.NONE else None,
                error=after.error.reason.value if after.error else None,
            )
        match step:
            case Run(effect):
                self._launch(after, effect)
            case Cancel():
                flight = self._flights.get(workspace.id)
                if flight and flight.task:
                    flight.task.cancel()
            case _:
                pass
        self._pace.look_again(workspace.id, self._next_look_s(after, decision, now))

    def _next_look_s(self, after: Workspace, decision: Decision, now: datetime) -> float | None:
        step, active_s = decision.step, self._pace.active_s
        if isinstance(step, LEADS_ON):
            return 0.0
        if after.stage is Stage.SEE or isinstance(step, Await):
            seen = self._looks_since_start.get(after.id, 0)
            self._looks_since_start[after.id] = seen + 1
            return SOON_S[seen] if seen < len(SOON_S) else active_s
        self._looks_since_start.pop(after.id, None)
        if after.operation is not Operation.NONE or not decision.verdict.is_certain:
            return active_s
        if isinstance(step, Rest | Restart) and after.due_at is not None:
            return (after.due_at - now).total_seconds()
        return None

    def _launch(self, workspace: Workspace, effect: Effect) -> None:
        assert workspace.op_id is not None, "intent is committed before any effect"
        if workspace.id in self._flights:
            return
        flight = Flight(workspace.op_id, workspace.op_attempt, effect)
        self._flights[workspace.id] = flight
        flight.task = asyncio.create_task(self._fly(workspace, flight), name=f"{workspace.operation} {workspace.id}")

    async def _fly(self, workspace: Workspace, flight: Flight) -> None:
        def progress(done: int, total: int | None) -> None:
            flight.progress = Progress(done, total)

        try:
            async with self._slots:
                fence = Fence(flight.op_id, self._epoch)
                report = await self._hands.carry_out(workspace, flight.effect, fence, progress)
            self._landed[workspace.id] = Landed(flight.op_id, flight.attempt, report)
        finally:
            del self._flights[workspace.id]
            self._pace.hint(workspace.id)

    async def _land_all(self) -> None:
        """Nothing of ours goes on after us."""
        tasks = [flight.task for flight in self._flights.values() if flight.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look_later(self, due: frozenset[str] | None) -> None:
        if due is None:
            self._pace.retry_everything()
        else:
            for workspace_id in due:
                self._pace.look_again(workspace_id, self._pace.active_s)


def _report_for(workspace: Workspace, landed: Landed | None) -> Report | None:
    """What an effect of this very attempt reported; that of an earlier one says nothing any more."""
    if landed is None or (landed.op_id, landed.attempt) != (workspace.op_id, workspace.op_attempt):
        return None
    return landed.report
