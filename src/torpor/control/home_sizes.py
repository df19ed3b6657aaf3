"""Measure the size of each home on disk, and store it. A duty of the leader.

A home is measured when it is new, after its workspace has stopped, and at intervals while it runs, one home at a time.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import structlog

from torpor.domain.errors import Unavailable
from torpor.loops import TURN_S, report_progress
from torpor.ports import Home, Runtime
from torpor.store.controller_store import ControllerStore

log = structlog.get_logger()

WHILE_RUNNING_S = 600.0
MEASURING_S = 660.0
"""Longer than the timeout of a runtime."""
AT_ONCE = 20


async def _not_recorded(_workspace_id: str, _size_bytes: int) -> None:
    pass


class HomeSizes:
    name = "home-sizes"
    interval_s = 60.0
    turn_s = MEASURING_S + TURN_S

    def __init__(
        self,
        store: ControllerStore,
        runtime: Runtime,
        *,
        record: Callable[[str, int], Awaitable[None]] = _not_recorded,
        while_running_s: float = WHILE_RUNNING_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`record` gets the workspace and the size of each measurement, for plots."""
        self.wake = asyncio.Event()
        self._store = store
        self._runtime = runtime
        self._record = record
        self._while_running_s = while_running_s
        self._monotonic = monotonic
        self._not_before: dict[Home, float] = {}

    async def do(self, term: int) -> None:
        now = self._monotonic()
        self._not_before = {home: at for home, at in self._not_before.items() if at > now}
        # Part of one turn: each home is measured or postponed, so the next page has other homes.
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
                    await self._record_size(home, size_bytes)
                report_progress()
            if len(homes) < AT_ONCE:
                return

    async def _record_size(self, home: Home, size_bytes: int) -> None:
        """The size is stored already; a bus that does not respond only leaves a gap in a plot."""
        with contextlib.suppress(Unavailable):
            await self._record(home.workspace_id, size_bytes)

    async def _measure(self, home: Home) -> int | None:
        try:
            async with asyncio.timeout(MEASURING_S):
                return await self._runtime.home_bytes(home)
        except (TimeoutError, Unavailable) as error:
            log.warning("home_not_measured", workspace=home.workspace_id, why=str(error) or "no answer in time")
            return None

    def rest(self) -> None:
        self._not_before.clear()
