"""The rule that decides when a wait is over, over its whole input space where that is small."""

import itertools

import pytest

from tests.cli.records import error, workspace
from torpor.cli.wait import InProgress, PendingWish, WishFailed, WishReached, WishReplaced, wait_result
from torpor.domain.states import Operation, Phase, Wish

RUNNING = PendingWish("id", "demo", "RUNNING", 3)
DELETED = PendingWish("id", "demo", "DELETED", 3)


def test_without_errors_waiting_ends_exactly_at_the_requested_state_without_operation() -> None:
    for wish, phase, operation in itertools.product(Wish, Phase, Operation):
        seen = workspace(desired_state=wish.value, phase=phase.value, operation=operation.value)
        agrees = phase.value == wish.value and operation is Operation.NONE
        assert wait_result(seen, PendingWish("id", "demo", wish.value, 3)) == (WishReached() if agrees else InProgress())


def test_a_newer_request_for_another_state_ends_the_wait() -> None:
    assert wait_result(workspace(desired_state="STANDBY", wish_version=4), RUNNING) == WishReplaced("STANDBY")


def test_a_newer_request_for_the_same_state_does_not_end_the_wait() -> None:
    assert wait_result(workspace(wish_version=4), RUNNING) == WishReached()


def test_a_missing_workspace_counts_as_deleted() -> None:
    assert wait_result(None, DELETED) == WishReached()
    assert wait_result(None, RUNNING) == WishReplaced("DELETED")


def test_a_terminal_error_of_this_request_ends_the_wait() -> None:
    assert wait_result(workspace(phase="ERROR", error=error()), RUNNING) == WishFailed(error())


def test_an_error_of_an_older_request_does_not_end_the_wait() -> None:
    assert wait_result(workspace(phase="ERROR", error=error(wish_version=2)), RUNNING) == InProgress()


def test_an_error_that_is_retried_does_not_end_the_wait() -> None:
    seen = workspace(phase="STANDBY", operation="STARTING", error=error(is_terminal=False))
    assert wait_result(seen, RUNNING) == InProgress()


@pytest.mark.parametrize("reason", ["DataLost", "MarkerUnreadable"])
def test_a_lost_home_ends_the_wait_except_for_a_recovery_or_a_deletion(reason: str) -> None:
    lost = error(reason=reason, wish_version=2)
    seen = workspace(phase="ERROR", error=lost)
    assert wait_result(seen, RUNNING) == WishFailed(lost)
    assert wait_result(seen, PendingWish("id", "demo", "RUNNING", 3, is_recovery=True)) == InProgress()
    assert wait_result({**seen, "desired_state": "DELETED"}, DELETED) == InProgress()


def test_a_terminal_error_while_deleting_ends_the_wait() -> None:
    seen = workspace(desired_state="DELETED", phase="DELETING", error=error(operation="ARCHIVING"))
    assert isinstance(wait_result(seen, DELETED), WishFailed)
