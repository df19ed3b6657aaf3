"""Read from the bus which workspaces are in use, and report use to it in the background."""

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

# Parts of a lease: how long a report to the bus may take, and how long to wait before the next try. Together they are well
# within the pause after which the leader asks a second time (`control.idle_watch`).
PATIENCE_PART = 1 / 3
RETRY_PART = 1 / 6
LONGEST_PATIENCE_S = 5.0
LONGEST_RETRY_S = 1.0
# A touch that moves an idle timer by less than this, or by less than this part of the timer, is not sent.
NOT_WORTH_S = 5.0
NOT_WORTH_PART = 0.1
# Without touches the loop sends no message. It turns all the same, which shows that it is alive.
LOOK_EVERY_S = 10.0
TURN_S = LONGEST_PATIENCE_S + LONGEST_RETRY_S
"""The longest time in which a report reaches the bus or fails."""

ReadUse: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, UseReport]]]
"""The use of each of these workspaces; BusOut when the bus cannot be asked."""
Touch: TypeAlias = Callable[[str, float], None]
"""Report that this workspace was used now and stays awake for so many seconds. Returns at once and never fails."""
RecordUse: TypeAlias = Callable[[Collection[str]], Awaitable[None]]
"""Record in the database that these workspaces are in use. The leader reads it there, too."""


class BusOut(Unavailable):
    """The bus cannot be asked which workspaces are used, so no workspace is put to sleep."""


def timeout_s(lease_s: float) -> float:
    return min(LONGEST_PATIENCE_S, lease_s * PATIENCE_PART)


def retry_s(lease_s: float) -> float:
    return min(LONGEST_RETRY_S, lease_s * RETRY_PART)


def use_reader(activity: Activity) -> ReadUse:
    async def ask(workspace_ids: Sequence[str]) -> Mapping[str, UseReport]:
        try:
            uses = await activity.uses(workspace_ids)
            # Asked after the uses: if the bus lost its memory before it answered, the memory is younger than the question.
            memory_s = await activity.memory_s()
        except Unavailable as out:
            raise BusOut(out.message) from out
        return {one: UseReport(use.connections, use.idle_timer_s, memory_s, use.busy) for one, use in uses.items()}

    return ask


def discard_touch(workspace_id: str, idle_s: float) -> None:
    """For processes without a bus."""


async def discard_use(workspace_ids: Collection[str]) -> None:
    """For processes without a database."""


class UseFallback:
    """Record use in the database while the bus cannot be reached, because the leader may still be able to reach the bus.

    It writes at most three times in a lease, in the background.
    """

    def __init__(self, write_down: RecordUse, *, lease_s: float, now: Callable[[], float]) -> None:
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
    """Start idle timers in the background, many with one message. A message that fails is sent again as soon as possible."""

    def __init__(self, activity: Activity, *, lease_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._activity = activity
        self._lease_s = lease_s
        self._now = now
        self._untold: dict[str, float] = {}
        """When each timer must expire."""
        self._told: dict[str, float] = {}
        self._wake = asyncio.Event()

    def touch(self, workspace_id: str, idle_s: float) -> None:
        until = self._now() + idle_s
        known = self._untold.get(workspace_id) or self._told.get(workspace_id, float("-inf"))
        # In both directions: after a TTL is lowered, the longer timer that was sent before must not keep the workspace awake.
        if abs(until - known) >= min(NOT_WORTH_S, idle_s * NOT_WORTH_PART):
            self._untold[workspace_id] = until
            self._wake.set()

    async def run(self, write_down: RecordUse = discard_use) -> None:
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
            # Slept here and not as the pause between turns, because a touch ends that pause and would retry at once.
            await asyncio.sleep(again_s)
            return 0.0

        try:
            await Loop("touches", turn, interval_s=LOOK_EVERY_S, turn_s=TURN_S, retry_s=again_s, wake=self._wake).run()
        finally:
            await fall_back.close()

    async def tell(self) -> bool:
        """Send one message with all pending touches; False when it did not arrive."""
        now = self._now()
        self._told = {workspace_id: until for workspace_id, until in self._told.items() if until > now}
        batch, self._untold = {one: until for one, until in self._untold.items() if until > now}, {}
        if not batch:
            return True
        try:
            async with asyncio.timeout(timeout_s(self._lease_s)):
                await self._activity.touch({workspace_id: until - now for workspace_id, until in batch.items()})
        except BaseException as error:
            # On any error: newer touches win, and the others go with the next message.
            self._untold = batch | self._untold
            if not isinstance(error, Unavailable | TimeoutError):
                raise
            log.debug("touch_not_told", why=str(error))
            return False
        self._told |= batch
        return True
