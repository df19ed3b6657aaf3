"""How does the loop go round?

Load the rows, look at the world, decide for each, write what changed in one statement, and only then act. Loading comes first:
an observation begun before a row's last write can then never be written, because the row's version has moved on.
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
from torpor.control.schedule import SOON_S, Intervals, Schedule
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
    Run,
    Step,
    Store,
    Turn,
    WaitForSpace,
)
from torpor.domain.reconcile import Decision, reconcile
from torpor.domain.records import Change, Observation, Report, StaleEpoch, Survey, Workspace
from torpor.domain.states import Operation, Stage
from torpor.domain.tuning import Tuning
from torpor.loops import TURN_S, Loop, report_progress
from torpor.store.controller_store import ControllerStore, ShardOwnership, ShardSnapshot

log = structlog.get_logger()

# After these the next step is known already and waits for nothing.
LEADS_ON = (Begin, Adopt, Again, Proceed, Store, Turn, Finish, Recover, GiveUp)
# A gap between looks that is longer than so many idle intervals was no pace of ours.
LOST_AFTER_INTERVALS = 3
# So many failed looks at everything in a row, with the provider answering: let somebody else try, or begin anew.
MAX_FAILED_LOOKS = 5
FIRST_REFUSAL_S = 0.02
# A provider that hangs is as good as out.
OBSERVING_S = 60.0
DISK_S = 5.0
TELLING_S = 2.0
# How long a step of a look may take: a provider that hangs, or the statements before and after it.
LOOK_S = OBSERVING_S + TURN_S


class PassesFailed(Unavailable):
    """Too many looks at everything failed in a row: this life ends, and another one begins."""


@dataclass(frozen=True, slots=True)
class SystemSources:
    """Where ids, dice and the passing of time come from."""

    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    dice: Callable[[], float] = random.random
    monotonic: Callable[[], float] = time.monotonic


Decided: TypeAlias = dict[str, tuple[Workspace, Decision]]


@dataclass(slots=True)
class ControllerStats:
    """What the loop has done so far, for health, metrics and benchmarks."""

    looks: int = 0
    rows_written: int = 0
    conflicts: int = 0
    last_look_at: float = field(default=float("-inf"))


class MembershipView(Protocol):
    """What the loop must know of the life it leads (`control.membership`)."""

    @property
    def life(self) -> int: ...

    @property
    def shards(self) -> frozenset[int]: ...

    def lives(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who else is told what the loop does."""

    tell: Callable[[Change, Step], None] = log_change
    """Of every change that was written."""
    before_rest: Callable[[Sequence[str]], Awaitable[None]] | None = None
    """Of the workspaces whose program is about to be seen stopped; when this fails they are looked at again later."""


class Controller:
    def __init__(
        self,
        store: ControllerStore,
        hands: EffectExecutor,
        *,
        life: MembershipView,
        knobs: Tuning,
        intervals: Intervals,
        parallel: int,
        draws: SystemSources | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self.tally = ControllerStats()
        self._store = store
        self._runtime = hands.runtime
        self._before_sleep_of = hands.before_sleep_of
        self._life = life
        self._knobs = knobs
        self._listeners = listeners or Listeners()
        self._draws = draws or SystemSources()
        self._idle_s = intervals.idle_s
        self._pace = Schedule(intervals, self._draws.monotonic)
        self._flights = RunningEffects(
            hands, may_act=life.lives, parallel=parallel, on_end=self._pace.hint, monotonic=self._draws.monotonic
        )
        self._lost_time = DeadlineCredit(LOST_AFTER_INTERVALS * intervals.idle_s)
        self._looks_since_start: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
        self._attention = RestingWorkspaces()
        self._holding_back = LatchGuard(store)
        self._failed_looks = 0

    def hint(self, *workspace_ids: str) -> None:
        """Something about these changed (or about anything): look at once."""
        # What is no id came from somebody else on the bus.
        known = [one for one in workspace_ids if is_id(one)]
        if known or not workspace_ids:
            self._pace.hint(*known)

    async def run(self) -> None:
        """Until cancelled, deposed, or without success for too long. An error costs one look, not the loop."""
        loop = Loop(
            "controller", self._turn, interval_s=self._idle_s, turn_s=LOOK_S, retry_s=0.0, ends_on=(Deposed, PassesFailed)
        )
        try:
            await loop.run()
        finally:
            await self._flights.end_all()

    async def _turn(self) -> float:
        """Wait until a look is due, and look. The pace is its own, so the next turn follows at once, also after an error."""
        due = await self._pace.next()
        try:
            with metrics.reconcile_seconds.time():
                await self.look(due)
        except Deposed:
            raise
        except BaseException as error:
            self._look_later(due)
            if self._failed_looks >= MAX_FAILED_LOOKS and isinstance(error, Exception):
                raise PassesFailed(f"{self._failed_looks} looks at everything failed in a row") from error
            raise
        return 0.0

    async def look(self, only: frozenset[str] | None = None) -> None:
        """One pass over everything that needs a look, or over these."""
        self._failed_looks += only is None
        hold = ShardOwnership(self._life.life, self._life.shards)
        loaded = await self._load(only, hold)
        if only is not None and not loaded.workspaces and only <= loaded.elsewhere:
            return
        # Taken before the look, so that what is seen was there after what they report had been done.
        landed = self._flights.landed([one.id for one in loaded.workspaces])
        report_progress()
        try:
            survey = await self._observe(only)
        except Unavailable as out:
            await self._tell_outage(loaded, out)
            raise
        report_progress()
        self._lost_time.looked(loaded.now)
        decided = await self._decide_all(loaded, survey, landed, await self._look_at_disk())
        if await self._is_held_back(loaded, decided, survey, only):
            self._lost_time.held_back()
            return
        report_progress()
        refused = await self._persist(decided)
        for workspace_id, (workspace, decision) in decided.items():
            if workspace_id in refused:
                self._look_after_refusal(workspace_id)
                continue
            self._refusals.pop(workspace_id, None)
            if decision.verdict.is_certain:
                self._flights.was_used(workspace_id, landed.get(workspace_id))
            self._act(workspace, survey.of(workspace_id), decision, loaded.now)
        self._attend(loaded, decided, survey, only, hold)
        self.tally.looks += 1
        if only is None:
            self._failed_looks = 0
            self.tally.last_look_at = self._draws.monotonic()

    async def _load(self, only: frozenset[str] | None, hold: ShardOwnership) -> ShardSnapshot:
        if only is not None:
            return await self._store.load_these(hold, only)
        whole = self._attention.to_read(hold.shards) if not self._holding_back.is_latched else frozenset[int]()
        return await self._store.load_due(hold, whole=whole, also=self._attention.suspects | self._pace.along)

    async def _decide_all(
        self, loaded: ShardSnapshot, survey: Survey, landed: Mapping[str, EffectResult], disk: Disk | None
    ) -> Decided:
        decided: Decided = {}
        async for workspace in cooperative_iteration(loaded.workspaces):
            try:
                decision = self._decide(workspace, survey.of(workspace.id), landed.get(workspace.id), loaded.now, disk)
            except Exception:
                # One bad workspace never stops another.
                log.exception("decision_broke", workspace=workspace.id)
                self._pace.look_again(workspace.id, self._pace.active_s)
            else:
                decided[workspace.id] = (workspace, decision)
        return decided

    def _attend(
        self, loaded: ShardSnapshot, decided: Decided, survey: Survey, only: frozenset[str] | None, hold: ShardOwnership
    ) -> None:
        if only is not None:
            # Seen, but no workspace of ours, nor anybody's: that is noticed once.
            for unknown in only - {one.id for one in loaded.workspaces} - loaded.elsewhere:
                self._attention.is_at_rest(unknown, survey.of(unknown))
            return
        self._pace.took_along()
        # Their rows may say that they are at rest.
        self._attention.suspects = frozenset(one for one, (_, decision) in decided.items() if not decision.verdict.is_certain)
        if self._attention.looked(hold.shards, loaded.whole):
            self._pace.hint()  # there is more to be read than one look can bear
        stirred = self._attention.stirred(survey, {one.id for one in loaded.workspaces})
        if stirred:
            self._pace.hint(*stirred)

    def _decide(
        self, workspace: Workspace, seen: Observation, landed: EffectResult | None, now: datetime, disk: Disk | None
    ) -> Decision:
        flight = self._flights.of(workspace.id)
        look = Circumstances(
            now=now,
            epoch=self._epoch_for(workspace, landed),
            knobs=self._knobs,
            # One that has landed since is as good as in flight: its report comes with the next look.
            in_flight=flight is not None or self._flights.has_landed_since(workspace.id, landed),
            dice=self._draws.dice(),
            before_sleep=self._before_sleep_of(workspace) if sleeps_by_itself(workspace) else (),
            paused_s=self._owed_s(workspace, now),
            disk=disk,
        )
        return reconcile(
            workspace,
            seen,
            look,
            new_op_id=self._draws.new_id(),
            report=_report_for(workspace, landed),
            progress=flight.progress if flight else None,
        )

    def _epoch_for(self, workspace: Workspace, landed: EffectResult | None) -> int:
        """Whoever takes the row takes it under a higher epoch.

        So does whoever holds it and finds that the provider has seen a later one: the database was restored from a backup.
        """
        epoch = workspace.epoch if workspace.held_by == self._life.life else workspace.epoch + 1
        report = _report_for(workspace, landed)
        return max(epoch, report.seen + 1) if isinstance(report, StaleEpoch) else epoch

    async def _is_held_back(self, loaded: ShardSnapshot, decided: Decided, survey: Survey, only: frozenset[str] | None) -> bool:
        """Whether so much has disappeared at once that nothing may be touched.

        Only a look at everything can tell; a look at a few that misses one asks for it, and leaves that one alone.
        """
        missed = [one for one, (row, decision) in decided.items() if not _is_lost(row) and is_missed(decision.verdict)]
        if only is not None:
            for workspace_id in missed:
                del decided[workspace_id]
            if missed:
                self._attention.suspects |= frozenset(missed)
                self._pace.hint()
            return self._holding_back.holds
        await self._holding_back.look(survey, is_anything_missed=bool(missed), latch_is_released=loaded.latch_is_released)
        if self._holding_back.holds:
            self._failed_looks = 0
            self._pace.retry_everything()
        return self._holding_back.holds

    def _owed_s(self, workspace: Workspace, now: datetime) -> float:
        """Time that must not count, once it matters: a deadline that has not passed needs no credit."""
        if workspace.operation is Operation.NONE:
            self._lost_time.forget(workspace.id)
            return 0.0
        owed_s = self._lost_time.owed_s(workspace.id, self._flights.of(workspace.id), self._draws.monotonic())
        is_late = workspace.deadline_at is not None and now >= workspace.deadline_at
        return max(0.0, owed_s) if is_late else 0.0

    async def _observe(self, only: frozenset[str] | None) -> Survey:
        try:
            with metrics.observe_seconds.labels(self._runtime.name).time():
                async with asyncio.timeout(OBSERVING_S):
                    return await self._runtime.observe(only)
        except TimeoutError:
            self._failed_looks = 0
            raise Unavailable(f"the provider {self._runtime.name} did not answer for {OBSERVING_S:g} s") from None
        except Unavailable:
            # It says nothing about what is in it: what was last seen stands. That is no failure of this loop.
            self._failed_looks = 0
            raise

    async def _tell_outage(self, loaded: ShardSnapshot, out: Unavailable) -> None:
        """Written once for each workspace that waits. What another life has under way is left until it is adopted: taking it
        fences the other one off, which needs a runtime that answers."""
        ours = [one for one in loaded.workspaces if one.operation is Operation.NONE or one.held_by == self._life.life]
        changes = [runtime_is_out(one, out.message, now=loaded.now, epoch=self._epoch_for(one, None)) for one in ours]
        await self._write([change for change in changes if change is not None])

    async def _look_at_disk(self) -> Disk | None:
        """None also where it cannot be asked: then nothing waits for space."""
        if not self._knobs.disk_reserve_bytes:
            return None
        try:
            async with asyncio.timeout(DISK_S):
                return await self._runtime.disk()
        except (TimeoutError, Unavailable) as error:
            log.warning("disk_not_known", why=str(error) or "no answer in time")
            return None

    async def _persist(self, decided: Decided) -> frozenset[str]:
        """Write what changed; the ids whose rows were no longer as they had been read, or would not be written."""
        await self._tell_before_rest(decided)
        return await self._write([decision.change for _, decision in decided.values() if decision.change is not None])

    async def _write(self, changes: Sequence[Change]) -> frozenset[str]:
        written = await self._store.persist(changes, life=self._life.life)
        refused = frozenset(change.after.id for change in changes) - written
        if refused and not await self._store.lives(self._life.life):
            raise Deposed(f"life {self._life.life} is over; this controller writes nothing any more")
        self.tally.rows_written += len(written)
        self.tally.conflicts += len(refused)
        metrics.cas_conflicts_total.inc(len(refused))
        return refused

    async def _tell_before_rest(self, decided: Decided) -> None:
        """Those whose listener cannot be told in time come again with a later look; nobody else waits for that."""
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
                self._pace.look_again(workspace_id, self._pace.active_s)

    def _look_after_refusal(self, workspace_id: str) -> None:
        """Usually somebody else wrote just now, so soon; but a row that is refused again and again must not spin."""
        count = self._refusals[workspace_id] = self._refusals.get(workspace_id, 0) + 1
        if count % 10 == 0:
            log.warning("refused_again", workspace=workspace_id, times=count)
        self._pace.look_again(workspace_id, min(self._pace.active_s, FIRST_REFUSAL_S * 2.0 ** min(count, 16)))

    def _act(self, workspace: Workspace, seen: Observation, decision: Decision, now: datetime) -> None:
        change, step = decision.change, decision.step
        after = change.after if change else workspace
        if step == Rest() and change is None and workspace.operation is Operation.NONE:
            self._attention.is_at_rest(workspace.id, seen)
        else:
            self._attention.is_moving(workspace.id)
        if change is not None:
            self._listeners.tell(change, step)
            if workspace.operation is not Operation.NONE and after.epoch > workspace.epoch:
                self._flights.fence_off(after)
            if after.deadline_at != workspace.deadline_at:
                self._lost_time.credit(workspace.id, self._flights.of(workspace.id), self._draws.monotonic())
        match step:
            case Run(effect) if self._flights.of(workspace.id) is None:
                self._flights.launch(after, effect)
            case Cancel(why):
                self._flights.cancel(workspace.id, why)
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
        is_active = after.operation is not Operation.NONE or not decision.verdict.is_certain or isinstance(step, WaitForSpace)
        waits = [active_s] if is_active else []
        if isinstance(step, Rest) and step.until is not None and step.until > now:
            waits.append((step.until - now).total_seconds())
        elif after.due_at is not None and after.due_at > now:
            waits.append((after.due_at - now).total_seconds())
        return min(waits, default=None)

    def _look_later(self, due: frozenset[str] | None) -> None:
        if due is None:
            self._pace.retry_everything()
        else:
            for workspace_id in due:
                self._pace.look_again(workspace_id, self._pace.active_s)


def _is_lost(row: Workspace) -> bool:
    """An error stands already that says so, or another that needs a person."""
    return row.error is not None and row.error.is_terminal


def _is_stopped_by(row: Workspace, decision: Decision) -> bool:
    return row.operation is Operation.STOPPING and isinstance(decision.step, Finish)


def _report_for(workspace: Workspace, landed: EffectResult | None) -> Report | None:
    """What an effect of this very attempt reported; that of an earlier one says nothing any more."""
    if landed is None or workspace.stage not in (Stage.BEFORE_SLEEP, Stage.CALL):
        return None
    return landed.report if (landed.op_id, landed.attempt) == (workspace.op_id, workspace.op_attempt) else None
