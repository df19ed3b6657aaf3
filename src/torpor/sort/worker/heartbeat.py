"""How does a worker stay in touch with its master?"""

import threading
import time

from torpor.sort.errors import PeerUnavailable, SortError, SortRefused, StaleAttempt
from torpor.sort.machine.master import UNKNOWN_WORKER
from torpor.sort.machine.records import Goal, GoalStage
from torpor.sort.machine.states import WorkerState as W
from torpor.sort.machine.worker import WorkerFailed, events_for_goal
from torpor.sort.wire.calls import HEARTBEAT
from torpor.sort.wire.requests import Heartbeat
from torpor.sort.worker.worker_session import WorkerSession

# Who waits for the master asks it more often, as far as the master can answer all of them.
WAITING = frozenset(
    {W.INITIALIZING, W.WAITING_FOR_PARTITION_CONFIG, W.WAITING_FOR_SHUFFLE_SIGNAL, W.WAITING_FOR_MERGE_SIGNAL, W.COMPLETED}
)
SHORTEST_S = 0.05
SHORTEST_PER_WORKER_S = 0.002


class HeartbeatLoop:
    """Heartbeats, and what the goals in their answers mean. The goal is the truth: whoever missed a signal learns it here."""

    def __init__(self, bench: WorkerSession) -> None:
        self._bench = bench
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._is_over = threading.Event()

    def begin(self) -> None:
        # Once: a pulse that has ended has a reason to.
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._bench.nudge.set()

    def _beat(self) -> None:
        heard_at = time.monotonic()
        while not self._is_over.is_set():
            self._bench.nudge.clear()
            try:
                self.once()
                heard_at = time.monotonic()
            except StaleAttempt as error:
                self._give_way(error)
                return
            except SortRefused as error:
                is_forgotten = error.code == UNKNOWN_WORKER
                self._bench.driver.tell((is_forgotten and self._bench.driver.broke(error)) or WorkerFailed(error.message))
                return
            except PeerUnavailable as error:
                self._miss(time.monotonic() - heard_at, error)
            except SortError as error:
                self._bench.say(f"a heartbeat failed: {error.message}")
            self._bench.nudge.wait(self._interval_s())

    def once(self) -> None:
        bench = self._bench
        timeout_s = max(1.0, bench.options.deadlines.heartbeat_lost / 2)
        self._heed(bench.master.call(HEARTBEAT, Heartbeat(bench.caller(), bench.beat()), timeout_s))

    def _heed(self, goal: Goal) -> None:
        bench = self._bench
        bench.meet(goal.peers)
        if goal.declared:
            bench.declared = goal.declared
        if goal.stage is GoalStage.ABORT:
            bench.stop.set()
        for event in events_for_goal(bench.worker, goal):
            bench.driver.tell(event)

    def _give_way(self, error: StaleAttempt) -> None:
        """Another process is this worker now: nothing of ours may be written any more."""
        self._bench.stop.set()
        self._bench.driver.tell(WorkerFailed(error.message))

    def _miss(self, silent_s: float, error: PeerUnavailable) -> None:
        grace_s = self._bench.options.deadlines.master_grace
        if silent_s >= grace_s:
            self._bench.driver.tell(WorkerFailed(f"no master for {grace_s:g} s: {error.message}"))

    def _interval_s(self) -> float:
        bench = self._bench
        usual = bench.options.deadlines.heartbeat
        if bench.worker.state not in WAITING:
            return usual
        return min(usual, max(SHORTEST_S, SHORTEST_PER_WORKER_S * bench.terms.workers))
