"""What must run once, and how is it kept running?

Duties of the leader. One that fails skips its turn and no other's; one that finds out that somebody else leads ends them all.
"""

import asyncio
from functools import partial
from typing import Protocol

from torpor.domain.errors import Deposed
from torpor.loops import Loop


class Duty(Protocol):
    name: str
    interval_s: float
    turn_s: float
    """How long a turn may take without a call of `loops.turned`."""
    wake: asyncio.Event
    """Set: there is something to do now."""

    async def do(self, term: int) -> float | None:
        """One turn, and the pause in seconds after it; None: the interval.

        Everything it writes asks first whether this term still stands (`store.leader.require_term`).
        """
        ...

    def rest(self) -> None:
        """The lead is lost: what only a leader knows is forgotten."""
        ...


async def run_duty(duty: Duty, term: int) -> None:
    """Until cancelled, or Deposed."""
    turn = partial(duty.do, term)
    loop = Loop(duty.name, turn, interval_s=duty.interval_s, turn_s=duty.turn_s, wake=duty.wake, ends_on=(Deposed,))
    await loop.run()
