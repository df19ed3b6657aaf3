"""A kill in any state and at any moment is survived."""

from itertools import product

import pytest

from tests.sort.chaos.cluster import LAZY, MASTER, SPILLED, Cluster, Data, Undisturbed, cluster, go_on
from tests.sort.chaos.stands import kill_master, kill_worker
from torpor.sort.debug_breakpoints import Moment
from torpor.sort.machine.states import MASTER_WAY, WORKER_WAY
from torpor.sort.machine.states import MasterState as M
from torpor.sort.machine.states import WorkerState as W

pytestmark = pytest.mark.deep

# Where another worker is held meanwhile, so that no worker goes on before the victim is dead. Without an entry, none can go on.
# A worker must not be held while others wait for its parts.
WORKER_WAITS_FOR = {
    W.SAMPLING: W.SAMPLING,
    W.WAITING_FOR_PARTITION_CONFIG: W.SAMPLING,
    W.SORTING: W.SORTING,
    W.WAITING_FOR_SHUFFLE_SIGNAL: W.SORTING,
    W.SHUFFLING: W.WAITING_FOR_MERGE_SIGNAL,
    W.WAITING_FOR_MERGE_SIGNAL: W.WAITING_FOR_MERGE_SIGNAL,
    W.MERGING: W.MERGING,
    W.COMPLETED: W.MERGING,
}
MASTER_WAITS_FOR = {M.SAMPLING: W.SAMPLING, M.SORTING: W.SORTING, M.SHUFFLING: W.SHUFFLING, M.MERGING: W.MERGING}

WORKER_HOLDS = [f"{state}:{moment}" for state, moment in product(WORKER_WAY, Moment)]
MASTER_HOLDS = [f"{state}:{moment}" for state, moment in product(MASTER_WAY, Moment)]


def let_go(here: Cluster, index: int, state: W | None) -> None:
    if state is not None:
        here.wait_held(here.workers[index], state, Moment.AFTER_SAVE)
        go_on(here.workers[index])


@pytest.mark.parametrize("memory", [LAZY, SPILLED])
@pytest.mark.parametrize("hold", WORKER_HOLDS)
def test_a_worker_killed_in_any_state_continues(hold: str, memory: str, data: Data, undisturbed: Undisturbed) -> None:
    reference = undisturbed.of(memory)
    waits_for = WORKER_WAITS_FOR.get(W(hold.partition(":")[0]))
    with cluster(data.inputs, memory=memory, indexed=memory == LAZY) as here:
        here.start({1: hold, **({0: f"{waits_for}:{Moment.AFTER_SAVE}"} if waits_for else {})})
        kill_worker(here, 1, hold)
        here.workers[1].start()
        let_go(here, 0, waits_for)
        here.ends_as(reference)


@pytest.mark.parametrize("moment", Moment)
def test_a_failed_worker_killed_at_any_moment_continues(moment: Moment, data: Data, undisturbed: Undisturbed) -> None:
    """Ended by a signal, the worker fails in order, and is killed while it does."""
    reference = undisturbed.of(SPILLED)
    with cluster(data.inputs, memory=SPILLED) as here:
        here.start({0: f"{W.SHUFFLING}:{Moment.AFTER_SAVE}", 1: f"{W.FAILED}:{moment}"})
        here.wait_held(here.workers[0], W.SHUFFLING, Moment.AFTER_SAVE)
        here.workers[1].end()
        here.kill_held(here.workers[1], W.FAILED, moment)
        saved = here.saved_worker(1)
        assert saved is not None
        assert (saved.state is W.FAILED) == (moment is not Moment.BEFORE_SAVE)
        here.workers[1].start()
        go_on(here.workers[0])
        here.ends_as(reference)


@pytest.mark.parametrize("memory", [LAZY, SPILLED])
@pytest.mark.parametrize("hold", MASTER_HOLDS)
def test_a_master_killed_in_any_state_continues(hold: str, memory: str, data: Data, undisturbed: Undisturbed) -> None:
    reference = undisturbed.of(memory)
    waits_for = MASTER_WAITS_FOR.get(M(hold.partition(":")[0]))
    if hold.endswith(Moment.BEFORE_SAVE):
        waits_for = None
    with cluster(data.inputs, memory=memory, indexed=memory == SPILLED) as here:
        here.start({MASTER: hold, **({2: f"{waits_for}:{Moment.AFTER_SAVE}"} if waits_for else {})})
        kill_master(here, hold)
        here.start_master()
        let_go(here, 2, waits_for)
        here.ends_as(reference)
