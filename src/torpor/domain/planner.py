"""Decide the next step of one workspace.

Without an operation the table of operations decides. With an operation in progress the first match decides: it is observed as
done, finish it; the wish changed and a safe point is reached, cancel it; an error was found, give up; its precondition no
longer holds, drop it; another controller began it, adopt it; `before_sleep` is due, run it; a report arrived, process it; the
deadline has passed, give up; a retry is due, call again; else wait.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from torpor.domain.backoff import backoff_s
from torpor.domain.before_sleep import sleeps_by_itself
from torpor.domain.disk import Disk, shortage
from torpor.domain.effects import NEXT_EFFECT, BeforeSleep, Effect
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, IS_RETRIED, Reason
from torpor.domain.records import (
    STOPPED_OUTSIDE_MEANS,
    EffectDone,
    EffectFailed,
    ProgramExit,
    ProvenArchive,
    ProviderOutage,
    Recovery,
    Report,
    RestoreRequest,
    StaleEpoch,
    Verdict,
    Workspace,
    WorkspaceError,
)
from torpor.domain.states import Operation, Outage, Phase, Stage, Wish
from torpor.domain.status import STATUS_OF_OPERATION
from torpor.domain.transitions import (
    DONE_WHEN,
    EXPECTS,
    NEXT_OPERATION,
    REPLACES_HOME_IN,
    STANDS_ON,
    detailed_phase,
    may_cancel,
)
from torpor.domain.tuning import Tuning

# ── the steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait until `until`, or until an observation changes."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Claim the operation. No effect runs before this is committed."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Adopt:
    """Continue an operation that another controller (or an earlier run of this one) began."""


@dataclass(frozen=True, slots=True)
class Run:
    """Call the actuator."""

    effect: Effect


@dataclass(frozen=True, slots=True)
class Proceed:
    """`before_sleep` has ended or is not needed: the stop comes next."""


@dataclass(frozen=True, slots=True)
class Await:
    """The actuator returned: the observation must confirm it before `until`."""

    until: datetime
    written_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """The archive is verified: refer to it. From here on ARCHIVING cannot be canceled."""

    proved: ProvenArchive


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the running effect; the next step is decided after it has ended."""

    why: str


@dataclass(frozen=True, slots=True)
class Turn:
    """The wish changed or the precondition no longer holds, and no effect runs: drop the operation.

    The next one is claimed in the same write, so that no client sees a pause in between.
    """

    then: Operation


@dataclass(frozen=True, slots=True)
class Finish:
    """The operation is observed as done. The next one is claimed in the same write."""

    then: Operation
    written_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """This attempt failed; the next one may begin at `at`."""

    error: WorkspaceError
    at: datetime
    quick_ends: int
    wants_new_op_id: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Claim the next attempt."""

    forgiven: bool
    """A new wish arrived since: the failures are counted from zero."""


@dataclass(frozen=True, slots=True)
class Postpone:
    """The provider cannot be reached, or stopped the container: try again at `at`, count no failure, move the deadline."""

    at: datetime
    outage: Outage
    message: str


@dataclass(frozen=True, slots=True)
class WaitForSpace:
    """The disk of the homes has too little free space for the next operation: begin it when there is enough."""

    message: str


@dataclass(frozen=True, slots=True)
class Restart:
    """The program ended, or its container was stopped from outside: it may be restarted at `at`."""

    at: datetime
    quick_ends: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    error: WorkspaceError
    quick_ends: int


@dataclass(frozen=True, slots=True)
class Recover:
    """Execute the requested recovery: with a new generation, for which no home is expected, or with the home as it is."""

    request: Recovery


@dataclass(frozen=True, slots=True)
class Rewind:
    """The home is archived: continue with the older archive that was requested, in a new generation."""

    request: RestoreRequest


Step = (
    Rest
    | Begin
    | Adopt
    | Run
    | Proceed
    | Await
    | Store
    | Cancel
    | Turn
    | Finish
    | Retry
    | Again
    | Postpone
    | WaitForSpace
    | Restart
    | GiveUp
    | Recover
    | Rewind
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of one reconcile pass, as arguments, so that the rules need neither clock nor dice."""

    now: datetime
    epoch: int
    tuning: Tuning
    in_flight: bool = False
    """An effect of this workspace runs in this process."""
    dice: float = 0.0
    """A random number from 0 to 1, for the jitter of a retry."""
    before_sleep: tuple[str, ...] = ()
    """The command that runs before an automatic stop of this workspace; empty: none."""
    disk: Disk | None = None
    """Of the homes; None: not known."""


def plan(workspace: Workspace, verdict: Verdict, report: Report | None, look: Circumstances) -> Step:
    if not verdict.is_certain:
        return Rest(until=look.now)
    if workspace.operation is Operation.NONE:
        return _plan_next(workspace, verdict, look)
    return _plan_in_progress(workspace, verdict, report, look)


def _plan_next(workspace: Workspace, verdict: Verdict, look: Circumstances) -> Step:
    if verdict.error is not None and verdict.error.is_terminal:
        request = _recovery_asked(workspace, verdict, verdict.error)
        return Recover(request) if request is not None else Rest()
    if _ended_while_wanted(workspace, verdict):
        assert verdict.ended is not None
        return _plan_program_end(workspace, verdict.ended, look)
    if workspace.restore is not None and _is_restore_due(workspace, verdict):
        return Rewind(workspace.restore)
    operation = NEXT_OPERATION[detailed_phase(workspace, verdict)][workspace.heads_for]
    if operation is Operation.NONE:
        return Rest()
    if operation is Operation.STARTING and workspace.due_at is not None and look.now < workspace.due_at:
        return Rest(until=workspace.due_at)
    short = _shortage(operation, workspace, verdict, look)
    return WaitForSpace(short) if short is not None else Begin(operation)


def _next_operation(workspace: Workspace, verdict: Verdict, look: Circumstances) -> Operation:
    """The operation of the table; NONE while there is an error or too little disk space, or before an older archive replaces
    the home."""
    if (verdict.error is not None and verdict.error.is_terminal) or _is_restore_due(workspace, verdict):
        return Operation.NONE
    operation = NEXT_OPERATION[detailed_phase(workspace, verdict)][workspace.heads_for]
    return operation if _shortage(operation, workspace, verdict, look) is None else Operation.NONE


def _is_restore_due(workspace: Workspace, verdict: Verdict) -> bool:
    """A restore was requested, and no home exists that it could replace without an archive."""
    return workspace.restore is not None and detailed_phase(workspace, verdict) in REPLACES_HOME_IN


def _shortage(operation: Operation, workspace: Workspace, verdict: Verdict, look: Circumstances) -> str | None:
    """Why there is too little disk space for this operation. Only restores and starts need space."""
    reserve_bytes = look.tuning.disk_reserve_bytes
    if operation is Operation.RESTORING:
        return shortage(look.disk, reserve_bytes, workspace.restore_bytes)
    if operation is Operation.STARTING and not verdict.container_present:
        return shortage(look.disk, reserve_bytes)
    return None


def _plan_in_progress(workspace: Workspace, verdict: Verdict, report: Report | None, look: Circumstances) -> Step:
    operation, tuning, now = workspace.operation, look.tuning, look.now
    if DONE_WHEN[operation](workspace, verdict) and not look.in_flight:
        written_bytes = report.written_bytes if isinstance(report, EffectDone) else None
        return Finish(_next_operation(workspace, verdict, look), written_bytes)
    if may_cancel(workspace):
        if look.in_flight:
            return Cancel(f"the next state is now {workspace.heads_for}")
        return Turn(_next_operation(workspace, verdict, look))
    if verdict.error is not None and verdict.error.is_terminal:
        # The judge found an error of the home or the container during another operation.
        return Cancel(verdict.error.message) if look.in_flight else GiveUp(verdict.error, workspace.quick_ends)
    if not STANDS_ON[operation](workspace, verdict):
        if look.in_flight:
            return Cancel(f"the precondition of {operation} no longer holds")
        return Turn(_next_operation(workspace, verdict, look))
    if workspace.op_epoch != look.epoch and not look.in_flight:
        return Adopt()
    if workspace.stage is Stage.BEFORE_SLEEP:
        return _plan_before_sleep(workspace, verdict, report, look)
    match report:
        case ProvenArchive():
            return Store(report)
        case EffectFailed():
            return _plan_failure(workspace, report, look)
        case ProviderOutage(outage, message):
            wait_s = backoff_s(1, base_s=tuning.retry_base_s, cap_s=tuning.retry_cap_s, dice=look.dice)
            return Postpone(now + timedelta(seconds=wait_s), outage, message)
        case StaleEpoch():
            return Adopt()
        case EffectDone(written_bytes):
            return Await(now + timedelta(seconds=tuning.retry_base_s), written_bytes)
        case None:
            pass
        case _:
            assert_never(report)
    if workspace.deadline_at is not None and now >= workspace.deadline_at:
        timeout = _timeout(workspace, look)
        return Cancel(timeout.message) if look.in_flight else GiveUp(timeout, workspace.quick_ends)
    if look.in_flight:
        return Rest(until=workspace.deadline_at)
    return _plan_stage(workspace, verdict, look)


def _plan_before_sleep(workspace: Workspace, verdict: Verdict, report: Report | None, look: Circumstances) -> Step:
    """The stop follows also if the command fails or does not end in time; that counts as no failure."""
    if isinstance(report, StaleEpoch):
        return Adopt()
    is_late = workspace.deadline_at is not None and look.now >= workspace.deadline_at
    if look.in_flight:
        return Cancel("before_sleep did not end in time") if is_late else Rest(until=workspace.deadline_at)
    is_to_run = report is None and not is_late and sleeps_by_itself(workspace) and verdict.container_ready
    if not is_to_run or not look.before_sleep:
        return Proceed()
    return Run(BeforeSleep(look.before_sleep, look.tuning.before_sleep_s))


def _plan_stage(workspace: Workspace, verdict: Verdict, look: Circumstances) -> Step:
    is_about_to_act = workspace.stage in (Stage.CALL, Stage.BACKOFF)
    if is_about_to_act and _shortage(workspace.operation, workspace, verdict, look) is not None:
        # Drop the operation, so that no deadline passes and no attempt counts while it waits for space.
        return Turn(Operation.NONE)
    match workspace.stage:
        case Stage.CALL:
            return Run(NEXT_EFFECT[workspace.operation](workspace, verdict))
        case Stage.BACKOFF:
            forgiven = _is_forgiven(workspace)
            if forgiven or workspace.due_at is None or look.now >= workspace.due_at:
                return Again(forgiven)
            return Rest(until=_earlier(workspace.due_at, workspace.deadline_at))
        case Stage.SEE:
            if workspace.operation is Operation.STARTING:
                if verdict.ended is not None:
                    return _plan_program_end(workspace, verdict.ended, look)
                if verdict.container_present:
                    # Only the deadline limits the time until the port of a program answers.
                    return Rest(until=workspace.deadline_at)
            if workspace.due_at is None or look.now >= workspace.due_at:
                disagrees = f"{STATUS_OF_OPERATION[workspace.operation]} was executed, but the observation does not confirm it"
                return _plan_failure(
                    workspace, EffectFailed(Reason.MISMATCH, disagrees, _expected_and_actual(workspace, verdict)), look
                )
            return Rest(until=_earlier(workspace.due_at, workspace.deadline_at))
        case Stage.REST | Stage.BEFORE_SLEEP:
            raise AssertionError("an operation in progress has a stage, and BEFORE_SLEEP is planned elsewhere")
        case _:
            assert_never(workspace.stage)


def _is_forgiven(workspace: Workspace) -> bool:
    """A new wish arrived since the last failure: the failures are counted from zero."""
    return workspace.error is not None and workspace.error.wish_version < workspace.wish_version


def _plan_failure(workspace: Workspace, broke: EffectFailed, look: Circumstances) -> Step:
    tuning = look.tuning
    failures = 1 if _is_forgiven(workspace) else workspace.error_count + 1
    error = WorkspaceError(
        reason=broke.reason,
        message=broke.message,
        is_terminal=not IS_RETRIED[broke.reason],
        operation=workspace.operation,
        error_count=failures,
        occurred_at=look.now,
        wish_version=workspace.wish_version,
        context=broke.context,
    )
    if error.is_terminal:
        return GiveUp(error, workspace.quick_ends)
    if failures > tuning.max_retries:
        return GiveUp(_exceeded(error, tuning), workspace.quick_ends)
    wait_s = backoff_s(failures, base_s=tuning.retry_base_s, cap_s=tuning.retry_cap_s, dice=look.dice)
    return Retry(error, look.now + timedelta(seconds=wait_s), workspace.quick_ends, broke.wants_new_op_id)


def _ended_while_wanted(workspace: Workspace, verdict: Verdict) -> bool:
    """It was running, no stop was requested, and its program ended. Counted once: then the row's phase is not RUNNING."""
    return (
        workspace.phase is Phase.RUNNING
        and verdict.phase is Phase.STANDBY
        and workspace.heads_for is Wish.RUNNING
        and verdict.ended is not None
    )


def _plan_program_end(workspace: Workspace, ended: ProgramExit, look: Circumstances) -> Step:
    """A program that ends is restarted, with backoff; three quick ends in a row are an error."""
    tuning = look.tuning
    ready_s = (look.now - workspace.phase_changed_at).total_seconds() if workspace.phase is Phase.RUNNING else 0.0
    before = 0 if _is_forgiven(workspace) else workspace.quick_ends
    is_quick = ready_s < tuning.quick_end_s
    if ended.is_stopped_outside:
        return _plan_stop_outside(workspace, look, quick_ends=before if is_quick else 0, is_quick=is_quick)
    quick_ends = before + 1 if is_quick else 0
    error = WorkspaceError(
        reason=Reason.ACTION_FAILED,
        message=f"the program ended with exit code {ended.exit_code}",
        is_terminal=quick_ends >= tuning.max_quick_ends,
        operation=Operation.STARTING,
        error_count=quick_ends,
        occurred_at=look.now,
        wish_version=workspace.wish_version,
        context={"action": "run", "exit_code": ended.exit_code, "last_lines": ended.last_lines},
    )
    if error.is_terminal:
        return GiveUp(error, quick_ends)
    wait_s = (
        backoff_s(quick_ends, base_s=tuning.restart_base_s, cap_s=tuning.retry_cap_s, dice=look.dice) if quick_ends else 0.0
    )
    at = look.now + timedelta(seconds=wait_s)
    if workspace.operation is Operation.NONE:
        return Restart(at, quick_ends)
    return Retry(error, at, quick_ends)


def _plan_stop_outside(workspace: Workspace, look: Circumstances, *, quick_ends: int, is_quick: bool) -> Step:
    """This is no end of the program and never counts. The wait does not grow: it only limits how often a container starts."""
    at = look.now + timedelta(seconds=look.tuning.restart_base_s if is_quick else 0.0)
    if workspace.operation is Operation.NONE:
        return Restart(at, quick_ends)
    return Postpone(at, Outage.RUNTIME, STOPPED_OUTSIDE_MEANS)


def _recovery_asked(workspace: Workspace, verdict: Verdict, error: WorkspaceError) -> Recovery | None:
    request = workspace.recover_request
    if error.reason not in ASKS_HOW_TO_GO_ON or request is None or request.wish_version <= error.wish_version:
        return None
    if request.accept:
        can_accept = error.reason is Reason.MARKER_UNREADABLE and verdict.home_present and workspace.deleted_at is None
        return request if can_accept else None
    return request if request.archive is not None or request.empty else None


def _exceeded(error: WorkspaceError, tuning: Tuning) -> WorkspaceError:
    return WorkspaceError(
        reason=Reason.RETRY_EXCEEDED,
        message=f"{STATUS_OF_OPERATION[error.operation]} failed {error.error_count} times, the last time: {error.message}",
        is_terminal=True,
        operation=error.operation,
        error_count=error.error_count,
        occurred_at=error.occurred_at,
        wish_version=error.wish_version,
        context={
            "max_retries": tuning.max_retries,
            "last_reason": error.reason.value,
            "last_error": error.message,
            **error.context,
        },
    )


def _timeout(workspace: Workspace, look: Circumstances) -> WorkspaceError:
    operation, began = workspace.operation, workspace.op_started_at or look.now
    elapsed_s = round((look.now - began).total_seconds(), 1)
    return WorkspaceError(
        reason=Reason.TIMEOUT,
        message=f"{STATUS_OF_OPERATION[operation]} made no progress for {look.tuning.timeouts_s[operation]:g} s",
        is_terminal=True,
        operation=workspace.operation,
        error_count=workspace.error_count,
        occurred_at=look.now,
        wish_version=workspace.wish_version,
        context={"operation": workspace.operation.value, "elapsed_seconds": elapsed_s},
    )


def _expected_and_actual(workspace: Workspace, verdict: Verdict) -> dict[str, object]:
    expected = EXPECTS[workspace.operation]
    seen = {
        "archived": workspace.is_archived,
        "container_present": verdict.container_present,
        "container_ready": verdict.container_ready,
        "home_present": verdict.home_present,
        "volume_present": verdict.volume_present,
        "volume_ready": verdict.volume_ready,
    }
    return {
        "expected": ", ".join(f"{name}={value}" for name, value in expected.items()),
        "actual": ", ".join(f"{name}={seen[name]}" for name in expected),
    }


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)
