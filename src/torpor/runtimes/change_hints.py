"""Report workspaces that change as soon as the engine says so.

What an engine says is only a hint: a message that is lost, or a stream that breaks, costs the time until the next full resync.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import structlog

from torpor.domain.errors import TorporError
from torpor.loops import Loop, report_progress, stop

log = structlog.get_logger()

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
QUIET_S = 30.0
"""An engine may say nothing for days; the watchdog hears from the loop this often."""

ChangeStream = Callable[[Callable[[], None]], AsyncGenerator[str, None]]
"""The workspaces that change, until the connection is lost. It calls its argument when it is connected."""


class ChangeHints:
    def __init__(self, stream: ChangeStream, on_change: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_change = on_change
        self._is_lost = False
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        """Until cancelled."""
        await Loop("engine-events", self._listen, interval_s=LONGEST_PAUSE_S).run()

    async def _listen(self) -> float:
        """Listen until the stream ends; return the pause before the next attempt."""
        reading = asyncio.ensure_future(self._read())
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=QUIET_S)
                report_progress()
            reading.result()
            why = "the engine ended the stream"
        except TorporError as error:
            why = error.message
        finally:
            await stop(reading)
        if not self._is_lost:
            log.warning("engine_events_lost", why=why)
        self._is_lost = True
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    async def _read(self) -> None:
        async with contextlib.aclosing(self._stream(self._has_connected)) as changes:
            async for workspace_id in changes:
                self._on_change(workspace_id)

    def _has_connected(self) -> None:
        if self._is_lost:
            log.info("engine_events_resumed")
        self._is_lost, self._pause_s = False, FIRST_PAUSE_S
