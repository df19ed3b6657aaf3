"""Measure the number of workspaces by phase and the size of all homes, and remove old members. A duty of the leader."""

import asyncio
import math

from torpor import metrics
from torpor.domain.states import Phase
from torpor.loops import TURN_S
from torpor.store.controller_store import ControllerStore


class Census:
    """A duty of the leader."""

    name = "census"
    interval_s = 60.0
    turn_s = TURN_S

    def __init__(self, store: ControllerStore) -> None:
        self.wake = asyncio.Event()
        self._store = store

    async def do(self, term: int) -> None:
        await self._store.bury(term=term)
        counts = await self._store.count_phases()
        for phase in Phase:
            metrics.workspaces.labels(phase.value).set(counts.get(phase, 0))
        metrics.home_bytes.set(await self._store.all_home_bytes())

    def rest(self) -> None:
        metrics.workspaces.clear()
        metrics.home_bytes.set(math.nan)
