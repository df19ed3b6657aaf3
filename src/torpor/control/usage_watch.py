"""Sample the CPU and memory use of the running workspaces, for the plots of the dashboard.

Each controller samples the workspaces of its own shards: one call of the runtime and one message to the bus each time.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from torpor.domain.usage import Usage
from torpor.loops import Loop, stop
from torpor.ports import Runtime, UsageSeries, WorkspaceFilter, any_workspace

SAMPLE_EVERY_S = 15.0
SAMPLING_S = 30.0
"""The longest time that a runtime may take for a sample of all its containers."""
TURN_S = 60.0
PAUSE_FACTOR = 20
"""A sample that takes long is followed by a pause of this many times its duration: sampling uses at most 5 % of one core."""


class UsageWatch:
    def __init__(
        self,
        runtime: Runtime,
        series: UsageSeries,
        *,
        concerns: WorkspaceFilter = any_workspace,
        every_s: float = SAMPLE_EVERY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`concerns`: whether this controller samples a workspace."""
        self._runtime = runtime
        self._concerns = concerns
        self._series = series
        self._every_s = every_s
        self._monotonic = monotonic
        self._sampling: asyncio.Task[Mapping[str, Usage]] | None = None
        self._rests_until = 0.0

    async def run(self) -> None:
        """Until cancelled. A failed sample leaves a gap in the plots."""
        try:
            await Loop("usage", self.sample, interval_s=self._every_s, turn_s=TURN_S).run()
        finally:
            if self._sampling is not None:
                await stop(self._sampling)

    async def sample(self) -> None:
        began = self._monotonic()
        if began < self._rests_until:
            return
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.ensure_future(self._measure())
        # A sample that takes too long continues in its thread; the next turn waits for it and starts no second one.
        async with asyncio.timeout(SAMPLING_S):
            usages = await asyncio.shield(self._sampling)
        self._rests_until = began + PAUSE_FACTOR * (self._monotonic() - began)
        await self._series.append(usages)

    async def _measure(self) -> Mapping[str, Usage]:
        return await self._runtime.usage(self._concerns)
