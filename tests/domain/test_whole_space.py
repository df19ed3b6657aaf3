"""Every rule holds in every possible state.

The cases are the product of all rows, observations and reports, without the rows that the CHECK constraints of the schema
refuse (`is_possible`) and without combinations that make no difference (with the reason where they are left out). For each case
the invariants of one decision are asserted. Then the decision is repeated on its own result until it rests: there is no
livelock and no churn, and it rests only at the requested state, at an effect, at a wait with an end, or at an error.
"""

import gc
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter

import pytest

from tests.support.builders import (
    OP_ID,
    SERVICE_COLUMNS,
    SOURCE,
    archive,
    container,
    error,
    half_made,
    later,
    look,
    proved,
    to_restore,
    unmarked,
    whole,
    workspace,
)
from torpor.domain.effects import (
    AcceptHome,
    BeforeSleep,
    CopyArchive,
    DropHome,
    MakeHome,
    Pack,
    PackEmpty,
    Remove,
    Restore,
    Start,
    Stop,
)
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason
from torpor.domain.planner import (
    Adopt,
    Again,
    Begin,
    Cancel,
    Circumstances,
    Finish,
    GiveUp,
    Recover,
    Rest,
    Rewind,
    Run,
    Step,
    Store,
    Turn,
)
from torpor.domain.reconcile import Decision, reconcile
from torpor.domain.records import (
    NOT_OBSERVED,
    Conditions,
    EffectDone,
    EffectFailed,
    Observation,
    ObservedContainer,
    ObservedVolume,
    ProgramExit,
    ProvenArchive,
    ProviderOutage,
    Recovery,
    Report,
    StaleEpoch,
    Workspace,
    WorkspaceCondition,
    WorkspaceError,
)
from torpor.domain.states import Operation, Outage, Phase, Stage, Wish, WishOrigin

pytestmark = pytest.mark.long

# ── the axes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

GENERATION, REVISION = 3, 7
WISHES = (
    (Wish.RUNNING, None, False),
    (Wish.STANDBY, None, False),
    (Wish.ARCHIVED, None, False),
    (Wish.DELETED, later(-5), False),
    (Wish.DELETED, later(-5), True),
)
HOMES: tuple[ObservedVolume | None, ...] = (None, half_made(GENERATION), unmarked(GENERATION), whole(GENERATION))
OLDER_VOLUMES: tuple[ObservedVolume | None, ...] = (
    None,
    half_made(GENERATION - 1),
    whole(GENERATION - 1),
    unmarked(GENERATION - 1),
)
REMAINS = container(GENERATION, REVISION - 1, ended=ProgramExit(0, "before"))
CONTAINERS: tuple[ObservedContainer | None, ...] = (
    None,
    container(GENERATION, REVISION, ready=False),
    container(GENERATION, REVISION),
    container(GENERATION, REVISION, ended=ProgramExit(1, "oh")),
    container(GENERATION, REVISION, ended=ProgramExit(137, "oh", is_stopped_outside=True)),
    REMAINS,
    container(GENERATION - 1, REVISION - 1),
)
ARCHIVES = (None, archive(GENERATION, REVISION), archive(GENERATION - 1, REVISION - 1))
WISH_VERSION = 5
SAME, OLDER = WISH_VERSION, WISH_VERSION - 1
REPORTS: tuple[Report, ...] = (
    EffectDone(),
    proved(GENERATION, REVISION),
    *(EffectFailed(reason, "broke", wants_new_op_id=False) for reason in Reason),
    EffectFailed(Reason.ACTION_FAILED, "read back, and it is not the same", wants_new_op_id=True),
    ProviderOutage(Outage.ARCHIVE_STORE, "no answer"),
    ProviderOutage(Outage.RUNTIME, "no answer"),
)
PACKING = (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE)
UNDER_WAY = tuple(operation for operation in Operation if operation is not Operation.NONE)

MISSING = replace(NOT_OBSERVED, volume_ready=WorkspaceCondition(False, "Missing", "", later(-9)))
UNMARKED = replace(NOT_OBSERVED, volume_ready=WorkspaceCondition(False, "Unmarked", "", later(-9)))
WITHOUT_VOLUME = replace(NOT_OBSERVED, container_ready=WorkspaceCondition(False, "WithoutVolume", "", later(-9)))
BOTH = replace(MISSING, container_ready=WITHOUT_VOLUME.container_ready)


def memories(row: Workspace, what: Observation) -> tuple[Conditions, ...]:
    """The conditions of the previous observation, if they make a difference to this one."""
    is_missing = row.expects_volume and whole(GENERATION) not in what.volumes
    is_adrift = is_live(what) and not what.volumes
    return (
        NOT_OBSERVED,
        *((MISSING, UNMARKED) if is_missing else ()),
        *((WITHOUT_VOLUME,) if is_adrift else ()),
        *((BOTH,) if is_missing and is_adrift else ()),
    )


def observations(older_volumes: tuple[ObservedVolume | None, ...]) -> Iterator[Observation]:
    for home, older, box in itertools.product(HOMES, older_volumes, CONTAINERS):
        yield Observation(frozenset(volume for volume in (home, older) if volume is not None), box)


@dataclass(frozen=True, slots=True)
class Case:
    row: Workspace
    what: Observation
    look: Circumstances
    report: Report | None = None

    def decide(self) -> Decision:
        return reconcile(self.row, self.what, self.look, new_op_id="op-new", report=self.report)

    def __str__(self) -> str:
        return f"{self.what}\n{self.report}\n{self.look}\n{self.row}"


# ── before an automatic stop ──────────────────────────────────────────────────────────────────────────────────────────

COMMAND = ("sync",)


def with_command(case: Case) -> Case:
    return replace(case, look=replace(case.look, before_sleep=COMMAND))


def by_itself(case: Case) -> Case:
    return with_command(replace(case, row=replace(case.row, wish_origin=WishOrigin.IDLE)))


def cases_before_sleep(row: Workspace, what: Observation) -> Iterator[Case]:
    """Every moment of the stage, with every wish and origin, also without a command."""
    before = replace(row, stage=Stage.BEFORE_SLEEP)
    for phase, moment, is_in_flight in itertools.product(
        {row.phase, Phase.RUNNING} if row.deleted_at is None else {row.phase}, (look(), LATE, ELSEWHERE), (False, True)
    ):
        case = Case(replace(before, phase=phase), what, replace(moment, in_flight=is_in_flight))
        yield case
        yield with_command(case)
        yield by_itself(case)
    for report in (*REPORTS, StaleEpoch(7)):
        if not isinstance(report, ProvenArchive):
            yield by_itself(Case(replace(before, phase=Phase.RUNNING), what, look(), report))


# ── no operation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def errors_at_rest() -> Iterator[tuple[WorkspaceError | None, Recovery | None]]:
    yield None, None
    for reason, version in itertools.product(Reason, (SAME, OLDER)):
        yield error(reason, wish_version=version), None
    lost = error(Reason.DATA_LOST, wish_version=OLDER)
    for context in ({"absent": True}, {"archive_key": str(ARCHIVES[2].key) if ARCHIVES[2] else ""}):
        yield replace(lost, context=context, wish_version=SAME), None
        for request in (
            None,
            Recovery(WISH_VERSION, archive=archive(1, 2, "op-long-ago")),
            Recovery(WISH_VERSION, empty=True),
            Recovery(WISH_VERSION),
            Recovery(OLDER - 1, empty=True),
        ):
            yield replace(lost, context=context), request
    unreadable = error(Reason.MARKER_UNREADABLE, wish_version=OLDER, context={"absent": True, "home": "/volumes/3/home"})
    for request in (
        None,
        Recovery(WISH_VERSION, accept=True),
        Recovery(WISH_VERSION, empty=True),
        Recovery(OLDER - 1, accept=True),
    ):
        yield unreadable, request


SPECIAL = (Reason.DATA_LOST, Reason.MARKER_UNREADABLE, Reason.CONTAINER_WITHOUT_VOLUME, Reason.RETRY_EXCEEDED)


def rows_at_rest() -> Iterator[Workspace]:
    for phase, (wish, deleted_at, purge), (info, request), kept, home_seen in itertools.product(
        Phase, WISHES, errors_at_rest(), ARCHIVES, (False, True)
    ):
        row = workspace(
            desired_state=wish,
            wish_version=WISH_VERSION,
            deleted_at=deleted_at,
            purge=purge,
            recover_request=request,
            phase=phase,
            generation=GENERATION,
            revision=REVISION,
            home_seen=home_seen,
            archive=kept,
            error=info,
            op_id=OP_ID,
            op_attempt=2,
        )
        # An error at rest has the phase ERROR, or belongs to a workspace that is (or was until now) deleted. With such a phase
        # only the reasons in SPECIAL make a difference, because they have their own rules.
        phases = (Phase.ERROR, Phase.DELETING, Phase.DELETED) if info and info.reason in SPECIAL else (Phase.ERROR,)
        if is_possible(row) and (info is None or phase in phases):
            yield row


def cases_at_rest() -> Iterator[Case]:
    for row in rows_at_rest():
        # With an error, older volumes matter only for a container without a volume; the rest is covered without an error.
        older = OLDER_VOLUMES if row.error is None else OLDER_VOLUMES[:2] if row.error.reason in SPECIAL[2:] else (None,)
        for what in observations(older):
            for memory in memories(row, what):
                case = Case(replace(row, conditions=memory), what, look())
                yield case
                if row.error is None and row.phase is Phase.RUNNING and what.container is not None and what.container.ended:
                    yield replace(case, row=replace(case.row, quick_ends=2))
                    yield replace(case, row=replace(case.row, quick_ends=2, phase_changed_at=later(-61)))
                if row.error is None and row.phase is Phase.STANDBY:
                    yield replace(case, row=replace(case.row, quick_ends=1, due_at=later(2)))
                if row.error is None and row.desired_state is Wish.STANDBY:
                    yield by_itself(case)


# ── an operation in progress ──────────────────────────────────────────────────────────────────────────────────────────


def rows_under_way() -> Iterator[Workspace]:
    for operation, (wish, deleted_at, purge), kept, home_seen in itertools.product(UNDER_WAY, WISHES, ARCHIVES, (False, True)):
        yield workspace(
            operation=operation,
            desired_state=wish,
            wish_version=WISH_VERSION,
            deleted_at=deleted_at,
            purge=purge,
            phase=Phase.STANDBY if deleted_at is None else Phase.DELETING,
            generation=GENERATION,
            revision=REVISION,
            home_seen=home_seen,
            archive=kept,
        )


FAILED = tuple(error(Reason.ACTION_FAILED, is_terminal=False, wish_version=version) for version in (SAME, OLDER))
LATE, ELSEWHERE = look(201), look(epoch=2)


def moments_of(row: Workspace) -> Iterator[tuple[Workspace, Circumstances]]:
    """Every stage of an operation, with every order of now, due_at and deadline_at, in this epoch and in another."""
    for now in (look(), LATE, ELSEWHERE):
        yield row, now
        yield row, replace(now, in_flight=True)
    for stage in (Stage.SEE, Stage.BACKOFF):
        waiting = replace(row, stage=stage, due_at=later(5))
        due = replace(waiting, due_at=later(-1))
        for now in (look(), LATE, ELSEWHERE):
            yield waiting, now
        yield due, look()
        # An earlier failure matters if the next one is counted, and if a new wish clears it.
        for info in FAILED:
            yield replace(due, error=info, error_count=3), look()
            if stage is Stage.BACKOFF:
                yield replace(waiting, error=info, error_count=3), look()


def cases_under_way() -> Iterator[Case]:
    for row in rows_under_way():
        for what in observations(OLDER_VOLUMES[:1]):
            # An ended container of an older revision is covered without an operation.
            if what.container is REMAINS:
                continue
            for memory in memories(row, what):
                remembered = replace(row, conditions=memory)
                for at, now in moments_of(remembered):
                    yield Case(at, what, now)
                yield from cases_reported(remembered, what)
                # The row's phase matters in doubt (it stays), and for STARTING (how long it was RUNNING).
                for phase in set(Phase) - {Phase.ERROR, row.phase} if memory is not BOTH else ():
                    if len(memories(row, what)) > 1:
                        yield Case(replace(remembered, phase=phase), what, look())
                if row.operation is Operation.STOPPING:
                    yield from cases_before_sleep(remembered, what)
                if row.operation is Operation.STARTING:
                    yield Case(replace(remembered, phase=Phase.RUNNING, stage=Stage.SEE, due_at=later(5)), what, look())
        # Volumes of older generations decide what is discarded, and whether a container has any volume.
        for what in observations(OLDER_VOLUMES[1:]):
            for memory in memories(row, what):
                yield Case(replace(row, conditions=memory), what, look())


def cases_reported(row: Workspace, what: Observation) -> Iterator[Case]:
    """Every report with every home; of the containers, one and none are enough."""
    if what.container not in CONTAINERS[:2]:
        return
    for report in REPORTS:
        if isinstance(report, ProvenArchive) and row.operation not in PACKING:
            continue
        yield Case(row, what, look(), report)
        if isinstance(report, EffectFailed) and report.reason is Reason.ACTION_FAILED:
            for info in FAILED:
                yield Case(replace(row, error=info, error_count=3), what, look(), report)
    yield Case(row, what, ELSEWHERE, EffectDone())


# ── what the schema refuses ───────────────────────────────────────────────────────────────────────────────────────────


def broken_constraints(row: Workspace) -> list[str]:
    is_under_way = row.operation is not Operation.NONE
    terminal = row.error is not None and row.error.is_terminal
    rules = {
        "phase = ERROR implies operation = NONE": row.phase is not Phase.ERROR or not is_under_way,
        "phase = ERROR implies a terminal error": row.phase is not Phase.ERROR or terminal,
        "a terminal error implies operation = NONE": not terminal or not is_under_way,
        "at rest an error is terminal": is_under_way or row.error is None or terminal,
        "operation = NONE exactly at stage REST": is_under_way == (row.stage is not Stage.REST),
        "wish DELETED exactly with deleted_at": (row.desired_state is Wish.DELETED) == (row.deleted_at is not None),
        "only the deleted are purged": not row.purge or row.deleted_at is not None,
        "an operation has op_id": not is_under_way or row.op_id is not None,
        "an operation has begun": not is_under_way or row.op_started_at is not None,
        "an operation has a deadline": not is_under_way or row.deadline_at is not None,
        "an attempt has a number": row.stage in (Stage.REST, Stage.BACKOFF) or row.op_attempt >= 1,
        "SEE and BACKOFF have an end": row.stage not in (Stage.SEE, Stage.BACKOFF) or row.due_at is not None,
        "before_sleep is of a stop": row.stage is not Stage.BEFORE_SLEEP or row.operation is Operation.STOPPING,
    }
    return [rule for rule, holds in rules.items() if not holds]


def is_possible(row: Workspace) -> bool:
    return not broken_constraints(row)


# ── the invariants of one decision ────────────────────────────────────────────────────────────────────────────────────


def is_live(what: Observation) -> bool:
    return what.container is not None and what.container.ended is None


def is_whole(row: Workspace, what: Observation) -> bool:
    return any(volume.generation == row.generation and volume.marker is not None for volume in what.volumes)


def is_terminal(info: WorkspaceError | None) -> bool:
    return info is not None and info.is_terminal


def check_effect(case: Case, step: Run) -> None:
    row, what, effect = case.row, case.what, step.effect
    home_is_whole, live = is_whole(row, what), is_live(what)
    half = {volume.generation for volume in what.volumes if volume.marker is None and not volume.is_illegible}
    match effect:
        case MakeHome(generation, discard) | Restore(generation, _, discard):
            assert generation == row.generation
            assert not row.expects_volume, "a lost home became a fresh one"
            assert not home_is_whole
            assert discard <= half - {row.generation}
            if isinstance(effect, Restore):
                assert effect.archive == row.archive
        case AcceptHome(generation):
            assert generation == row.generation
            assert not home_is_whole
            assert generation in {volume.generation for volume in what.volumes}, "there is no home to accept"
        case Start(generation, revision):
            assert (generation, revision) == (row.generation, row.revision)
            assert home_is_whole, "I16: started a half-made volume"
            assert not row.is_archived, "a start needs a revision without an archive"
        case Pack(key, generation, revision):
            assert (key.op_id, generation, revision) == (row.op_id, row.generation, row.revision)
            assert home_is_whole, "I16: archived a half-made volume"
            assert not live, "archived while a process may write"
            assert not row.is_archived
        case PackEmpty(key, generation, revision):
            assert (key.op_id, generation, revision) == (row.op_id, row.generation, row.revision)
            assert not home_is_whole, "an empty archive would replace a home"
            assert not row.expects_volume, "a lost home became an empty archive"
        case CopyArchive(source, target):
            assert (source, target.op_id) == (row.fork_source, row.op_id)
            assert (row.generation, row.revision) == (0, 0), "only the first home is a copy"
            assert not home_is_whole, "a copy would replace a home"
            assert not row.expects_volume, "a lost home became a copy"
        case DropHome(generation, archived_revision):
            assert row.is_archived, "I1"
            assert (generation, archived_revision) == (row.generation, row.revision)
            assert not live, "container gone, then the volume"
        case Remove():
            assert row.deleted_at is not None
            assert row.purge or row.is_archived or not home_is_whole, "I1"
        case BeforeSleep(command, within_s):
            assert within_s == case.look.tuning.before_sleep_s
            assert command == case.look.before_sleep
            assert command
            assert (row.phase, row.desired_state, row.wish_origin) == (Phase.RUNNING, Wish.STANDBY, WishOrigin.IDLE)
            assert what.container is not None
            assert what.container.ready
            assert case.report is None, "at most once in an attempt"
        case Stop():
            pass


# The columns that must be committed before an effect runs: intent before effect.
INTENT = attrgetter(
    "operation", "stage", "op_id", "op_attempt", "op_epoch", "generation", "archive", "deadline_at", "due_at", "error"
)
OF_THE_SERVICE = attrgetter(*SERVICE_COLUMNS)
OF_THE_CONTROLLER = attrgetter(
    *({column.name for column in fields(Workspace)} - {*SERVICE_COLUMNS, "version", "epoch", "observed_at"})
)


def check_decision(case: Case, decision: Decision) -> None:
    row, step, change = case.row, decision.step, decision.change
    after = row if change is None else change.after
    if isinstance(step, Run):
        check_effect(case, step)
        assert row.operation is not Operation.NONE
        assert row.stage is (Stage.BEFORE_SLEEP if isinstance(step.effect, BeforeSleep) else Stage.CALL)
        assert row.op_id is not None
        assert row.op_epoch == case.look.epoch, "an effect of an attempt that another controller opened"
        assert not case.look.in_flight, "one effect in flight"
        assert decision.verdict.is_certain
        assert row.deadline_at is not None
        assert case.look.now < row.deadline_at
        assert not is_terminal(decision.verdict.error)
        assert INTENT(row) == INTENT(after)
        assert row.revision == after.revision or isinstance(step.effect, BeforeSleep | Stop | Remove)
    if isinstance(step, Cancel):
        assert case.look.in_flight
    if isinstance(step, Rest) and after.operation is not Operation.NONE:
        assert step.until is not None, "waits without an end"
    if case.look.in_flight:
        # The next step is decided after the effect has ended.
        assert isinstance(step, Rest | Cancel)
    if change is not None:
        check_change(case, decision, after)


def check_change(case: Case, decision: Decision, after: Workspace) -> None:
    row, what, step, change = case.row, case.what, decision.step, decision.change
    assert change is not None
    assert change.before is row
    assert broken_constraints(after) == []
    assert OF_THE_SERVICE(row) == OF_THE_SERVICE(after), "one writer per column"
    assert (after.version, after.epoch, after.observed_at) == (row.version + 1, case.look.epoch, case.look.now)
    assert OF_THE_CONTROLLER(row) != OF_THE_CONTROLLER(after), "nothing changed"

    # The home, and whether it is expected.
    assert after.generation - row.generation in (0, 1)
    # Once when a container is found on an archived home, once when STARTING begins.
    assert after.revision - row.revision in (0, 1, 2)
    assert after.home_seen or not row.home_seen or after.generation > row.generation
    assert after.archive == row.archive or isinstance(step, Store | Recover | Rewind)
    if isinstance(step, Rewind):
        assert row.restore is not None
        assert after.archive == row.restore.archive
        assert after.restore is None, "a restore was executed twice"
        assert not row.expects_volume, "an older archive replaced a home that is expected"
        assert not is_whole(row, what), "an older archive replaced a home without an archive"
        assert not is_live(what), "an older archive replaced the home of a container"
        assert not after.is_archived, "the next home would count as archived before it is opened"
        assert (row.phase, row.deleted_at) != (Phase.ERROR, None) or row.error is None or not is_terminal(after.error)
    assert after.restored_version == row.restored_version or isinstance(step, Rewind)
    if row.expects_volume and not is_whole(row, what):
        assert after.expects_volume or isinstance(step, Store | Recover), "a lost home was forgotten"
    if after.generation != row.generation:
        assert not is_whole(row, what) or isinstance(step, Recover), "a whole home was left behind"

    # Errors are not lost, and only the allowed causes clear them.
    if is_terminal(row.error) and not is_terminal(after.error):
        assert row.error is not None
        is_newer_wish = row.error.wish_version < row.wish_version
        is_lost = row.error.reason in ASKS_HOW_TO_GO_ON
        if is_lost and row.error.context.get("absent") and is_whole(row, what):
            pass  # it was observed again
        elif is_lost and row.deleted_at is None:
            assert isinstance(step, Recover)
            assert is_newer_wish
        else:
            assert is_newer_wish
    assert isinstance(step, GiveUp) <= is_terminal(after.error)
    if row.stage is Stage.BEFORE_SLEEP and isinstance(step, GiveUp):
        assert is_terminal(decision.verdict.error), "a stop was given up because of before_sleep"
    if row.phase is not Phase.ERROR and after.phase is Phase.ERROR:
        assert after.previous_phase not in (None, Phase.ERROR)
    assert after.conditions.healthy.status is not is_terminal(after.error)

    # Each attempt is opened once and closed once.
    was, now = attempt_of(row), attempt_of(after)
    closed = None if change.closed is None else (change.closed.op_id, change.closed.attempt)
    opened = None if change.opened is None else (change.opened.op_id, change.opened.attempt)
    assert closed == (was if was != now else None)
    assert opened == (now if was != now else None)
    if change.opened is not None:
        is_next = isinstance(step, Turn | Finish) and step.then is after.operation
        assert isinstance(step, Begin | Adopt | Again) or is_next or is_acceptance(step)
        assert (change.opened.operation, change.opened.generation) == (after.operation, after.generation)
    if change.closed is not None and isinstance(step, GiveUp):
        assert after.error is not None
        assert change.closed.reason is after.error.reason
    claims_next = isinstance(step, Turn | Finish) and step.then is not Operation.NONE
    assert change.if_wish_unchanged is (claims_next or isinstance(step, Begin | Store | Finish | Rewind) or is_acceptance(step))
    assert (change.proved is not None) is isinstance(step, Store)


def is_acceptance(step: Step) -> bool:
    return isinstance(step, Recover) and step.request.accept


def attempt_of(row: Workspace) -> tuple[str, int] | None:
    """The attempt that is open in the history."""
    if row.op_id is None or row.stage not in (Stage.BEFORE_SLEEP, Stage.CALL, Stage.SEE):
        return None
    return row.op_id, row.op_attempt


# ── the invariants of what follows ────────────────────────────────────────────────────────────────────────────────────

# Doubt, an error or the end of an operation, the next operation: no case needs more writes.
MOST_WRITES = 5


def come_to_rest(case: Case, decision: Decision) -> Workspace:
    """Repeat the pass with the same observation, without effects, until there is no write."""
    for _ in range(MOST_WRITES):
        # A report is used once; after that only the row decides.
        case = Case(case.row if decision.change is None else decision.change.after, case.what, case.look)
        key = key_of(case)
        if key in AT_REST:
            return AT_REST[key]
        decision = case.decide()
        check_decision(case, decision)
        if decision.change is None:
            check_rest(case.row, decision)
            AT_REST[key] = case.row
            return case.row
    raise AssertionError(f"still writing after {MOST_WRITES} looks at the same")


# Cases that are known to be at rest, so that they are not checked again.
AT_REST: dict[object, Workspace] = {}
# Mappings (shares, environment) are not hashed, and no decision depends on them.
COLUMNS = attrgetter(
    *(c.name for c in fields(Workspace) if c.hash is not False and c.name not in ("error", "version", "op_attempt"))
)


def key_of(case: Case) -> object:
    info = case.row.error
    about_error = info and (info.reason, info.wish_version, info.is_terminal, str(info.context), info.message, info.occurred_at)
    now = case.look
    return COLUMNS(case.row), about_error, case.what, now.now, now.epoch, now.in_flight, now.before_sleep


def check_rest(row: Workspace, decision: Decision) -> None:
    verdict, step = decision.verdict, decision.step
    assert verdict.is_certain, "a doubt that no second observation resolves"
    assert isinstance(step, Rest | Run | Cancel), f"a step that writes nothing: {step}"
    if isinstance(step, Rest) and step.until is None:
        is_there = row.phase.value == row.desired_state.value and row.restore is None
        assert is_there or is_terminal(row.error), "stuck without an error"
    if row.desired_state is Wish.DELETED and not is_terminal(row.error) and row.phase is not Phase.DELETED:
        assert row.operation is not Operation.NONE, "a deletion that does not continue"


def check_new_wish_makes_progress(begun: Case, ended: Workspace) -> None:
    """I7, for a terminal error that is older than the wish."""
    info = begun.row.error
    if info is None or not info.is_terminal or info.wish_version == WISH_VERSION:
        return
    if info.reason in ASKS_HOW_TO_GO_ON and begun.row.deleted_at is None:
        return
    if ended.error is None:
        return
    # Only an error that was found since may exist, and never the same one again.
    assert ended.error.wish_version == WISH_VERSION
    found = {*ASKS_HOW_TO_GO_ON, Reason.CONTAINER_WITHOUT_VOLUME}
    if begun.row.conditions.container_ready.reason == "WithoutVolume":
        found -= {Reason.CONTAINER_WITHOUT_VOLUME}
    assert ended.error.reason in found, "a new wish was answered with an error"


def check(case: Case) -> None:
    decision = case.decide()
    check_decision(case, decision)
    check_new_wish_makes_progress(case, come_to_rest(case, decision))
    is_of_a_stop = case.row.operation is Operation.STOPPING or (case.row.stage is Stage.REST and case.row.error is None)
    if is_of_a_stop and case.row.wish_origin is not WishOrigin.IDLE:
        assert with_command(case).decide() == decision, "before_sleep makes a difference to a stop that is not automatic"


# ── an older archive, and a copy ──────────────────────────────────────────────────────────────────────────────────────


# With an open restore the next operation is that of the wish ARCHIVED, whether the workspace should run afterwards or not.
TO_RESTORE = (Wish.RUNNING, Wish.ARCHIVED)


def cases_to_restore() -> Iterator[Case]:
    """An open restore at rest and in every operation. Older volumes, and the other errors, are covered without it."""
    for row in rows_at_rest():
        reason = row.error.reason if row.error is not None else None
        if row.desired_state not in TO_RESTORE or row.recover_request is not None:
            continue
        if reason in (None, Reason.DATA_LOST, Reason.RETRY_EXCEEDED):
            open_row = replace(row, restore_request=to_restore(WISH_VERSION))
            for what in observations(OLDER_VOLUMES[:1]):
                for memory in memories(row, what):
                    yield Case(replace(open_row, conditions=memory), what, look())
    for row in rows_under_way():
        if row.desired_state not in TO_RESTORE:
            continue
        open_row = replace(row, restore_request=to_restore(WISH_VERSION))
        for what in observations(OLDER_VOLUMES[:1]):
            for memory in memories(row, what):
                for now in (look(), look(in_flight=True)):
                    yield Case(replace(open_row, conditions=memory), what, now)
            if row.operation in PACKING:
                yield Case(open_row, what, look(), proved(GENERATION, REVISION))


def cases_to_copy() -> Iterator[Case]:
    """A fork before and during its copy, and after it."""
    for row in (*rows_at_rest(), *(row for row in rows_under_way() if row.operation is Operation.COPYING)):
        if row.archive is not None or row.home_seen or row.recover_request is not None:
            continue
        fork = replace(row, fork_source=SOURCE, generation=0, revision=0)
        for kept in (None, archive(0, 0)):
            for what in (Observation(), Observation(frozenset({half_made(0)})), Observation(frozenset({whole(0)}))):
                case = Case(replace(fork, archive=kept), what, look())
                yield case
                if row.operation is Operation.COPYING:
                    yield replace(case, look=look(in_flight=True))
                    yield replace(case, look=ELSEWHERE)
                    yield from (replace(case, report=report) for report in (EffectDone(), proved(0, 0), *REPORTS[2:]))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """There are no reference cycles here, and the collector would take as long as the rules."""
    gc.disable()
    yield
    AT_REST.clear()
    gc.enable()


def check_all(cases: Iterator[Case]) -> int:
    count = 0
    for case in cases:
        count += 1
        try:
            check(case)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n\nthe case:\n{case}\n\ndecided:\n{case.decide().step}") from failure
    return count


def tell(capsys: pytest.CaptureFixture[str], what: str, count: int) -> None:
    with capsys.disabled():
        print(f"\ndomain space: {count:,} combinations checked, {what}", file=sys.stderr)


@pytest.mark.usefixtures("no_collector")
def test_every_invariant_holds_without_an_operation(capsys: pytest.CaptureFixture[str]) -> None:
    tell(capsys, "no operation", check_all(cases_at_rest()))


@pytest.mark.usefixtures("no_collector")
def test_every_invariant_holds_with_an_open_restore(capsys: pytest.CaptureFixture[str]) -> None:
    tell(capsys, "an open restore", check_all(cases_to_restore()))


@pytest.mark.usefixtures("no_collector")
def test_every_invariant_holds_for_a_copy(capsys: pytest.CaptureFixture[str]) -> None:
    tell(capsys, "a copy", check_all(cases_to_copy()))


@pytest.mark.usefixtures("no_collector")
def test_every_invariant_holds_with_an_operation_in_progress(capsys: pytest.CaptureFixture[str]) -> None:
    tell(capsys, "an operation in progress", check_all(cases_under_way()))
