"""The wait doubles, stays below its cap, and varies between workspaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.domain.backoff import backoff_s

failures = st.integers(min_value=1, max_value=10_000)
seconds = st.floats(min_value=0.001, max_value=1e6)
dice = st.floats(min_value=0, max_value=1)


def test_it_doubles_from_the_base_up_to_the_cap() -> None:
    assert [backoff_s(n, base_s=30, cap_s=300, dice=0) for n in range(1, 7)] == [30, 60, 120, 240, 300, 300]


def test_the_dice_take_up_to_half_of_it() -> None:
    assert [backoff_s(2, base_s=30, cap_s=300, dice=d) for d in (0, 0.5, 1)] == [60, 45, 30]


@given(failures, seconds, seconds, dice)
def test_it_lies_between_half_of_the_longest_and_the_longest(n: int, base_s: float, cap_s: float, d: float) -> None:
    longest = backoff_s(n, base_s=base_s, cap_s=cap_s, dice=0)
    assert 0 < longest <= cap_s
    assert longest / 2 <= backoff_s(n, base_s=base_s, cap_s=cap_s, dice=d) <= longest


@given(failures, seconds, seconds, dice)
def test_one_more_failure_never_shortens_it(n: int, base_s: float, cap_s: float, d: float) -> None:
    assert backoff_s(n, base_s=base_s, cap_s=cap_s, dice=d) <= backoff_s(n + 1, base_s=base_s, cap_s=cap_s, dice=d)


@pytest.mark.parametrize("n", [0, -1])
def test_without_a_failure_there_is_nothing_to_wait_for(n: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        backoff_s(n, base_s=1, cap_s=1, dice=0)
