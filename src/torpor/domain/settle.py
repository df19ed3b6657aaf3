"""Compute what a step writes: the whole row after the step.

A step without a change writes no row. The store contains no rules.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from torpor.domain.before_sleep import sleeps_by_itself
from torpor.domain.outage import with_outage, without_outage
from torpor.domain.planner import (
    Adopt,
    Again,
    Await,
    Begin,
    Cancel,
    Circumstances,
    Finish,
    GiveUp,
    Postpone,
    Proceed,
    Recover,
    Rest,
    Restart,
    Retry,
    Rewind,
    Run,
    Step,
    Store,
    Turn,
    WaitForSpace,
)
from torpor.domain.records import (
    DISK_LOW,
    STOPPED_OUTSIDE,
    AttemptClosed,
    AttemptOpened,
    Change,
    FileCount,
    Recovery,
    RestoreRequest,
    Verdict,
    Workspace,
    WorkspaceError,
)
from torpor.domain.states import Operation, Outage, Outcome, Phase, Stage
from torpor.domain.transitions import MAKES_GENERATION


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    total: int | None
    files: FileCount | None = None


def settle(
    workspace: Workspace,
    verdict: Verdict,
    step: Step,
    look: Circumstances,
    *,
    new_op_id: str,
    progress: Progress | None,
    before: Workspace | None = None,
) -> Change | None:
    """Return the change that this step makes to the row; None if there is none.

    `before`: the row as it was read, if the deadline of `workspace` was moved since.
    """
    before = workspace if before is None else before
    is_credited = before.deadline_at != workspace.deadline_at
    if isinstance(step, Rest | Run | Cancel) and progress is None and not is_credited and _is_as_before(workspace, verdict):
        return None
    seen = with_progress(_as_judged(workspace, verdict, look), progress, look)
    change = _apply(before, seen, step, look, new_op_id)
    return _if_anything_changed(change, look)


def _is_as_before(workspace: Workspace, verdict: Verdict) -> bool:
    """The row already has everything that was observed. This is the most frequent case, so the check is cheap."""
    return (
        verdict.phase is workspace.phase
        and verdict.conditions == workspace.conditions
        and verdict.container_present == workspace.container_present
        and verdict.location == workspace.location
        and verdict.volume_present == workspace.volume_present
        and (workspace.home_seen or not verdict.volume_ready)
        and (verdict.error == workspace.error or workspace.operation is not Operation.NONE)
        and not (verdict.container_present and verdict.volume_ready and workspace.is_archived)
    )


def _as_judged(workspace: Workspace, verdict: Verdict, look: Circumstances) -> Workspace:
    """The row with the verdict, before the step."""
    # A container from outside runs on an archived home. It may write, so the archive no longer holds the current state.
    is_reopened = verdict.container_present and verdict.volume_ready and workspace.is_archived
    has_run_long = (look.now - workspace.phase_changed_at).total_seconds() >= look.tuning.quick_end_s
    seen = replace(
        workspace,
        container_present=verdict.container_present,
        location=verdict.location,
        volume_present=verdict.volume_present,
        home_seen=workspace.home_seen or verdict.volume_ready,
        revision=workspace.revision + 1 if is_reopened else workspace.revision,
        # Also after an error: quick ends before and after a long run are not in a row.
        quick_ends=0
        if workspace.phase is Phase.RUNNING and verdict.phase is not Phase.RUNNING and has_run_long
        else workspace.quick_ends,
    )
    if workspace.operation is not Operation.NONE:
        # An error found during an operation is written by GiveUp, together with operation = NONE, not before.
        conditions = verdict.conditions
        if verdict.error is not None and verdict.error.is_terminal:
            conditions = replace(conditions, healthy=workspace.conditions.healthy)
        phase = workspace.phase if verdict.phase is Phase.ERROR else verdict.phase
        return replace(_with_phase(seen, phase, look.now), conditions=conditions)
    seen = replace(_with_phase(seen, verdict.phase, look.now), conditions=verdict.conditions, error=verdict.error)
    is_lifted = workspace.error is not None and verdict.error is None
    return replace(seen, error_count=0, quick_ends=0, due_at=None) if is_lifted else seen


def _apply(before: Workspace, seen: Workspace, step: Step, look: Circumstances, new_op_id: str) -> Change:
    match step:
        case Rest() | Run() | Cancel():
            return Change(before, seen)
        case Begin(operation):
            begun = _begun(seen, operation, look, new_op_id)
            return _opened(before, begun, guarded=True, message=_why_it_starts(seen, operation))
        case Adopt():
            return _opened(before, _adopted(seen, look), closed=_closed(seen, Outcome.ABANDONED))
        case Again(forgiven):
            return _opened(before, _again(seen, look, forgiven=forgiven))
        case Proceed():
            # The deadline of the stop begins here, after `before_sleep`.
            return Change(before, replace(seen, stage=Stage.CALL, deadline_at=_deadline(seen.operation, look)))
        case Await(until, written_bytes):
            awaiting = replace(_with_written(without_outage(seen, look.now), written_bytes), stage=Stage.SEE, due_at=until)
            return Change(before, awaiting)
        case Store(proved):
            written = _with_written(without_outage(seen, look.now), proved.size_bytes)
            stored = replace(written, archive=proved.archive, deadline_at=_deadline(seen.operation, look))
            return Change(before, stored, proved=proved, if_wish_unchanged=True)
        case Turn(then):
            return _passed_on(before, seen, then, look, new_op_id, Outcome.TURNED)
        case Finish(then, written_bytes):
            return _passed_on(before, _with_written(seen, written_bytes), then, look, new_op_id, Outcome.DONE)
        case Retry(error, at, quick_ends, wants_new_op_id):
            failed = replace(
                without_outage(seen, look.now),
                stage=Stage.BACKOFF,
                due_at=at,
                error=error,
                error_count=seen.error_count if quick_ends > seen.quick_ends else error.error_count,
                quick_ends=quick_ends,
                op_id=new_op_id if wants_new_op_id else seen.op_id,
                # A new op_id is a new row in the history, with its own attempts and progress.
                op_attempt=0 if wants_new_op_id else seen.op_attempt,
                progress_done=0 if wants_new_op_id else seen.progress_done,
                progress_total=None if wants_new_op_id else seen.progress_total,
                progress_files=None if wants_new_op_id else seen.progress_files,
            )
            return Change(before, failed, closed=_failed(seen, error))
        case Postpone(at, outage, message):
            later = replace(
                _postponed(seen, outage, message, look.now),
                stage=Stage.BACKOFF,
                due_at=at,
                deadline_at=_deadline(seen.operation, look),
            )
            return Change(before, later, closed=_closed(seen, Outcome.ABANDONED, message))
        case WaitForSpace(message):
            low = replace(seen.conditions.healthy, reason=DISK_LOW, message=message)
            return Change(before, replace(seen, conditions=replace(seen.conditions, healthy=low)))
        case Restart(at, quick_ends):
            return Change(before, replace(seen, due_at=at, quick_ends=quick_ends))
        case GiveUp(error, quick_ends):
            return Change(before, _in_error(seen, error, look, quick_ends), closed=_failed(seen, error))
        case Recover(request) if request.accept:
            # Claimed in the same write: without an operation the judge would find the same error again.
            return _opened(before, _begun(_accepted(seen, look), Operation.ACCEPTING, look, new_op_id), guarded=True)
        case Recover(request):
            return Change(before, _recovered(seen, request, look))
        case Rewind(restore):
            # Guarded: a request that is withdrawn at the same time is not executed.
            return Change(before, _rewound(seen, restore, look), if_wish_unchanged=True)
        case _:
            assert_never(step)


def _passed_on(
    before: Workspace, seen: Workspace, then: Operation, look: Circumstances, new_op_id: str, outcome: Outcome
) -> Change:
    """One operation has ended; the next, if any, is claimed."""
    closed = _closed(seen, outcome)
    if then is Operation.NONE:
        return Change(before, _let_go(seen, look.now), closed=closed, if_wish_unchanged=outcome is Outcome.DONE)
    begun = _begun(_let_go(seen, look.now), then, look, new_op_id)
    return _opened(before, begun, closed=closed, guarded=True, message=_of_restore(seen, then))


def _begun(seen: Workspace, operation: Operation, look: Circumstances, op_id: str) -> Workspace:
    opened = replace(seen, revision=seen.revision + 1) if operation is Operation.STARTING else seen
    runs_before = operation is Operation.STOPPING and bool(look.before_sleep) and sleeps_by_itself(seen)
    stage = Stage.BEFORE_SLEEP if runs_before else Stage.CALL
    return replace(
        _with_fresh_home(opened, operation),
        operation=operation,
        op_epoch=look.epoch,
        stage=stage,
        due_at=None,
        op_id=op_id,
        op_attempt=1,
        op_takeovers=0,
        op_started_at=look.now,
        deadline_at=_deadline(operation, look, stage),
        progress_done=0,
        progress_total=None,
        progress_files=None,
    )


def _adopted(seen: Workspace, look: Circumstances) -> Workspace:
    """The same operation, continued by another controller. The deadline starts again a limited number of times."""
    may_renew = seen.op_takeovers < look.tuning.max_retries
    # `before_sleep` ended with its controller: it runs again in this attempt.
    stage = Stage.BEFORE_SLEEP if seen.stage is Stage.BEFORE_SLEEP else Stage.CALL
    return replace(
        _with_fresh_home(seen, seen.operation),
        op_epoch=look.epoch,
        stage=stage,
        due_at=None,
        op_attempt=seen.op_attempt + 1,
        op_takeovers=seen.op_takeovers + 1,
        deadline_at=_deadline(seen.operation, look, stage) if may_renew else seen.deadline_at,
        progress_done=0,
        progress_total=None,
        progress_files=None,
    )


def _again(seen: Workspace, look: Circumstances, *, forgiven: bool) -> Workspace:
    return replace(
        _with_fresh_home(seen, seen.operation),
        op_epoch=look.epoch,
        stage=Stage.CALL,
        due_at=None,
        op_attempt=seen.op_attempt + 1,
        error=None if forgiven else seen.error,
        error_count=0 if forgiven else seen.error_count,
        quick_ends=0 if forgiven else seen.quick_ends,
        deadline_at=_deadline(seen.operation, look) if forgiven else seen.deadline_at,
    )


def _with_fresh_home(seen: Workspace, operation: Operation) -> Workspace:
    """Every attempt to fill a home has its own generation."""
    if operation not in MAKES_GENERATION:
        return seen
    return replace(seen, generation=seen.generation + 1, home_seen=False)


def _let_go(seen: Workspace, now: datetime) -> Workspace:
    """No operation in progress. op_id stays: it protects the archive with that name."""
    return replace(
        without_outage(seen, now),
        operation=Operation.NONE,
        stage=Stage.REST,
        due_at=None,
        op_started_at=None,
        deadline_at=None,
        progress_done=0,
        progress_total=None,
        progress_files=None,
        error=None,
        error_count=0,
    )


def _in_error(seen: Workspace, error: WorkspaceError, look: Circumstances, quick_ends: int) -> Workspace:
    # A deleted workspace keeps the phase DELETING with its error, and no operation begins.
    phase = seen.phase if seen.deleted_at is not None else Phase.ERROR
    unhealthy = replace(seen.conditions.healthy, status=False, reason=error.reason.value, message=error.message)
    if seen.conditions.healthy.status:
        unhealthy = replace(unhealthy, last_transition_time=look.now)
    return replace(
        _with_phase(_let_go(seen, look.now), phase, look.now),
        conditions=replace(seen.conditions, healthy=unhealthy),
        error=error,
        error_count=error.error_count,
        quick_ends=quick_ends,
    )


def _recovered(seen: Workspace, request: Recovery, look: Circumstances) -> Workspace:
    return replace(
        _healthy(seen, Phase.ARCHIVED if request.archive else Phase.PENDING, look),
        generation=seen.generation + 1,
        home_seen=False,
        archive=request.archive,
    )


def _rewound(seen: Workspace, request: RestoreRequest, look: Circumstances) -> Workspace:
    """The new generation is later than that of every archive, so no archive counts as the current state of the next home."""
    return replace(
        _with_phase(seen, Phase.ARCHIVED, look.now),
        generation=seen.generation + 1,
        home_seen=False,
        archive=request.archive,
        restored_version=request.wish_version,
    )


def _accepted(seen: Workspace, look: Circumstances) -> Workspace:
    """The home is still expected: also if the operation fails, no other home replaces it."""
    return _healthy(seen, Phase.STANDBY, look)


def _healthy(seen: Workspace, phase: Phase, look: Circumstances) -> Workspace:
    healthy = replace(seen.conditions.healthy, status=True, reason="Healthy", message="", last_transition_time=look.now)
    return replace(
        _with_phase(seen, phase, look.now),
        conditions=replace(seen.conditions, healthy=healthy),
        error=None,
        error_count=0,
        quick_ends=0,
        due_at=None,
    )


def _with_phase(workspace: Workspace, phase: Phase, now: datetime) -> Workspace:
    if phase is workspace.phase:
        return workspace
    return replace(
        workspace,
        phase=phase,
        phase_changed_at=now,
        previous_phase=workspace.phase if phase is Phase.ERROR else workspace.previous_phase,
    )


def with_progress(seen: Workspace, progress: Progress | None, look: Circumstances) -> Workspace:
    """A new maximum of the bytes or files for this op_id moves the deadline."""
    if progress is None or seen.operation is Operation.NONE:
        return seen
    has_more_bytes = progress.done > seen.progress_done
    has_more_files = progress.files is not None and (
        seen.progress_files is None or progress.files.done > seen.progress_files.done
    )
    if not has_more_bytes and not has_more_files:
        return seen
    return replace(
        without_outage(seen, look.now),
        progress_done=progress.done if has_more_bytes else seen.progress_done,
        progress_total=progress.total,
        progress_files=progress.files if has_more_files else seen.progress_files,
        deadline_at=_deadline(seen.operation, look),
    )


def _postponed(seen: Workspace, outage: Outage, message: str, now: datetime) -> Workspace:
    if outage is Outage.RUNTIME:
        # The observation of this pass reached the runtime. A failed observation is recorded by `domain/outage.py`.
        return without_outage(seen, now)
    counted = f"{message} ({seen.attempts} {'attempt' if seen.attempts == 1 else 'attempts'} so far)"
    return with_outage(seen, outage, counted, now)


def _deadline(operation: Operation, look: Circumstances, stage: Stage = Stage.CALL) -> datetime:
    before_s = look.tuning.before_sleep_s if stage is Stage.BEFORE_SLEEP else 0.0
    return look.now + timedelta(seconds=before_s + look.tuning.timeouts_s[operation])


def _why_it_starts(seen: Workspace, operation: Operation) -> str:
    container = seen.conditions.container_ready
    is_stopped = operation is Operation.STARTING and container.reason == STOPPED_OUTSIDE
    return container.message if is_stopped else _of_restore(seen, operation)


def _of_restore(seen: Workspace, operation: Operation) -> str:
    """Why it begins, if a restore of an older archive was requested."""
    if seen.restore is not None:
        return f"the archive {seen.restore.archive.key} was requested in place of the present home"
    request = seen.restore_request
    is_restored = operation is Operation.RESTORING and request is not None and request.archive == seen.archive
    return f"the archive {request.archive.key}, as requested" if request is not None and is_restored else ""


def _opened(
    before: Workspace, after: Workspace, *, closed: AttemptClosed | None = None, guarded: bool = False, message: str = ""
) -> Change:
    assert after.op_id is not None
    opened = AttemptOpened(after.op_id, after.operation, after.op_attempt, after.generation, message)
    return Change(before, after, opened=opened, closed=closed, if_wish_unchanged=guarded)


def _closed(seen: Workspace, outcome: Outcome, message: str = "") -> AttemptClosed | None:
    """The end of the current attempt, if there is one: in BACKOFF it has already ended."""
    if seen.op_id is None or seen.stage not in (Stage.BEFORE_SLEEP, Stage.CALL, Stage.SEE):
        return None
    return AttemptClosed(seen.op_id, seen.op_attempt, outcome, message=message, done_bytes=_written_bytes(seen))


def _with_written(seen: Workspace, written_bytes: int | None) -> Workspace:
    """The written bytes replace the progress, which also counts the bytes that were read back."""
    if written_bytes is None:
        return seen
    return replace(seen, progress_done=written_bytes, progress_total=written_bytes)


def _written_bytes(seen: Workspace) -> int:
    match seen.operation:
        case Operation.RESTORING:
            return seen.progress_done
        case Operation.ARCHIVING | Operation.COPYING | Operation.CREATE_EMPTY_ARCHIVE:
            return seen.progress_done if seen.is_archived else 0
        case _:
            return 0  # STARTING counts packages


def _failed(seen: Workspace, error: WorkspaceError) -> AttemptClosed | None:
    closed = _closed(seen, Outcome.FAILED, error.message)
    return replace(closed, reason=error.reason) if closed else None


def _if_anything_changed(change: Change, look: Circumstances) -> Change | None:
    if change.after == change.before:
        return None
    after = replace(change.after, version=change.before.version + 1, epoch=look.epoch, observed_at=look.now)
    return replace(change, after=after)
