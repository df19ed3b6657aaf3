"""Reconcile the workspaces of this controller's shards, pass after pass.

A pass loads the rows, observes the provider, decides for each workspace, writes the changes in one statement, and only then
acts. Rows are loaded before the observation: so an observation that is older than the last write of a row is never written,
because the version of the row has changed.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

import structlog

from torpor import metrics
from torpor.control.at_rest import RestingWorkspaces
from torpor.control.deadline_credit import DeadlineCredit
from torpor.control.effect_executor import EffectExecutor
from torpor.control.latch_guard import LatchGuard
from torpor.control.reconcile_log import log_change
from torpor.control.running_effects import EffectResult, RunningEffects
from torpor.control.runtime_sight import OBSERVING_S, ObservationHistory, RuntimeSight
from torpor.control.schedule import SOON_S, Schedule
from torpor.cooperative import cooperative_iteration
from torpor.domain.before_sleep import sleeps_by_itself
from torpor.domain.disk import Disk
from torpor.domain.errors import Deposed, TorporError, Unavailable
from torpor.domain.judge import is_missed
from torpor.domain.names import is_id
from torpor.domain.outage import runtime_is_out
from torpor.domain.planner import (
    Adopt,
    Again,
    Await,
    Begin,
    Cancel,
    Circumstances,
    Finish,
    GiveUp,
    Proceed,
    Recover,
    Rest,
    Rewind,
    Run,
    Step,
    Store,
    Turn,
    WaitForSpace,
)
from torpor.domain.reconcile import Decision, reconcile
from torpor.domain.records import Change, Observation, Report, StaleEpoch, Survey, Workspace
from torpor.domain.states import Operation, Stage
from torpor.domain.tuning import Intervals, Tuning
from torpor.loops import TURN_S, Loop, report_progress
from torpor.store.controller_store import ControllerStore, ShardOwnership, ShardSnapshot

log = structlog.get_logger()

# After these steps the next pass follows at once.
LEADS_ON = (Begin, Adopt, Again, Proceed, Store, Turn, Finish, Recover, Rewind, GiveUp)
# A gap between observations that is longer than this many idle intervals does not count against deadlines.
LOST_AFTER_INTERVALS = 3
# After this many failed full passes in a row, while the provider answers, the membership ends and a new one begins.
MAX_FAILED_PASSES = 5
FIRST_REFUSAL_S = 0.02
REFUSALS_OF_A_RESULT = 5
"""In a row: then the effect runs again. A row that another process changes is refused once or twice."""
DISK_S = 5.0
TELLING_S = 2.0
# How long a step of a pass may take: the observation, or the statements before and after it.
PASS_S = OBSERVING_S + TURN_S


class PassesFailed(Unavailable):
    """Too many full passes failed in a row: this membership ends, and a new one begins."""


@dataclass(frozen=True, slots=True)
class SystemSources:
    """The sources of ids, random numbers and time."""

    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    dice: Callable[[], float] = random.random
    monotonic: Callable[[], float] = time.monotonic


Decisions: TypeAlias = dict[str, tuple[Workspace, Decision]]


@dataclass(slots=True)
class ControllerStats:
    """Counts of the loop, for health, metrics and benchmarks."""

    looks: int = 0
    rows_written: int = 0
    conflicts: int = 0
    last_look_at: float = field(default=float("-inf"))


class MembershipView(Protocol):
    """What the loop needs from the membership (`control/membership.py`)."""

    @property
    def life(self) -> int: ...

    @property
    def shards(self) -> frozenset[int]: ...

    def lives(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks of the loop."""

    tell: Callable[[Change, Step], None] = log_change
    """Called for every change that was written."""
    before_rest: Callable[[Sequence[str]], Awaitable[None]] | None = None
    """Called with the workspaces whose stop is about to be written; if it fails, they are reconciled again later."""


class Controller:
    def __init__(
        self,
        store: ControllerStore,
        executor: EffectExecutor,
        *,
        life: MembershipView,
        tuning: Tuning,
        intervals: Intervals,
        parallel: int,
        sources: SystemSources | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self.tally = ControllerStats()
        self._store = store
        self._runtime = executor.runtime
        self._before_sleep_of = executor.before_sleep_of
        self._life = life
        self._tuning = tuning
        self._listeners = listeners or Listeners()
        self._sources = sources or SystemSources()
        self._idle_s = intervals.idle_s
        self._schedule = Schedule(intervals, self._sources.monotonic)
        self._effects = RunningEffects(
            executor, may_act=life.lives, parallel=parallel, on_end=self._schedule.hint, monotonic=self._sources.monotonic
        )
        self._deadline_credit = DeadlineCredit(LOST_AFTER_INTERVALS * intervals.idle_s)
        self._passes_since_start: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
        self._resting = RestingWorkspaces()
        self._latch_guard = LatchGuard(store)
        self._failed_passes = 0
        self._observations = ObservationHistory(idle_s=intervals.idle_s, monotonic=self._sources.monotonic)

    @property
    def sight(self) -> RuntimeSight:
        return self._observations.sight

    async def runtime_answers(self) -> bool:
        """Whether a full observation succeeds. Smaller requests may succeed where lists fail."""
        try:
            async with asyncio.timeout(OBSERVING_S):
                await self._runtime.observe()
        except (TimeoutError, TorporError):
            return False
        return True

    def hint(self, *workspace_ids: str) -> None:
        """These workspaces changed (without arguments: any): reconcile at once."""
        # Ignore text that is not an id: other programs can write to the bus.
        known = [one for one in workspace_ids if is_id(one)]
        if known or not workspace_ids:
            self._schedule.hint(*known)

    async def run(self) -> None:
        """Run until canceled, deposed, or without success for too long. An error ends one pass, not the loop."""
        loop = Loop(
            "controller", self._turn, interval_s=self._idle_s, turn_s=PASS_S, retry_s=0.0, ends_on=(Deposed, PassesFailed)
        )
        try:
            await loop.run()
        finally:
            await self._effects.end_all()

    async def _turn(self) -> float:
        """Wait until a pass is due, and do it. The schedule sets the pace, so the next turn follows at once, also after an
        error."""
        due = await self._schedule.next()
        try:
            with metrics.reconcile_seconds.time():
                await self.look(due)
        except Deposed:
            raise
        except BaseException as error:
            self._reconcile_later(due)
            if self._failed_passes >= MAX_FAILED_PASSES and isinstance(error, Exception):
                raise PassesFailed(f"{self._failed_passes} full reconcile passes failed in a row") from error
            raise
        return 0.0

    async def look(self, only: frozenset[str] | None = None) -> None:
        """Do one reconcile pass over all workspaces that need it, or over these."""
        self._failed_passes += only is None
        hold = ShardOwnership(self._life.life, self._life.shards)
        loaded = await self._load(only, hold)
        if only is not None and not loaded.workspaces and only <= loaded.elsewhere:
            return
        # Taken before the observation, so that the observation is newer than the effects that they report.
        results = self._effects.results([one.id for one in loaded.workspaces])
        report_progress()
        try:
            survey = await self._observe(only)
        except Unavailable as out:
            await self._tell_outage(loaded, out)
            raise
        report_progress()
        self._deadline_credit.observed(loaded.now)
        decided = await self._decide_all(loaded, survey, results, await self._check_disk())
        if await self._is_held_back(loaded, decided, survey, only):
            self._deadline_credit.discard_last()
            return
        report_progress()
        refused = await self._persist(decided)
        for workspace_id, (workspace, decision) in decided.items():
            if workspace_id in refused:
                self._retry_after_refusal(workspace_id, results.get(workspace_id))
                continue
            self._refusals.pop(workspace_id, None)
            if decision.verdict.is_certain:
                self._effects.was_used(workspace_id, results.get(workspace_id))
            self._act(workspace, survey.of(workspace_id), decision, loaded.now)
        self._attend(loaded, decided, survey, only, hold)
        self.tally.looks += 1
        if only is None:
            self._failed_passes = 0
            self.tally.last_look_at = self._sources.monotonic()

    async def _load(self, only: frozenset[str] | None, hold: ShardOwnership) -> ShardSnapshot:
        if only is not None:
            return await self._store.load_these(hold, only)
        whole = self._resting.to_read(hold.shards) if not self._latch_guard.is_latched else frozenset[int]()
        return await self._store.load_due(hold, whole=whole, also=self._resting.suspects | self._schedule.along)

    async def _decide_all(
        self, loaded: ShardSnapshot, survey: Survey, results: Mapping[str, EffectResult], disk: Disk | None
    ) -> Decisions:
        decided: Decisions = {}
        async for workspace in cooperative_iteration(loaded.workspaces):
            try:
                decision = self._decide(workspace, survey.of(workspace.id), results.get(workspace.id), loaded.now, disk)
            except Exception:
                # An error of one workspace does not stop the others.
                log.exception("decision_broke", workspace=workspace.id)
                self._schedule.look_again(workspace.id, self._schedule.active_s)
            else:
                decided[workspace.id] = (workspace, decision)
        return decided

    def _attend(
        self, loaded: ShardSnapshot, decided: Decisions, survey: Survey, only: frozenset[str] | None, hold: ShardOwnership
    ) -> None:
        if only is not None:
            # Resources without a row of any controller: remembered, so that they are noticed once.
            for unknown in only - {one.id for one in loaded.workspaces} - loaded.elsewhere:
                self._resting.is_at_rest(unknown, survey.of(unknown))
            return
        self._schedule.took_along()
        # Their rows may be at rest, so a full pass would not read them.
        self._resting.suspects = frozenset(one for one, (_, decision) in decided.items() if not decision.verdict.is_certain)
        if self._resting.looked(hold.shards, loaded.whole):
            self._schedule.hint()  # one pass cannot read all rows
        stirred = self._resting.stirred(survey, {one.id for one in loaded.workspaces})
        if stirred:
            self._schedule.hint(*stirred)

    def _decide(
        self, workspace: Workspace, seen: Observation, result: EffectResult | None, now: datetime, disk: Disk | None
    ) -> Decision:
        effect = self._effects.of(workspace.id)
        look = Circumstances(
            now=now,
            epoch=self._epoch_for(workspace, result),
            tuning=self._tuning,
            # An effect that ended during this pass counts as running: the next pass reads its report.
            in_flight=effect is not None or self._effects.has_ended_since(workspace.id, result),
            dice=self._sources.dice(),
            before_sleep=self._before_sleep_of(workspace) if sleeps_by_itself(workspace) else (),
            disk=disk,
        )
        return reconcile(
            workspace,
            seen,
            look,
            new_op_id=self._sources.new_id(),
            report=_report_for(workspace, result),
            progress=effect.progress if effect else None,
            paused_s=self._deadline_credit.paused_s(workspace, effect, now, self._sources.monotonic()),
        )

    def _epoch_for(self, workspace: Workspace, result: EffectResult | None) -> int:
        """A controller that takes a row raises its epoch.

        It also raises the epoch if the provider knows a later one: then the database was restored from a backup.
        """
        epoch = workspace.epoch if workspace.held_by == self._life.life else workspace.epoch + 1
        report = _report_for(workspace, result)
        return max(epoch, report.seen + 1) if isinstance(report, StaleEpoch) else epoch

    async def _is_held_back(
        self, loaded: ShardSnapshot, decided: Decisions, survey: Survey, only: frozenset[str] | None
    ) -> bool:
        """Whether so many homes are missing at once that nothing may be changed.

        Only a full pass can decide this. A smaller pass with a missing home requests a full pass and skips that workspace.
        """
        missed = [one for one, (row, decision) in decided.items() if not _is_lost(row) and is_missed(decision.verdict)]
        if only is not None:
            for workspace_id in missed:
                del decided[workspace_id]
            if missed:
                self._resting.suspects |= frozenset(missed)
                self._schedule.hint()
            return self._latch_guard.holds
        await self._latch_guard.look(survey, is_anything_missed=bool(missed), latch_is_released=loaded.latch_is_released)
        if self._latch_guard.holds:
            self._failed_passes = 0
            self._schedule.retry_everything()
        return self._latch_guard.holds

    async def _observe(self, only: frozenset[str] | None) -> Survey:
        self._observations.begin()
        try:
            with metrics.observe_seconds.labels(self._runtime.name).time():
                async with asyncio.timeout(OBSERVING_S):
                    survey = await self._runtime.observe(only)
        except (TimeoutError, Unavailable) as error:
            # The last observation stays valid. This is not a failure of the loop.
            self._failed_passes = 0
            self._observations.failed()
            self._schedule.retry_everything()
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"the provider {self._runtime.name} did not respond for {OBSERVING_S:g} s") from None
        self._observations.succeeded(is_full=only is None)
        return survey

    async def _tell_outage(self, loaded: ShardSnapshot, out: Unavailable) -> None:
        """Write the outage once for each workspace that waits. Operations of another controller are skipped until they are
        adopted: an adoption fences off the other controller, which needs a runtime that answers."""
        ours = [one for one in loaded.workspaces if one.operation is Operation.NONE or one.held_by == self._life.life]
        changes = [runtime_is_out(one, out.message, now=loaded.now, epoch=self._epoch_for(one, None)) for one in ours]
        await self._write([change for change in changes if change is not None])

    async def _check_disk(self) -> Disk | None:
        """None also if the disk cannot be checked: then no operation waits for space."""
        if not self._tuning.disk_reserve_bytes:
            return None
        try:
            async with asyncio.timeout(DISK_S):
                return await self._runtime.disk()
        except (TimeoutError, Unavailable) as error:
            log.warning("disk_not_known", why=str(error) or "no answer in time")
            return None

    async def _persist(self, decided: Decisions) -> frozenset[str]:
        """Write the changes; return the ids of rows that changed since they were read, or that were refused."""
        await self._tell_before_rest(decided)
        return await self._write([decision.change for _, decision in decided.values() if decision.change is not None])

    async def _write(self, changes: Sequence[Change]) -> frozenset[str]:
        written = await self._store.persist(changes, life=self._life.life)
        refused = frozenset(change.after.id for change in changes) - written
        if refused and not await self._store.lives(self._life.life):
            raise Deposed(f"life {self._life.life} has ended; this controller stops writing")
        self.tally.rows_written += len(written)
        self.tally.conflicts += len(refused)
        metrics.cas_conflicts_total.inc(len(refused))
        return refused

    async def _tell_before_rest(self, decided: Decisions) -> None:
        """Workspaces whose listener fails or is too slow are left to a later pass; the others do not wait."""
        stopped = [one for one, (row, decision) in decided.items() if _is_stopped_by(row, decision)]
        if not stopped or self._listeners.before_rest is None:
            return
        try:
            async with asyncio.timeout(TELLING_S):
                await self._listeners.before_rest(stopped)
        except (TorporError, TimeoutError) as error:
            log.warning("not_told", why=str(error) or "no answer in time", workspaces=len(stopped))
            for workspace_id in stopped:
                del decided[workspace_id]
                self._schedule.look_again(workspace_id, self._schedule.active_s)

    def _retry_after_refusal(self, workspace_id: str, result: EffectResult | None) -> None:
        """Another process usually wrote just before, so the next pass comes soon; repeated refusals increase the delay."""
        count = self._refusals[workspace_id] = self._refusals.get(workspace_id, 0) + 1
        if count % REFUSALS_OF_A_RESULT == 0:
            # The database may refuse the result: an archive with a pack that was found damaged meanwhile. Repeat the effect.
            self._effects.was_used(workspace_id, result)
        if count % 10 == 0:
            log.warning("refused_again", workspace=workspace_id, times=count)
        self._schedule.look_again(workspace_id, min(self._schedule.active_s, FIRST_REFUSAL_S * 2.0 ** min(count, 16)))

    def _act(self, workspace: Workspace, seen: Observation, decision: Decision, now: datetime) -> None:
        change, step = decision.change, decision.step
        after = change.after if change else workspace
        if step == Rest() and change is None and workspace.operation is Operation.NONE:
            self._resting.is_at_rest(workspace.id, seen)
        else:
            self._resting.is_moving(workspace.id)
        if change is not None:
            self._listeners.tell(change, step)
            if workspace.operation is not Operation.NONE and after.epoch > workspace.epoch:
                self._effects.fence_off(after)
            if after.deadline_at != workspace.deadline_at:
                self._deadline_credit.credit(workspace.id, self._effects.of(workspace.id), self._sources.monotonic())
        match step:
            case Run(effect) if self._effects.of(workspace.id) is None:
                self._effects.launch(after, effect)
            case Cancel(why):
                self._effects.cancel(workspace.id, why)
            case _:
                pass
        self._schedule.look_again(workspace.id, self._next_pass_s(after, decision, now))

    def _next_pass_s(self, after: Workspace, decision: Decision, now: datetime) -> float | None:
        step, active_s = decision.step, self._schedule.active_s
        if isinstance(step, LEADS_ON):
            return 0.0
        if after.stage is Stage.SEE or isinstance(step, Await):
            seen = self._passes_since_start.get(after.id, 0)
            self._passes_since_start[after.id] = seen + 1
            return SOON_S[seen] if seen < len(SOON_S) else active_s
        self._passes_since_start.pop(after.id, None)
        is_active = after.operation is not Operation.NONE or not decision.verdict.is_certain or isinstance(step, WaitForSpace)
        waits = [active_s] if is_active else []
        if isinstance(step, Rest) and step.until is not None and step.until > now:
            waits.append((step.until - now).total_seconds())
        elif after.due_at is not None and after.due_at > now:
            waits.append((after.due_at - now).total_seconds())
        return min(waits, default=None)

    def _reconcile_later(self, due: frozenset[str] | None) -> None:
        if due is None:
            self._schedule.retry_everything()
        else:
            for workspace_id in due:
                self._schedule.look_again(workspace_id, self._schedule.active_s)


def _is_lost(row: Workspace) -> bool:
    """Whether it already has an error that a user must resolve."""
    return row.error is not None and row.error.is_terminal


def _is_stopped_by(row: Workspace, decision: Decision) -> bool:
    return row.operation is Operation.STOPPING and isinstance(decision.step, Finish)


def _report_for(workspace: Workspace, result: EffectResult | None) -> Report | None:
    """The report of the effect of this attempt; the report of an earlier attempt is ignored."""
    if result is None or workspace.stage not in (Stage.BEFORE_SLEEP, Stage.CALL):
        return None
    return result.report if (result.op_id, result.attempt) == (workspace.op_id, workspace.op_attempt) else None
