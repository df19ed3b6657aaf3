"""Which time must not count against a deadline?

That in which nobody could look (the provider or the database was out, the machine slept, the process was stopped), and that in
which an effect waited for its slot.
"""

from datetime import datetime

from torpor.control.running_effects import RunningEffect


class DeadlineCredit:
    """`patience_s`: a gap between two looks that is longer than this was no pace of ours."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._looked_at: datetime | None = None
        self._lost_s = 0.0
        self._before: tuple[datetime | None, float] = (None, 0.0)
        self._credited_s: dict[str, float] = {}

    def looked(self, now: datetime) -> None:
        self._before = (self._looked_at, self._lost_s)
        if self._looked_at is not None:
            gap_s = (now - self._looked_at).total_seconds()
            if gap_s > self._patience_s:
                self._lost_s += gap_s
        self._looked_at = now

    def held_back(self) -> None:
        """The last look led to nothing, on purpose: it is as if nobody had looked."""
        self._looked_at, self._lost_s = self._before

    def owed_s(self, workspace_id: str, flight: RunningEffect | None, monotonic_s: float) -> float:
        """For something under way: what was lost since it was last credited (or first asked for)."""
        owed_s = self._lost_s - self._credited_s.setdefault(workspace_id, self._lost_s)
        if flight is None:
            return owed_s
        return owed_s + (flight.waited_s if flight.has_slot else monotonic_s - flight.waits_since)

    def credit(self, workspace_id: str, flight: RunningEffect | None, monotonic_s: float) -> None:
        self._credited_s[workspace_id] = self._lost_s
        if flight is not None:
            flight.waits_since = monotonic_s
            flight.waited_s = 0.0

    def forget(self, workspace_id: str) -> None:
        self._credited_s.pop(workspace_id, None)
