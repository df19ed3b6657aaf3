"""Measure what each home takes on its disk, and store it. A duty of the leader.

A home is measured when it is new, after its workspace has stopped, and now and then while it runs: one at a time.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from torpor.domain.errors import Unavailable
from torpor.loops import TURN_S, report_progress
from torpor.ports import Home, Runtime
from torpor.store.controller_store import ControllerStore

log = structlog.get_logger()

WHILE_RUNNING_S = 600.0
MEASURING_S = 660.0
"""Longer than a runtime takes to give up by itself."""
AT_ONCE = 20


class HomeSizes:
    name = "home-sizes"
    interval_s = 60.0
    turn_s = MEASURING_S + TURN_S

    def __init__(
        self,
        store: ControllerStore,
        runtime: Runtime,
        *,
        while_running_s: float = WHILE_RUNNING_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._runtime = runtime
        self._while_running_s = while_running_s
        self._monotonic = monotonic
        self._not_before: dict[Home, float] = {}

    async def do(self, term: int) -> None:
        now = self._monotonic()
        self._not_before = {home: at for home, at in self._not_before.items() if at > now}
        # Part of one turn: each home is measured, or put off, so that the next page is another.
        while True:
            homes = await self._store.homes_to_measure(
                while_running_s=self._while_running_s, besides=self._not_before, limit=AT_ONCE
            )
            for home, began_at in homes:
                size_bytes = await self._measure(home)
                if size_bytes is None:
                    self._not_before[home] = self._monotonic() + self._while_running_s
                else:
                    await self._store.write_home_size(home, size_bytes, began_at, term=term)
                report_progress()
            if len(homes) < AT_ONCE:
                return

    async def _measure(self, home: Home) -> int | None:
        try:
            async with asyncio.timeout(MEASURING_S):
                return await self._runtime.home_bytes(home)
        except (TimeoutError, Unavailable) as error:
            log.warning("home_not_measured", workspace=home.workspace_id, why=str(error) or "no answer in time")
            return None

    def rest(self) -> None:
        self._not_before.clear()
