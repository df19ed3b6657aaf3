"""Decide how the program of an ended container ended: by itself, or because its container was stopped from outside."""

import signal

from torpor.domain.records import ProgramExit
from torpor.inside import program_end
from torpor.inside.out_of_memory import SENTENCE

STOPPED_CODES = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 255)
"""Of containers that were stopped: by a stop, by force, and by a crash of the engine or its machine."""


def program_exit(exit_code: int, log: bytes, *, is_out_of_memory: bool) -> ProgramExit:
    """`log`: the last lines, with the agent's own last line if its program ended by itself."""
    said, own_code = program_end.split(log)
    last_lines = said.decode(errors="replace")
    if is_out_of_memory and SENTENCE not in last_lines:  # the agent itself was ended
        last_lines += SENTENCE
    is_stopped = exit_code in STOPPED_CODES and own_code != exit_code and not is_out_of_memory
    return ProgramExit(exit_code, last_lines, is_stopped)
