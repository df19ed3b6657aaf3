"""Listen to a channel forever, and report gaps."""

from collections.abc import Callable

import structlog

from torpor.bus.redis import Bus
from torpor.domain.errors import Unavailable
from torpor.loops import Loop

log = structlog.get_logger()

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


async def listen(
    bus: Bus, pattern: str, on_message: Callable[[str, bytes], None], on_gap: Callable[[], None], *, name: str
) -> None:
    """Run until cancelled. Calls `on_gap` when messages arrive again: a caller that then reads the database is up to date."""
    listener = _ChannelListener(bus, pattern, on_message, on_gap)
    await Loop(name, listener.listen, interval_s=LONGEST_PAUSE_S).run()


class _ChannelListener:
    def __init__(self, bus: Bus, pattern: str, on_message: Callable[[str, bytes], None], on_gap: Callable[[], None]) -> None:
        self._bus = bus
        self._pattern = pattern
        self._on_message = on_message
        self._on_gap = on_gap
        self._was_lost = False
        self._pause_s = FIRST_PAUSE_S

    async def listen(self) -> float:
        """Run until the connection is lost; return how long to wait before the next attempt."""
        was_lost, self._was_lost = self._was_lost, True
        try:
            async with self._bus.subscribed(self._pattern) as subscription:
                if was_lost:
                    log.info("bus_heard_again", pattern=self._pattern)
                    self._on_gap()
                was_lost, self._pause_s = False, FIRST_PAUSE_S
                while True:
                    self._on_message(*await subscription.next())
        except Unavailable as out:
            if not was_lost:
                log.warning("bus_lost", pattern=self._pattern, why=out.message)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s
