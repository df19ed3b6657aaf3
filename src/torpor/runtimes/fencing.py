"""Run one verb at a time for each workspace, and refuse callers with an outdated epoch."""

import asyncio
from weakref import WeakValueDictionary

from torpor.domain.errors import Code, Failed
from torpor.ports import Fence


def admit(fence: Fence, newest: int) -> None:
    """Raise STALE_EPOCH for a caller with an older epoch than the newest one that is known."""
    if fence.epoch < newest:
        raise Failed(Code.STALE_EPOCH, f"epoch {fence.epoch} is outdated: epoch {newest} has been seen", seen=newest)


class WorkspaceLocks:
    """A lock exists only while a call holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, workspace_id: str) -> asyncio.Lock:
        lock = self._locks.get(workspace_id)
        if lock is None:
            lock = self._locks[workspace_id] = asyncio.Lock()
        return lock
