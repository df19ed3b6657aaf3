"""When is a wait over? The rule alone, over its whole space where it is small."""

import itertools

import pytest

from tests.cli.records import error, workspace
from torpor.cli.wait import Going, InTrouble, Overtaken, Reached, Wished, standing
from torpor.domain.states import Operation, Phase, Wish

RUNNING = Wished("id", "demo", "RUNNING", 3)
DELETED = Wished("id", "demo", "DELETED", 3)


def test_without_errors_it_is_reached_exactly_when_phase_and_wish_agree_and_nothing_is_under_way() -> None:
    for wish, phase, operation in itertools.product(Wish, Phase, Operation):
        seen = workspace(desired_state=wish.value, phase=phase.value, operation=operation.value)
        agrees = phase.value == wish.value and operation is Operation.NONE
        assert standing(seen, Wished("id", "demo", wish.value, 3)) == (Reached() if agrees else Going())


def test_a_newer_wish_of_another_kind_ends_it() -> None:
    assert standing(workspace(desired_state="STANDBY", wish_version=4), RUNNING) == Overtaken("STANDBY")


def test_a_newer_wish_of_the_same_kind_does_not() -> None:
    assert standing(workspace(wish_version=4), RUNNING) == Reached()


def test_gone_is_deleted() -> None:
    assert standing(None, DELETED) == Reached()
    assert standing(None, RUNNING) == Overtaken("DELETED")


def test_a_terminal_error_of_this_wish_ends_it() -> None:
    assert standing(workspace(phase="ERROR", error=error()), RUNNING) == InTrouble(error())


def test_an_error_of_an_older_wish_is_about_to_be_forgiven() -> None:
    assert standing(workspace(phase="ERROR", error=error(wish_version=2)), RUNNING) == Going()


def test_an_error_that_is_tried_again_does_not_end_it() -> None:
    seen = workspace(phase="STANDBY", operation="STARTING", error=error(is_terminal=False))
    assert standing(seen, RUNNING) == Going()


@pytest.mark.parametrize("reason", ["DataLost", "MarkerUnreadable"])
def test_a_lost_home_is_not_forgiven_by_a_wish_but_by_a_recovery_or_a_deletion(reason: str) -> None:
    lost = error(reason=reason, wish_version=2)
    seen = workspace(phase="ERROR", error=lost)
    assert standing(seen, RUNNING) == InTrouble(lost)
    assert standing(seen, Wished("id", "demo", "RUNNING", 3, is_recovery=True)) == Going()
    assert standing({**seen, "desired_state": "DELETED"}, DELETED) == Going()


def test_a_standing_error_while_deleting_ends_it() -> None:
    seen = workspace(desired_state="DELETED", phase="DELETING", error=error(operation="ARCHIVING"))
    assert isinstance(standing(seen, DELETED), InTrouble)
