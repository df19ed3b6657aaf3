"""Stop a worker or a master at a chosen state and moment.

For tests and for demonstrations of failure. The process prints where it is and stops itself (SIGSTOP); after SIGCONT it goes
on.
"""

import os
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum

from torpor.sort.errors import SortRefused


class Moment(StrEnum):
    BEFORE_SAVE = "before-save"
    """The state is decided and not yet in the journal."""
    AFTER_SAVE = "after-save"
    """The state is in the journal; no message was sent and no work begun."""
    AFTER_SEND = "after-send"
    """The messages and the work of this state were sent or begun."""
    MIDWAY = "midway"
    """About half of the state's work is done."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    state: str
    moment: Moment = Moment.AFTER_SAVE


def parse_breakpoint(text: str, states: frozenset[str]) -> Breakpoint:
    """Parse `--hold STATE[:MOMENT]`."""
    state, _, moment = text.partition(":")
    if state not in states:
        raise SortRefused("bad_hold", f"--hold {text!r}: there is no state {state!r}; allowed are {', '.join(sorted(states))}")
    try:
        return Breakpoint(state, Moment(moment) if moment else Moment.AFTER_SAVE)
    except ValueError:
        allowed = ", ".join(moment.value for moment in Moment)
        raise SortRefused("bad_hold", f"--hold {text!r}: there is no moment {moment!r}; allowed are {allowed}") from None


class BreakpointStop:
    """Stop this process once, at the breakpoint."""

    def __init__(self, hold: Breakpoint | None) -> None:
        self._hold = hold

    def at(self, state: str, moment: Moment) -> None:
        if self._hold != Breakpoint(state, moment):
            return
        self._hold = None
        print(f"held in {state} {moment.value}, process {os.getpid()}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
