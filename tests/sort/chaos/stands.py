"""Kill a process at a breakpoint, and check in its journal that it was there."""

from tests.sort.chaos.cluster import MASTER, Cluster
from torpor.sort.debug_breakpoints import Moment
from torpor.sort.machine.states import MASTER_WAY, WORKER_WAY, MasterState, WorkerState


def kill_worker(here: Cluster, index: int, hold: str) -> None:
    """Wait until the worker is at the breakpoint, kill it, and check its journal."""
    state, _, moment = hold.partition(":")
    before = here.saved_worker(index)
    here.kill_held(here.workers[index], state, moment)
    after = here.saved_worker(index)
    if moment != Moment.BEFORE_SAVE:
        assert after is not None
        assert after.state == state
    elif state == WorkerState.INITIALIZING:
        assert after is None
    elif state == WorkerState.FAILED:
        # It was killed in any state before.
        assert after == before
    else:
        assert after is not None
        assert after.state == WORKER_WAY[WORKER_WAY.index(WorkerState(state)) - 1]


def kill_master(here: Cluster, hold: str) -> None:
    state, _, moment = hold.partition(":")
    here.kill_held(here.node(MASTER), state, moment)
    after = here.saved_master()
    if moment != Moment.BEFORE_SAVE:
        assert after is not None
        assert after.state == state
    elif state == MasterState.WAITING_FOR_WORKERS:
        assert after is None
    else:
        assert after is not None
        assert after.state == MASTER_WAY[MASTER_WAY.index(MasterState(state)) - 1]
