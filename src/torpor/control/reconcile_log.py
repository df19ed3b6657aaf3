"""Log each change of a workspace, and update the metrics.

A change of phase, operation, attempt or error has level info; progress has level debug.
"""

import structlog

from torpor import metrics
from torpor.domain.records import Change
from torpor.domain.states import Operation, Outcome, Phase

log = structlog.get_logger()

MOVES_BYTES = {Operation.ARCHIVING: "packed", Operation.RESTORING: "restored"}


def log_change(change: Change, step: object) -> None:
    before, after = change.before, change.after
    is_news = (before.phase, before.operation, before.op_attempt, before.error) != (
        after.phase,
        after.operation,
        after.op_attempt,
        after.error,
    )
    (log.info if is_news else log.debug)(
        "reconciled",
        workspace=after.id,
        name=after.name,
        wish=after.desired_state.value,
        step=type(step).__name__,
        phase=after.phase.value,
        operation=after.operation.value,
        attempt=after.op_attempt if after.operation is not Operation.NONE else None,
        error=after.error.reason.value if after.error else None,
        epoch=after.epoch,
    )
    _count(change)


def _count(change: Change) -> None:
    before, after, closed = change.before, change.after, change.closed
    if closed is not None:
        metrics.operations_total.labels(before.operation.value, closed.outcome.value).inc()
        if before.operation in MOVES_BYTES and closed.outcome is Outcome.DONE:
            metrics.archive_bytes_total.labels(MOVES_BYTES[before.operation]).inc(closed.done_bytes)
    at = after.observed_at
    if at is None:
        return
    is_over = before.operation is not Operation.NONE and after.op_started_at != before.op_started_at
    if is_over and before.op_started_at is not None:
        metrics.operation_seconds.labels(before.operation.value).observe((at - before.op_started_at).total_seconds())
    if after.phase is Phase.RUNNING and before.phase is not Phase.RUNNING and _was_woken(change):
        metrics.wake_seconds.observe((at - after.wished_at).total_seconds())


def _was_woken(change: Change) -> bool:
    """Whether a request woke it. The restart of a program that ended is not a wake."""
    asleep_since = change.before.conditions.container_ready.last_transition_time
    return asleep_since is not None and asleep_since <= change.after.wished_at
