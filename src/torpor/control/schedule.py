"""When is which workspace looked at again?

Everything every 10 s, what is under way every 2 s, what was hinted at at once. A look that is due earlier than that (a
deadline, a retry, a program about to be ready) has its own time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

# After a start was carried out its program is usually ready within moments: look soon, then less and less often.
SOON_S = (0.03, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


@dataclass(frozen=True, slots=True)
class Intervals:
    idle_s: float = 10.0
    active_s: float = 2.0


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
        """Those whose own look a look at everything came before: it takes them along, until one has succeeded."""

    def hint(self, *workspace_ids: str) -> None:
        """Look at these at once; without any: at everything."""
        # Kept apart from what is due: a hint that comes while its workspace is being looked at is good for another look.
        self._hints.update(workspace_ids)
        if not workspace_ids:
            self._full_at = self._clock()
        self._hinted.set()

    def look_again(self, workspace_id: str, in_s: float | None) -> None:
        """Not later than this (None: with everything else)."""
        if in_s is None:
            self._due.pop(workspace_id, None)
        else:
            self._due[workspace_id] = self._clock() + max(0.0, in_s)

    def retry_everything(self) -> None:
        """The last look at everything did not work out."""
        self._full_at = min(self._full_at, self._clock() + self.active_s)

    def took_along(self) -> None:
        """The last look at everything did work out."""
        self.along = frozenset()

    async def next(self) -> frozenset[str] | None:
        """Wait until something is due: these workspaces, or None for everything."""
        # Part of the controller's turn. It waits for an event only, and `asyncio.timeout` keeps a cancellation apart.
        while True:
            self._hinted.clear()
            now = self._clock()
            if now >= self._full_at:
                self._full_at = now + self._idle_s
                # A row at rest is not read with everything: what was to be seen of it would be seen much later.
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
