"""A sort survives kills at random moments.

`CHAOS_SEED=... CHAOS_ROUNDS=...` repeats a run; the seed is printed.
"""

import os
import random
import shutil
import time

import pytest

from tests.sort.chaos.cluster import LAZY, MASTER, SPILLED, Cluster, Data, Node, Undisturbed, cluster, until
from torpor.sort.machine.states import MASTER_WAY, MasterState


def seed_of_this_run() -> int:
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
    print(f"\nrepeat with CHAOS_SEED={seed}")
    return seed


def kill_somebody(here: Cluster, dice: random.Random, *, lose_scratch: float) -> bool:
    """Kill one process that still runs, and start it again at once; False if all have ended."""
    loses = dice.random() < lose_scratch
    for node in dice.sample(here.nodes(), k=len(here.nodes())):
        if node.ended() is not None:
            continue
        node.kill()
        print(f"killed {node.name}{' with its scratch' if loses and node.name != MASTER else ''}: {_stood(here, node)}")
        if node.name == MASTER:
            here.start_master()
        else:
            if loses:
                shutil.rmtree(here.scratch(here.workers.index(node)), ignore_errors=True)
            node.start()
        return True
    return False


def _stood(here: Cluster, node: Node) -> str:
    if node.name == MASTER:
        master = here.saved_master()
        return "not yet begun" if master is None else master.state
    return here.state_of(here.workers.index(node)) or "not yet begun"


def wait_for(here: Cluster, phase: MasterState) -> None:
    """Wait until the job has reached this phase, or has ended."""

    def is_there() -> bool:
        master = here.saved_master()
        return here.master.ended() is not None or (master is not None and _place(master.state) >= _place(phase))

    until(f"the job is {phase}", is_there)


def _place(state: MasterState) -> int:
    return len(MASTER_WAY) if state is MasterState.FAILED else MASTER_WAY.index(state)


def survive(data: Data, undisturbed: Undisturbed, kills: int, dice: random.Random, *, lose_scratch: float) -> None:
    """Run as many sorts as needed for this many kills."""
    while kills:
        memory = dice.choice((LAZY, SPILLED))
        reference = undisturbed.of(memory)
        # Processes take longer to start than to sort so little data, so random times alone would hit only their starts.
        phases = sorted(dice.choices(MASTER_WAY[:-1], k=min(kills, 5)), key=_place)
        delays = [dice.uniform(0, undisturbed.seconds[memory] / 10) for _ in phases]
        with cluster(data.inputs, memory=memory, indexed=dice.random() < 0.5) as here:
            here.start()
            for phase, delay in zip(phases, delays, strict=True):
                wait_for(here, phase)
                time.sleep(delay)
                if kill_somebody(here, dice, lose_scratch=lose_scratch):
                    kills -= 1
            here.ends_as(reference)


@pytest.mark.e2e
@pytest.mark.same_everywhere
def test_five_random_kills(data: Data, undisturbed: Undisturbed) -> None:
    survive(data, undisturbed, 5, random.Random(seed_of_this_run()), lose_scratch=0.0)


@pytest.mark.deep
def test_many_random_kills(data: Data, undisturbed: Undisturbed) -> None:
    kills = int(os.environ.get("CHAOS_ROUNDS", "30"))
    survive(data, undisturbed, kills, random.Random(seed_of_this_run()), lose_scratch=0.3)
