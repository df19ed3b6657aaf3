"""What must run once, and how is it kept running?

Duties of the leader. One that fails skips its turn and no other's; one that finds out that somebody else leads ends them all.
"""

import asyncio
from typing import Protocol

import structlog

from torpor.domain.errors import Deposed, Unavailable

log = structlog.get_logger()


class Duty(Protocol):
    name: str
    interval_s: float
    wake: asyncio.Event
    """Set: there is something to do now."""

    async def do(self, term: int) -> None:
        """One turn. Everything it writes asks first whether this term still stands (`store.leader.require_term`)."""
        ...

    def rest(self) -> None:
        """The lead is lost: what only a leader knows is forgotten."""
        ...


async def tend(duty: Duty, term: int) -> None:
    """Until cancelled, or Deposed."""
    while True:
        duty.wake.clear()
        try:
            await duty.do(term)
        except Deposed:
            raise
        except Unavailable as out:
            log.warning("duty_skipped", duty=duty.name, why=out.message)
        except Exception:
            log.exception("duty_broke", duty=duty.name)
        try:
            async with asyncio.timeout(duty.interval_s):
                await duty.wake.wait()
        except TimeoutError:
            continue
