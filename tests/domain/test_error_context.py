"""Every error that the rules find has the context that users need to find its cause."""

import pytest

from tests.support.builders import archive, container, later, look, seen, whole, workspace
from torpor.domain.errors import Reason
from torpor.domain.judge import judge
from torpor.domain.planner import Retry, plan
from torpor.domain.records import Observation
from torpor.domain.settle import settle
from torpor.domain.states import Operation, Phase, Stage


@pytest.mark.parametrize(
    ("operation", "observation", "expected", "actual"),
    [
        (Operation.STOPPING, seen(whole(1), container=container(1, 1)), "container_present=False", "container_present=True"),
        (Operation.PROVISIONING, seen(), "volume_ready=True", "volume_ready=False"),
        (Operation.ARCHIVING, seen(whole(1)), "archived=True, home_present=False", "archived=True, home_present=True"),
    ],
)
def test_a_mismatch_has_the_expected_and_the_actual_state(
    operation: Operation, observation: Observation, expected: str, actual: str
) -> None:
    row = workspace(operation=operation, stage=Stage.SEE, due_at=later(-1), generation=1, revision=1, archive=archive(1, 1))
    step = plan(row, judge(row, observation, later(0)), None, look())
    assert isinstance(step, Retry)
    assert step.error.reason is Reason.MISMATCH
    assert step.error.context == {"expected": expected, "actual": actual}


def test_a_missing_home_is_data_lost_with_its_detail() -> None:
    row = workspace(phase=Phase.STANDBY, generation=1, home_seen=True)
    for _ in range(2):  # confirmed by a second observation
        verdict = judge(row, seen(), later(0))
        change = settle(row, verdict, plan(row, verdict, None, look()), look(), new_op_id="new", progress=None)
        assert change is not None
        row = change.after
    assert row.error is not None
    assert row.error.reason is Reason.DATA_LOST
    assert (row.error.context["archive_key"], row.error.context["detail"]) == (
        None,
        "the home volume (generation 1) is missing",
    )
    assert (row.phase, row.previous_phase) == (Phase.ERROR, Phase.STANDBY)
