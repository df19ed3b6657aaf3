"""Hold the timeouts, retry counts and limits that the rules use."""

from collections.abc import Mapping
from dataclasses import dataclass

from torpor.domain.states import Operation


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often the controller reconciles."""

    idle_s: float
    """Between two full resyncs."""
    active_s: float
    """Between two passes over workspaces with an operation in progress."""


@dataclass(frozen=True, slots=True)
class Tuning:
    timeouts_s: Mapping[Operation, float]
    """Without progress for this long an operation fails."""
    max_retries: int
    retry_base_s: float
    """Before the first retry; it doubles with each."""
    retry_cap_s: float
    disk_reserve_bytes: int
    """Below so much free space no workspace is started or restored; 0: no such check."""
    before_sleep_s: float
    """How long a `before_sleep` command may take. The deadline of STOPPING begins after it."""
    restart_base_s: float = 2
    """Before a program that ended quickly is started again; it doubles with each quick end."""
    quick_end_s: float = 60
    """An end after at least this time in RUNNING resets the count of quick ends."""
    max_quick_ends: int = 3
