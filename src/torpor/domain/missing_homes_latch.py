"""Decide whether so many homes are missing at once that Torpor must not act.

The cause is then probably an unmounted disk, or a provider that answers with an empty list, and the homes are not lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from torpor.domain.judge import whole_homes
from torpor.domain.records import Survey

AT_LEAST = 3
MORE_THAN_PERCENT = 20


@dataclass(frozen=True, slots=True)
class Latch:
    """While it is set, nothing is changed at this provider."""

    provider: str
    since: datetime
    expected: int
    missing: int
    released_at: datetime | None
    """When an operator confirmed that the homes are really lost."""


def should_latch(*, expected: int, missing: int) -> bool:
    """`missing` of `expected` homes are not observed, and were there before."""
    return missing >= AT_LEAST and missing * 100 > expected * MORE_THAN_PERCENT


def missing_homes(expected: Iterable[tuple[str, int]], survey: Survey) -> int:
    """Count those of these homes (workspace, generation) that were not observed as whole."""
    return sum(generation not in whole_homes(workspace_id, survey.of(workspace_id)) for workspace_id, generation in expected)
