"""Measure the time that must not count against the deadline of an operation.

This is the time without observations (the provider or the database was out, the machine was suspended, the process was
stopped), and the time in which an effect waited for its slot. `domain/reconcile.py` adds it to the deadline.
"""

from datetime import datetime

from torpor.control.running_effects import RunningEffect
from torpor.domain.records import Workspace
from torpor.domain.states import Operation


class DeadlineCredit:
    """`patience_s`: a gap between two observations that is longer than this does not count."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._observed_at: datetime | None = None
        self._lost_s = 0.0
        self._before: tuple[datetime | None, float] = (None, 0.0)
        self._credited_s: dict[str, float] = {}

    def observed(self, now: datetime) -> None:
        self._before = (self._observed_at, self._lost_s)
        if self._observed_at is not None:
            gap_s = (now - self._observed_at).total_seconds()
            if gap_s > self._patience_s:
                self._lost_s += gap_s
        self._observed_at = now

    def discard_last(self) -> None:
        """The last observation was not used: count as if it had not been made."""
        self._observed_at, self._lost_s = self._before

    def paused_s(self, workspace: Workspace, effect: RunningEffect | None, now: datetime, monotonic_s: float) -> float:
        """Return what was lost since the last credit (or the first call), but only after the deadline has passed.

        Before that the credit makes no difference, and each credit is a write.
        """
        if workspace.operation is Operation.NONE:
            self._credited_s.pop(workspace.id, None)
            return 0.0
        lost_s = self._lost_s - self._credited_s.setdefault(workspace.id, self._lost_s)
        if effect is not None:
            lost_s += effect.waited_s if effect.has_slot else monotonic_s - effect.waits_since
        is_late = workspace.deadline_at is not None and now >= workspace.deadline_at
        return max(0.0, lost_s) if is_late else 0.0

    def credit(self, workspace_id: str, effect: RunningEffect | None, monotonic_s: float) -> None:
        """The deadline was moved: what was lost until now does not count a second time."""
        self._credited_s[workspace_id] = self._lost_s
        if effect is not None:
            effect.waits_since = monotonic_s
            effect.waited_s = 0.0
