"""Exactly as many workspaces may run as the limits allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.domain.errors import Refused
from torpor.domain.limits import RETRY_AFTER_S, RunningCounts, RunningLimits, admit
from torpor.testing.defaults import DEFAULTS

counts = st.integers(min_value=0, max_value=200)


def test_the_defaults_are_two_for_a_user_and_a_hundred_overall() -> None:
    assert DEFAULTS.running_limits == RunningLimits(per_user=2, overall=100)


@given(counts, counts, counts, counts)
def test_a_start_is_admitted_exactly_below_both_limits(of_user: int, overall: int, per_user: int, allowed: int) -> None:
    running, limits = RunningCounts(of_user, overall), RunningLimits(per_user, allowed)
    if of_user + 1 <= per_user and overall + 1 <= allowed:
        admit(running, limits)
        return
    with pytest.raises(Refused) as refused:
        admit(running, limits)
    assert refused.value.code == "limit_reached"
    assert refused.value.context["retry_after_s"] == RETRY_AFTER_S


@pytest.mark.parametrize(
    ("running", "limit", "allowed"),
    [
        (RunningCounts(of_user=2, overall=2), "max_running_per_user", 2),
        (RunningCounts(of_user=0, overall=100), "max_running_global", 100),
        # The limit that the user can change comes first.
        (RunningCounts(of_user=2, overall=100), "max_running_per_user", 2),
    ],
)
def test_a_refusal_says_which_limit(running: RunningCounts, limit: str, allowed: int) -> None:
    with pytest.raises(Refused) as refused:
        admit(running, DEFAULTS.running_limits)
    assert (refused.value.context["limit"], refused.value.context["allowed"]) == (limit, allowed)
