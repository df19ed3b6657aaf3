"""Schedule the reconcile passes of workspaces.

A full pass comes every 10 s, a pass over workspaces with an operation in progress every 2 s, and a pass after a hint at once. A
deadline, a retry or a starting program can make a pass due earlier.
"""

import asyncio
from collections.abc import Callable

from torpor.domain.tuning import Intervals

# A started program is usually ready soon: the passes come soon at first, then less often.
SOON_S = (0.03, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Schedule:
    """Times are monotonic seconds of this process."""

    def __init__(self, intervals: Intervals, clock: Callable[[], float]) -> None:
        self.active_s = intervals.active_s
        self._idle_s = intervals.idle_s
        self._clock = clock
        self._due: dict[str, float] = {}
        self._hints: set[str] = set()
        self._full_at = clock()
        self._hinted = asyncio.Event()
        self.along: frozenset[str] = frozenset()
        """Workspaces that were due when a full pass began: full passes include them until one succeeds."""

    def hint(self, *workspace_ids: str) -> None:
        """Reconcile these at once; without arguments: all."""
        # Separate from `_due`: a hint during a pass over its workspace leads to another pass.
        self._hints.update(workspace_ids)
        if not workspace_ids:
            self._full_at = self._clock()
        self._hinted.set()

    def look_again(self, workspace_id: str, in_s: float | None) -> None:
        """Reconcile it after at most this time (None: with the next full pass)."""
        if in_s is None:
            self._due.pop(workspace_id, None)
        else:
            self._due[workspace_id] = self._clock() + max(0.0, in_s)

    def retry_everything(self) -> None:
        """The last full pass failed: repeat it soon."""
        self._full_at = min(self._full_at, self._clock() + self.active_s)

    def took_along(self) -> None:
        """The last full pass succeeded."""
        self.along = frozenset()

    async def next(self) -> frozenset[str] | None:
        """Wait until a pass is due; return its workspaces, or None for a full pass."""
        # Part of the controller's turn. It only waits for an event, and `asyncio.timeout` does not hide a cancellation.
        while True:
            self._hinted.clear()
            now = self._clock()
            if now >= self._full_at:
                self._full_at = now + self._idle_s
                # A full pass does not read all rows at rest, so the due ones are remembered for it.
                self.along |= self._hints | self._due.keys()
                self._due.clear()
                self._hints.clear()
                return None
            due = self._hints | {workspace_id for workspace_id, at in self._due.items() if at <= now}
            if due:
                self._hints.clear()
                for workspace_id in due:
                    self._due.pop(workspace_id, None)
                return frozenset(due)
            wait_s = min([self._full_at, *self._due.values()]) - now
            try:
                async with asyncio.timeout(wait_s):
                    await self._hinted.wait()
            except TimeoutError:
                continue
