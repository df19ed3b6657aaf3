"""Report busy workspaces to the bus, so that the idle watch does not stop them.

Each controller checks the workspaces of its own shards. A report is valid for one lease, like a connection.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from torpor.domain.busy import Work, WorkHistory, busy_with, with_observation
from torpor.domain.errors import Unavailable
from torpor.loops import Loop
from torpor.ports import Activity, Runtime, WorkspaceFilter, any_workspace
from torpor.service.activity import TURN_S, RecordUse, UseFallback, discard_use, timeout_s

# Part of a lease: two checks may fail before the last report expires.
LOOK_AFTER_PART = 1 / 3
# How long a runtime may take to check all of its processes.
LOOKING_S = 30.0


class BusyWatch:
    def __init__(
        self,
        runtime: Runtime,
        activity: Activity,
        *,
        lease_s: float,
        foreground_ttl_s: float,
        counts_cpu: Callable[[str], bool],
        concerns: WorkspaceFilter = any_workspace,
        write_down: RecordUse = discard_use,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counts_cpu`: whether the CPU use of a workspace of this template keeps it awake. `concerns`: whether this controller
        checks a workspace."""
        self._runtime = runtime
        self._activity = activity
        self._lease_s = lease_s
        self._foreground_ttl_s = foreground_ttl_s
        self._counts_cpu = counts_cpu
        self._concerns = concerns
        self._monotonic = monotonic
        self._fall_back = UseFallback(write_down, lease_s=lease_s, now=monotonic)
        self._histories: Mapping[str, WorkHistory] = {}

    async def run(self) -> None:
        """Run until canceled."""
        every_s = self._lease_s * LOOK_AFTER_PART
        try:
            await Loop("busy", self.look, interval_s=every_s, turn_s=LOOKING_S + TURN_S).run()
        finally:
            await self._fall_back.close()

    async def look(self) -> None:
        """Check the containers, and report the busy ones in one message."""
        async with asyncio.timeout(LOOKING_S):
            works = await self._runtime.work(self._concerns)
        now = self._monotonic()
        self._histories = {
            one: with_observation(self._histories.get(one, WorkHistory()), work, now) for one, work in works.items()
        }
        busy = {one: words for one, work in works.items() if (words := self._busy_with(one, work, now)) is not None}
        if busy:
            await self._tell(busy)

    def _busy_with(self, workspace_id: str, work: Work, now: float) -> str | None:
        return busy_with(
            self._histories[workspace_id],
            work,
            now,
            foreground_ttl_s=self._foreground_ttl_s,
            counts_cpu=self._counts_cpu(work.template),
        )

    async def _tell(self, busy: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(timeout_s(self._lease_s)):
                await self._activity.busy(busy, lease_s=self._lease_s)
        except (Unavailable, TimeoutError) as out:
            # The leader may reach the bus although this process cannot.
            self._fall_back.use(tuple(busy))
            raise Unavailable(
                f"the bus did not accept the list of busy workspaces: {str(out) or 'no response in time'}"
            ) from out
