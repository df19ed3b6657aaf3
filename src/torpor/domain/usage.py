"""Compute the CPU use of a workspace from samples of its CPU time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of one container use."""

    cpu_s: float
    """CPU seconds since the container was started."""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class UsageSample:
    at_s: float
    """Seconds since 1970."""
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """One point of the plots: the CPU use since the point before, and the memory use at this time."""

    at_s: float
    cpu_cores: float
    memory_bytes: int


def usage_points(samples: Sequence[UsageSample]) -> tuple[UsagePoint, ...]:
    """One point for each sample except the first, which has no sample before it."""
    return tuple(
        UsagePoint(after.at_s, _cores(before, after), after.usage.memory_bytes)
        for before, after in pairwise(samples)
        if after.at_s > before.at_s
    )


def _cores(before: UsageSample, after: UsageSample) -> float:
    # The CPU time falls when the container was started again, or when a process ended that was counted by itself.
    return max(0.0, after.usage.cpu_s - before.usage.cpu_s) / (after.at_s - before.at_s)
