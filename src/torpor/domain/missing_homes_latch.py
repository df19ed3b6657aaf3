"""Has so much disappeared at once that it must be the view that is wrong?

A disk that was not mounted, a cluster that answers with an empty list: nothing of that is a reason to declare homes lost.
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
    """While it holds, nothing is touched at this provider."""

    provider: str
    since: datetime
    expected: int
    missing: int
    released_at: datetime | None
    """An operator looked, and it is really so."""


def should_latch(*, expected: int, missing: int) -> bool:
    """Of `expected` homes, `missing` are not seen that were there at the last look."""
    return missing >= AT_LEAST and missing * 100 > expected * MORE_THAN_PERCENT


def missing_homes(expected: Iterable[tuple[str, int]], survey: Survey) -> int:
    """How many of these (workspace, generation) were not seen whole."""
    return sum(generation not in whole_homes(workspace_id, survey.of(workspace_id)) for workspace_id, generation in expected)
