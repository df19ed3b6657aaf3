"""Define how a worker's process can end, and whether it may be started again."""

from dataclasses import dataclass
from enum import IntEnum


class WorkerExitCode(IntEnum):
    COMPLETED = 0
    FAILED = 1
    """Killed, or a peer was not reachable: it may be started again."""
    REFUSED = 2
    """The user must change something first."""
    JOB_FAILED = 3
    """The job has failed, so a restart has no purpose."""


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """How a worker ended, and the reason if it is not completed."""

    ending: WorkerExitCode
    reason: str = ""
    is_forgotten: bool = False
    """The master does not know this worker any more; the worker may register again."""
