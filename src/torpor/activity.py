"""Who is being used just now? Asked of the bus in one go, and told to it without anybody waiting for that."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import structlog

from torpor.domain.errors import Unavailable
from torpor.domain.idle import BusSays
from torpor.ports import Activity

log = structlog.get_logger()

PATIENCE_S = 5.0
RETRY_S = 1.0
# A touch that moves an idle timer by less than this, or by less than this part of it, is not worth a message.
NOT_WORTH_S = 5.0
NOT_WORTH_PART = 0.1

Ask: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, BusSays]]]
"""Of each of these workspaces; Unavailable when the bus cannot be asked."""
Touch: TypeAlias = Callable[[str, float], None]
"""This workspace was used just now, and stays awake for so many seconds. Returns at once and never fails."""


def asking(activity: Activity) -> Ask:
    async def ask(workspace_ids: Sequence[str]) -> Mapping[str, BusSays]:
        uses = await activity.uses(workspace_ids)
        # Asked after the uses: a bus that forgot them before it answered is caught at it.
        memory_s = await activity.memory_s()
        return {workspace_id: BusSays(use.connections, use.idle_timer_s, memory_s) for workspace_id, use in uses.items()}

    return ask


def ignored(workspace_id: str, idle_s: float) -> None:
    """Where there is no bus, nobody is told."""


class Touches:
    """Starts idle timers in the background, many with one message. What could not be told is told as soon as it can be."""

    def __init__(self, activity: Activity, *, now: Callable[[], float] = time.monotonic) -> None:
        self._activity = activity
        self._now = now
        self._untold: dict[str, float] = {}
        """When each timer must run out, at the earliest."""
        self._told: dict[str, float] = {}
        self._wake = asyncio.Event()

    def touch(self, workspace_id: str, idle_s: float) -> None:
        until = self._now() + idle_s
        known = self._untold.get(workspace_id) or self._told.get(workspace_id, float("-inf"))
        if until - known >= min(NOT_WORTH_S, idle_s * NOT_WORTH_PART):
            self._untold[workspace_id] = until
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                is_told = await self.tell()
            except Exception:
                log.exception("touch_not_told")
                is_told = False
            if not is_told:
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def tell(self) -> bool:
        """One message with everything there is to tell; False when it did not arrive."""
        now = self._now()
        self._told = {workspace_id: until for workspace_id, until in self._told.items() if until > now}
        batch, self._untold = {one: until for one, until in self._untold.items() if until > now}, {}
        if not batch:
            return True
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._activity.touch({workspace_id: until - now for workspace_id, until in batch.items()})
        except (Unavailable, TimeoutError) as out:
            log.debug("touch_not_told", why=str(out))
            self._untold = batch | self._untold
            return False
        self._told |= batch
        return True
