"""Define the status of a job, as its master reports it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.sort.machine.history import Transition


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    index: int | None
    identity: str
    attempt: int
    control: str
    data: str
    state: str
    phase: str
    progress: float
    message: str
    seen_seconds_ago: float
    size: int
    """Bytes of its input."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    job: str
    state: str
    message: str
    address: str
    format: str
    expected: int
    """The number of workers of the job."""
    workers: tuple[WorkerStatus, ...] = ()
    durations: Mapping[str, float] = field(default_factory=dict)
    history: tuple[Transition, ...] = ()
    reason: str = ""
    """Why it failed."""
    verdict: str = ""
    """valid, unproven, or empty while it runs."""
