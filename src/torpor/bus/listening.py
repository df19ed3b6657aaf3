"""How is a channel listened to for ever, and when may something have been missed?"""

import asyncio
from collections.abc import Callable

import structlog

from torpor.bus.redis import Bus
from torpor.domain.errors import Unavailable

log = structlog.get_logger()

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


async def listen(bus: Bus, pattern: str, on_message: Callable[[str, bytes], None], on_gap: Callable[[], None]) -> None:
    """Until cancelled. `on_gap` is called once messages are heard again: whoever then reads the database misses nothing."""
    pause_s = FIRST_PAUSE_S
    was_lost = False
    while True:
        try:
            async with bus.subscribed(pattern) as subscription:
                if was_lost:
                    log.info("bus_heard_again", pattern=pattern)
                    on_gap()
                pause_s, was_lost = FIRST_PAUSE_S, False
                while True:
                    on_message(*await subscription.next())
        except Unavailable as out:
            if not was_lost:
                log.warning("bus_lost", pattern=pattern, why=out.message)
            was_lost = True
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
