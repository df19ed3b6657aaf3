"""The latch is set when many homes are missing at once."""

import pytest

from torpor.domain.missing_homes_latch import should_latch

CASES = [(1, 1, False), (2, 2, False), (3, 3, True), (10, 2, False), (10, 3, True), (14, 3, True), (15, 3, False)]
CASES += [(100, 20, False), (100, 21, True)]


@pytest.mark.parametrize(("expected", "missing", "held_back"), CASES)
def test_more_than_a_fifth_and_at_least_three(expected: int, missing: int, held_back: bool) -> None:
    assert should_latch(expected=expected, missing=missing) is held_back
