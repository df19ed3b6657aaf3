"""The rule that decides when a wait is over, over its whole input space where that is small."""

import itertools

import pytest

from tests.cli.records import error, workspace
from torpor.cli.wait import InProgress, PendingWish, WishFailed, WishReached, WishReplaced, wait_result
from torpor.domain.states import Operation, Phase, Wish

RUNNING = PendingWish("id", "demo", "RUNNING", 3)
DELETED = PendingWish("id", "demo", "DELETED", 3)


def test_without_errors_it_is_reached_exactly_when_phase_and_wish_agree_and_nothing_is_under_way() -> None:
    for wish, phase, operation in itertools.product(Wish, Phase, Operation):
        seen = workspace(desired_state=wish.value, phase=phase.value, operation=operation.value)
        agrees = phase.value == wish.value and operation is Operation.NONE
        assert wait_result(seen, PendingWish("id", "demo", wish.value, 3)) == (WishReached() if agrees else InProgress())


def test_a_newer_wish_of_another_kind_ends_it() -> None:
    assert wait_result(workspace(desired_state="STANDBY", wish_version=4), RUNNING) == WishReplaced("STANDBY")


def test_a_newer_wish_of_the_same_kind_does_not() -> None:
    assert wait_result(workspace(wish_version=4), RUNNING) == WishReached()


def test_gone_is_deleted() -> None:
    assert wait_result(None, DELETED) == WishReached()
    assert wait_result(None, RUNNING) == WishReplaced("DELETED")


def test_a_terminal_error_of_this_wish_ends_it() -> None:
    assert wait_result(workspace(phase="ERROR", error=error()), RUNNING) == WishFailed(error())


def test_an_error_of_an_older_wish_is_about_to_be_forgiven() -> None:
    assert wait_result(workspace(phase="ERROR", error=error(wish_version=2)), RUNNING) == InProgress()


def test_an_error_that_is_tried_again_does_not_end_it() -> None:
    seen = workspace(phase="STANDBY", operation="STARTING", error=error(is_terminal=False))
    assert wait_result(seen, RUNNING) == InProgress()


@pytest.mark.parametrize("reason", ["DataLost", "MarkerUnreadable"])
def test_a_lost_home_is_not_forgiven_by_a_wish_but_by_a_recovery_or_a_deletion(reason: str) -> None:
    lost = error(reason=reason, wish_version=2)
    seen = workspace(phase="ERROR", error=lost)
    assert wait_result(seen, RUNNING) == WishFailed(lost)
    assert wait_result(seen, PendingWish("id", "demo", "RUNNING", 3, is_recovery=True)) == InProgress()
    assert wait_result({**seen, "desired_state": "DELETED"}, DELETED) == InProgress()


def test_a_standing_error_while_deleting_ends_it() -> None:
    seen = workspace(desired_state="DELETED", phase="DELETING", error=error(operation="ARCHIVING"))
    assert isinstance(wait_result(seen, DELETED), WishFailed)
