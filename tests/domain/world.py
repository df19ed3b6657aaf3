"""Simulate a provider, a row and a clock, so that tests can run the rules through whole scenarios.

Volumes and archives are dicts, a container is one value, the test moves the clock. Effects succeed at once, unless the test
sets the outcome of the next ones. The invariants of all scenarios are asserted here.
"""

from collections import deque
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, assert_never

from tests.support.builders import ID, KNOBS, NOW, foreign, half_made, look, unmarked, workspace
from torpor.domain.disk import Disk
from torpor.domain.effects import (
    AcceptHome,
    BeforeSleep,
    CopyArchive,
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
from torpor.domain.planner import Cancel, Rest, Run, Step
from torpor.domain.reconcile import reconcile
from torpor.domain.records import (
    Archive,
    Change,
    EffectDone,
    EffectFailed,
    Marker,
    Observation,
    ObservedContainer,
    ObservedVolume,
    ProgramExit,
    ProvenArchive,
    Recovery,
    Report,
    RestoreRequest,
    Workspace,
)
from torpor.domain.settle import Progress
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin

EMPTY = "an empty home"


class Fate(Enum):
    HANGS = "it never returns"
    HANGS_HALF_WAY = "it makes a volume without a marker and never returns"
    LIES = "it says done and did nothing"


class World:
    def __init__(self, **row: Any) -> None:
        self.row: Workspace = workspace(**({"created_at": NOW, "last_access_at": NOW, "phase_changed_at": NOW} | row))
        self.now: datetime = NOW
        self.epoch = 1
        self.disk: Disk | None = None
        self.reserve_bytes = 0
        self.homes: dict[int, str] = {}
        """Whole volumes and their content."""
        self.unmarked: dict[int, str] = {}
        """Homes whose marker cannot be read, and their content."""
        self.foreign: set[int] = set()
        """Volumes whose marker names another workspace."""
        self.half_made: set[int] = set()
        self.container: ObservedContainer | None = None
        self.archives: dict[Archive, str] = {}
        self.fates: deque[Fate | Report] = deque()
        self.starts_ready = True
        self.before_sleep: tuple[str, ...] = ()
        """The command that runs before an automatic stop."""
        self.in_flight = False
        self.report: Report | None = None
        self.effects: list[Effect] = []
        self.told: list[str] = []
        """The history: every attempt that ended, with its outcome."""
        self.begun: list[str] = []
        """The history: why each attempt began, if no request did."""
        self.writes = 0
        self._open: set[tuple[str, int]] = set()
        self._ever_opened: set[tuple[str, int]] = set()
        self._op_ids = iter(f"op-{number}" for number in range(1, 1000))

    # ── requests of users ─────────────────────────────────────────────────────────────────────────────────────────────

    def wish(self, wish: Wish, *, purge: bool = False, origin: WishOrigin = WishOrigin.PERSON) -> None:
        self.row = replace(
            self.row,
            desired_state=wish,
            wish_origin=origin,
            wish_version=self.row.wish_version + 1,
            deleted_at=self.now if wish is Wish.DELETED else None,
            purge=purge,
            restore_request=None if wish is Wish.DELETED else self.row.restore_request,
        )

    def recover(self, *, archive: Archive | None = None, empty: bool = False, accept: bool = False) -> None:
        version = self.row.wish_version + 1
        self.row = replace(self.row, wish_version=version, recover_request=Recovery(version, archive, empty, accept))

    def restore(self, archive: Archive) -> None:
        version = self.row.wish_version + 1
        self.row = replace(self.row, wish_version=version, restore_request=RestoreRequest(version, archive, self.now))

    def cancel_restore(self) -> None:
        self.row = replace(self.row, wish_version=self.row.wish_version + 1, restore_request=None)

    def work(self, text: str) -> None:
        assert self.container is not None
        assert self.container.ready
        self.homes[self.container.generation] = text

    # ── faults and time ───────────────────────────────────────────────────────────────────────────────────────────────

    def befall(self, *fates: Fate | Report) -> None:
        """The next effects are not executed; this happens instead."""
        self.fates.extend(fates)

    def marker_is_lost(self) -> None:
        self.unmarked[self.row.generation] = self.homes.pop(self.row.generation)

    def program_ends(self, exit_code: int = 1) -> None:
        assert self.container is not None
        self.container = replace(self.container, ready=False, ended=ProgramExit(exit_code, "its last words"))

    def stopped_outside(self) -> None:
        assert self.container is not None
        self.container = replace(self.container, ready=False, ended=ProgramExit(137, "", is_stopped_outside=True))

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def another_controller(self) -> None:
        """The previous controller has ended, and its running effect with it."""
        self.epoch += 1
        self.in_flight = False
        self.report = None

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self) -> Observation:
        volumes = {ObservedVolume(generation, Marker(ID, generation, "")) for generation in self.homes}
        volumes |= {half_made(generation) for generation in self.half_made}
        volumes |= {foreign(generation) for generation in self.foreign}
        volumes |= {unmarked(generation) for generation in self.unmarked}
        return Observation(frozenset(volumes), self.container)

    def tick(self, progress: Progress | None = None, *, paused_s: float = 0) -> Step:
        report, self.report = self.report, None
        now = replace(
            look(),
            now=self.now,
            epoch=self.epoch,
            in_flight=self.in_flight,
            before_sleep=self.before_sleep,
            disk=self.disk,
        )
        now = replace(now, tuning=replace(now.tuning, disk_reserve_bytes=self.reserve_bytes))
        decision = reconcile(
            self.row,
            self.observe(),
            now,
            new_op_id=next(self._op_ids),
            report=report,
            progress=progress,
            paused_s=paused_s,
        )
        if decision.change is not None:
            self._write(decision.change)
        if isinstance(decision.step, Cancel):
            self.in_flight = False
        if isinstance(decision.step, Run):
            self._run(decision.step.effect)
        return decision.step

    def run(self) -> Rest:
        """Reconcile until there is no step now; `until` has the time of the next one."""
        for _ in range(60):
            writes = self.writes
            step = self.tick()
            if isinstance(step, Rest) and self.writes == writes:
                return step
        raise AssertionError(f"no end: {self.told}")

    def run_until_rest(self) -> None:
        """Reconcile, and move the clock to each wait, until there is no wait left."""
        for _ in range(60):
            until = self.run().until
            if until is None:
                return
            self.now = max(until, self.now)
        raise AssertionError(f"no end: {self.told}")

    def _write(self, change: Change) -> None:
        before, after = change.before, change.after
        assert after.version == before.version + 1
        assert after.phase is not Phase.ERROR or after.operation is Operation.NONE
        assert after.generation >= before.generation
        assert after.revision >= before.revision
        self.row, self.writes = after, self.writes + 1
        if change.closed is not None:
            closed = change.closed
            self._open.remove((closed.op_id, closed.attempt))
            reason = f" {closed.reason}" if closed.reason else ""
            self.told.append(f"{before.operation} {closed.outcome}{reason}")
        if change.opened is not None:
            opened = (change.opened.op_id, change.opened.attempt)
            assert opened not in self._ever_opened
            self._ever_opened.add(opened)
            self._open.add(opened)
            self.begun.append(change.opened.message)
        is_open = after.stage in (Stage.BEFORE_SLEEP, Stage.CALL, Stage.SEE)
        assert self._open == ({(after.op_id, after.op_attempt)} if is_open else set())

    def _run(self, effect: Effect) -> None:
        self.effects.append(effect)
        fate = self.fates.popleft() if self.fates else None
        if isinstance(fate, Fate):
            if fate is Fate.HANGS_HALF_WAY:
                assert isinstance(effect, MakeHome | Restore)
                self.half_made.add(effect.generation)
            self.in_flight = fate is not Fate.LIES
            self.report = EffectDone() if fate is Fate.LIES else None
        else:
            self.report = fate or self._carry_out(effect)

    def _discard(self, generations: frozenset[int]) -> None:
        assert generations <= self.half_made, "I1: only half-made volumes are discarded"
        self.half_made -= generations

    def _carry_out(self, effect: Effect) -> Report:
        match effect:
            case MakeHome(generation, discard):
                self._discard(discard)
                self.homes.setdefault(generation, EMPTY)
            case Restore(generation, archive, discard):
                self._discard(discard)
                if archive not in self.archives:
                    return EffectFailed(Reason.DATA_LOST, "no such archive", {"archive_key": str(archive.key)})
                self.homes[generation] = self.archives[archive]
            case AcceptHome(generation):
                self.homes[generation] = self.unmarked.pop(generation)
            case Start(generation, revision):
                assert generation in self.homes, "I16: a half-made volume is never started"
                assert self.container is None or self.container.ended, "I2: at most one live container"
                self.container = ObservedContainer(generation, revision, ready=self.starts_ready)
            case BeforeSleep():
                assert self.container is not None, "a command needs a container"
                assert self.container.ended is None
            case Stop():
                self.container = None
            case Pack(key, generation, revision):
                assert self.container is None or self.container.ended
                archive = Archive(key, generation, revision, f"root of {key}")
                self.archives[archive] = self.homes[generation]
                return ProvenArchive(archive, size_bytes=10, home_bytes=20, files=2)
            case PackEmpty(key, generation, revision):
                archive = Archive(key, generation, revision, f"root of {key}")
                self.archives[archive] = EMPTY
                return ProvenArchive(archive, size_bytes=1, home_bytes=0, files=0)
            case CopyArchive(source, target):
                if source not in self.archives:
                    return EffectFailed(Reason.DATA_LOST, "no such archive")
                archive = Archive(target, 0, 0, source.manifest_root)
                self.archives[archive] = self.archives[source]
                return ProvenArchive(archive, size_bytes=10, home_bytes=20, files=2)
            case DropHome(generation, archived_revision):
                kept = [a for a in self.archives if (a.generation, a.revision) == (generation, archived_revision)]
                assert self.homes.get(generation) in [self.archives[a] for a in kept], (
                    "I1: a home without an archive is not removed"
                )
                del self.homes[generation]
            case Remove():
                is_kept = self.row.archive is not None and self.archives.get(self.row.archive) == self.home
                assert self.row.purge or self.home is None or is_kept, "I1: a home without an archive is not removed"
                self.container = None
                assert self.row.purge or self.row.generation not in self.unmarked, "I1: an unmarked home is not removed"
                self.homes.clear()
                self.unmarked.clear()
                self.half_made.clear()
            case _:
                assert_never(effect)
        return EffectDone()

    # ── results for tests ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def home(self) -> str | None:
        return self.homes.get(self.row.generation)

    @property
    def reason(self) -> Reason | None:
        return self.row.error.reason if self.row.error and self.row.error.is_terminal else None

    def history(self) -> list[str]:
        """The history since the last call."""
        told, self.told = self.told, []
        return told


def running() -> World:
    """A workspace that was created with the wish RUNNING and is running."""
    world = World()
    world.run()
    assert world.row.phase is Phase.RUNNING
    world.history()
    return world


def asleep() -> World:
    """A workspace with work in its home and the wish STANDBY."""
    world = running()
    world.work("a day's work")
    world.wish(Wish.STANDBY)
    world.run()
    assert world.row.phase is Phase.STANDBY
    world.history()
    return world


def in_torpor() -> World:
    world = asleep()
    world.wish(Wish.ARCHIVED)
    world.run()
    assert world.row.phase is Phase.ARCHIVED
    world.history()
    return world


__all__ = ["EMPTY", "KNOBS", "Fate", "World", "asleep", "in_torpor", "running"]
