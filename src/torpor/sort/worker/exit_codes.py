"""How can a worker's process end, and may it be started again?"""

from dataclasses import dataclass
from enum import IntEnum


class WorkerExitCode(IntEnum):
    COMPLETED = 0
    FAILED = 1
    """Killed, out of reach, unlucky: it may be started again."""
    REFUSED = 2
    """Something must be changed first."""
    JOB_FAILED = 3
    """There is nothing left to start again for."""


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """How a worker has left, and why, if not because all is done."""

    ending: WorkerExitCode
    reason: str = ""
    is_forgotten: bool = False
    """The master does not know this worker any more; it may register again."""
