"""Define and run the duties of the leader: work that must run only once.

A duty that fails skips its own turn only. A duty that finds another leader ends all duties.
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
    """How long a turn may take without a call of `loops.report_progress`."""
    wake: asyncio.Event
    """Set it to start the next turn now."""

    async def do(self, term: int) -> float | None:
        """Do one turn and return the pause in seconds after it; None: the interval.

        Each of its writes checks first that this term is still valid.
        """
        ...

    def rest(self) -> None:
        """This process no longer leads: drop the state of the leader."""
        ...


async def run_duty(duty: Duty, term: int) -> None:
    """Run until canceled or deposed."""
    turn = partial(duty.do, term)
    loop = Loop(duty.name, turn, interval_s=duty.interval_s, turn_s=duty.turn_s, wake=duty.wake, ends_on=(Deposed,))
    await loop.run()
