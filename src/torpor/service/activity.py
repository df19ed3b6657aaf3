"""Who is being used just now? Asked of the bus in one go, and told to it without anybody waiting for that."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import structlog

from torpor.domain.errors import Unavailable
from torpor.domain.idle import UseReport
from torpor.loops import Loop, stop
from torpor.ports import Activity

log = structlog.get_logger()

# Parts of a lease: how long whoever tells the bus something waits for it, and then until the next try. Together they are well
# within the pause after which the leader asks a second time (`control.ttl`).
PATIENCE_PART = 1 / 3
RETRY_PART = 1 / 6
LONGEST_PATIENCE_S = 5.0
LONGEST_RETRY_S = 1.0
# A touch that moves an idle timer by less than this, or by less than this part of it, is not worth a message.
NOT_WORTH_S = 5.0
NOT_WORTH_PART = 0.1
# Without a touch there is nothing to tell; a turn shows all the same that the loop is alive.
LOOK_EVERY_S = 10.0
TURN_S = LONGEST_PATIENCE_S + LONGEST_RETRY_S
"""How long it takes to tell the bus something, or to find that it cannot be told."""

Ask: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, UseReport]]]
"""Of each of these workspaces; BusOut when the bus cannot be asked."""
Touch: TypeAlias = Callable[[str, float], None]
"""This workspace was used just now, and stays awake for so many seconds. Returns at once and never fails."""
WriteDown: TypeAlias = Callable[[Collection[str]], Awaitable[None]]
"""These workspaces are in use: in the database, where whoever can reach the bus looks as well."""


class BusOut(Unavailable):
    """Nobody can be put to sleep just now: who is used cannot be asked."""


def timeout_s(lease_s: float) -> float:
    return min(LONGEST_PATIENCE_S, lease_s * PATIENCE_PART)


def retry_s(lease_s: float) -> float:
    return min(LONGEST_RETRY_S, lease_s * RETRY_PART)


def use_reader(activity: Activity) -> Ask:
    async def ask(workspace_ids: Sequence[str]) -> Mapping[str, UseReport]:
        try:
            uses = await activity.uses(workspace_ids)
            # Asked after the uses: a bus that forgot them before it answered is caught at it.
            memory_s = await activity.memory_s()
        except Unavailable as out:
            raise BusOut(out.message) from out
        return {one: UseReport(use.connections, use.idle_timer_s, memory_s, use.busy) for one, use in uses.items()}

    return ask


def discard_touch(workspace_id: str, idle_s: float) -> None:
    """Where there is no bus, nobody is told."""


async def discard_use(workspace_ids: Collection[str]) -> None:
    """Where there is no database."""


class UseFallback:
    """What the bus cannot be told is written down: it may be only we who cannot reach it, and the leader can.

    At most three times in a lease, and nobody waits for it.
    """

    def __init__(self, write_down: WriteDown, *, lease_s: float, now: Callable[[], float]) -> None:
        self._write_down = write_down
        self._every_s = lease_s / 3
        self._now = now
        self._next_at = float("-inf")
        self._writing: asyncio.Task[None] | None = None

    def use(self, workspace_ids: Collection[str]) -> None:
        is_writing = self._writing is not None and not self._writing.done()
        if workspace_ids and not is_writing and self._now() >= self._next_at:
            self._next_at = self._now() + self._every_s
            self._writing = asyncio.create_task(self._write(workspace_ids))

    async def close(self) -> None:
        if self._writing is not None:
            await stop(self._writing)

    async def _write(self, workspace_ids: Collection[str]) -> None:
        try:
            await self._write_down(workspace_ids)
        except Unavailable as out:
            log.warning("use_not_written_down", why=out.message, workspaces=len(workspace_ids))
        except Exception:
            log.exception("use_not_written_down", workspaces=len(workspace_ids))


class TouchQueue:
    """Starts idle timers in the background, many with one message. What could not be told is told as soon as it can be."""

    def __init__(self, activity: Activity, *, lease_s: float = 30, now: Callable[[], float] = time.monotonic) -> None:
        self._activity = activity
        self._lease_s = lease_s
        self._now = now
        self._untold: dict[str, float] = {}
        """When each timer must run out."""
        self._told: dict[str, float] = {}
        self._wake = asyncio.Event()

    def touch(self, workspace_id: str, idle_s: float) -> None:
        until = self._now() + idle_s
        known = self._untold.get(workspace_id) or self._told.get(workspace_id, float("-inf"))
        # Either way: one whose TTL was lowered must not be kept awake by what was told before, nor be thought awake by it.
        if abs(until - known) >= min(NOT_WORTH_S, idle_s * NOT_WORTH_PART):
            self._untold[workspace_id] = until
            self._wake.set()

    async def run(self, write_down: WriteDown = discard_use) -> None:
        """Until cancelled."""
        fall_back = UseFallback(write_down, lease_s=self._lease_s, now=self._now)
        again_s = retry_s(self._lease_s)

        async def turn() -> float | None:
            is_told = False
            try:
                is_told = await self.tell()
            finally:
                if not is_told:
                    fall_back.use(tuple(self._untold))
            if is_told:
                return None
            # Here, not as the pause between turns: a touch ends that, and each would ask a bus that is out.
            await asyncio.sleep(again_s)
            return 0.0

        try:
            await Loop("touches", turn, interval_s=LOOK_EVERY_S, turn_s=TURN_S, retry_s=again_s, wake=self._wake).run()
        finally:
            await fall_back.close()

    async def tell(self) -> bool:
        """One message with everything there is to tell; False when it did not arrive."""
        now = self._now()
        self._told = {workspace_id: until for workspace_id, until in self._told.items() if until > now}
        batch, self._untold = {one: until for one, until in self._untold.items() if until > now}, {}
        if not batch:
            return True
        try:
            async with asyncio.timeout(timeout_s(self._lease_s)):
                await self._activity.touch({workspace_id: until - now for workspace_id, until in batch.items()})
        except BaseException as error:
            # Whatever it was: what was touched again meanwhile stands, and the rest is told with the next message.
            self._untold = batch | self._untold
            if not isinstance(error, Unavailable | TimeoutError):
                raise
            log.debug("touch_not_told", why=str(error))
            return False
        self._told |= batch
        return True
