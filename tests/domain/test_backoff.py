"""The wait doubles, stays below its cap, and varies between workspaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.domain.backoff import backoff_s

failures = st.integers(min_value=1, max_value=10_000)
seconds = st.floats(min_value=0.001, max_value=1e6)
dice = st.floats(min_value=0, max_value=1)


def test_backoff_doubles_from_the_base_up_to_the_cap() -> None:
    assert [backoff_s(n, base_s=30, cap_s=300, dice=0) for n in range(1, 7)] == [30, 60, 120, 240, 300, 300]


def test_the_dice_shorten_the_backoff_by_up_to_half() -> None:
    assert [backoff_s(2, base_s=30, cap_s=300, dice=d) for d in (0, 0.5, 1)] == [60, 45, 30]


@given(failures, seconds, seconds, dice)
def test_backoff_is_between_half_and_all_of_the_maximum(n: int, base_s: float, cap_s: float, d: float) -> None:
    longest = backoff_s(n, base_s=base_s, cap_s=cap_s, dice=0)
    assert 0 < longest <= cap_s
    assert longest / 2 <= backoff_s(n, base_s=base_s, cap_s=cap_s, dice=d) <= longest


@given(failures, seconds, seconds, dice)
def test_one_more_failure_never_shortens_the_backoff(n: int, base_s: float, cap_s: float, d: float) -> None:
    assert backoff_s(n, base_s=base_s, cap_s=cap_s, dice=d) <= backoff_s(n + 1, base_s=base_s, cap_s=cap_s, dice=d)


@pytest.mark.parametrize("n", [0, -1])
def test_backoff_needs_at_least_one_failure(n: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        backoff_s(n, base_s=1, cap_s=1, dice=0)
