"""Where should a real worker or master stop, so that somebody can kill it just there?

For tests and for demonstrations of failure: the process says where it stands and stops itself (SIGSTOP); SIGCONT lets it go on.
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
    """It is in the journal, and nothing was sent or begun."""
    AFTER_SEND = "after-send"
    """What the state asks for has been sent or begun."""
    MIDWAY = "midway"
    """About half of the state's work is done."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    state: str
    moment: Moment = Moment.AFTER_SAVE


def parse_breakpoint(text: str, states: frozenset[str]) -> Breakpoint:
    """What `--hold STATE[:MOMENT]` says."""
    state, _, moment = text.partition(":")
    if state not in states:
        raise SortRefused("bad_hold", f"--hold {text!r}: there is no state {state!r}; allowed are {', '.join(sorted(states))}")
    try:
        return Breakpoint(state, Moment(moment) if moment else Moment.AFTER_SAVE)
    except ValueError:
        allowed = ", ".join(moment.value for moment in Moment)
        raise SortRefused("bad_hold", f"--hold {text!r}: there is no moment {moment!r}; allowed are {allowed}") from None


class BreakpointStop:
    """Stops this process once, at the place it was told."""

    def __init__(self, hold: Breakpoint | None) -> None:
        self._hold = hold

    def at(self, state: str, moment: Moment) -> None:
        if self._hold != Breakpoint(state, moment):
            return
        self._hold = None
        print(f"held in {state} {moment.value}, process {os.getpid()}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
