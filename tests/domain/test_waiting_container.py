"""A container that waits for a node or an image: the reason is in the condition and in `explain`."""

from dataclasses import replace

from tests.domain.world import World
from torpor.domain.explain import explain
from torpor.domain.judge import judge
from torpor.domain.records import WAITING
from torpor.domain.states import Wish


def test_explain_says_what_a_container_waits_for() -> None:
    world = World(desired_state=Wish.RUNNING)
    world.run_until_rest()
    assert world.container is not None
    world.container = container = replace(world.container, ready=False, waiting="no node can run it: 3 Insufficient memory")
    verdict = judge(world.row, world.observe(), world.now)
    row = replace(world.row, conditions=verdict.conditions)
    assert row.conditions.container_ready.reason == WAITING
    assert row.awaited == container.waiting
    assert "3 Insufficient memory" in str(explain(row, ()).why)


def test_a_container_that_is_ready_waits_for_nothing() -> None:
    world = World(desired_state=Wish.RUNNING)
    world.run_until_rest()
    assert world.row.awaited is None
    assert explain(world.row, ()).why is None
