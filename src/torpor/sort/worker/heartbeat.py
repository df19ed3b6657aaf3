"""Send heartbeats to the master, and act on the goals in its answers."""

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

# A worker that waits for the master asks it more often, as far as the master can answer all workers.
WAITING = frozenset(
    {W.INITIALIZING, W.WAITING_FOR_PARTITION_CONFIG, W.WAITING_FOR_SHUFFLE_SIGNAL, W.WAITING_FOR_MERGE_SIGNAL, W.COMPLETED}
)
SHORTEST_S = 0.05
SHORTEST_PER_WORKER_S = 0.002


class HeartbeatLoop:
    """The thread that sends heartbeats. The goal in the answer decides: a worker that missed a signal learns it here."""

    def __init__(self, session: WorkerSession) -> None:
        self._session = session
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._is_over = threading.Event()

    def begin(self) -> None:
        # Only once: a loop that has ended had a reason to end.
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._session.nudge.set()

    def _beat(self) -> None:
        heard_at = time.monotonic()
        while not self._is_over.is_set():
            self._session.nudge.clear()
            try:
                self.once()
                heard_at = time.monotonic()
            except StaleAttempt as error:
                self._give_way(error)
                return
            except SortRefused as error:
                is_forgotten = error.code == UNKNOWN_WORKER
                self._session.driver.tell((is_forgotten and self._session.driver.broke(error)) or WorkerFailed(error.message))
                return
            except PeerUnavailable as error:
                self._miss(time.monotonic() - heard_at, error)
            except SortError as error:
                self._session.say(f"a heartbeat failed: {error.message}")
            self._session.nudge.wait(self._interval_s())

    def once(self) -> None:
        session = self._session
        timeout_s = max(1.0, session.options.deadlines.heartbeat_lost / 2)
        self._follow_goal(session.master.call(HEARTBEAT, Heartbeat(session.caller(), session.beat()), timeout_s))

    def _follow_goal(self, goal: Goal) -> None:
        session = self._session
        session.meet(goal.peers)
        if goal.declared:
            session.declared = goal.declared
        if goal.stage is GoalStage.ABORT:
            session.stop.set()
        for event in events_for_goal(session.worker, goal):
            session.driver.tell(event)

    def _give_way(self, error: StaleAttempt) -> None:
        """Another process is this worker now, so this process must not write any more."""
        self._session.stop.set()
        self._session.driver.tell(WorkerFailed(error.message))

    def _miss(self, silent_s: float, error: PeerUnavailable) -> None:
        grace_s = self._session.options.deadlines.master_grace
        if silent_s >= grace_s:
            self._session.driver.tell(WorkerFailed(f"the master was not reachable for {grace_s:g} s: {error.message}"))

    def _interval_s(self) -> float:
        session = self._session
        usual = session.options.deadlines.heartbeat
        if session.worker.state not in WAITING:
            return usual
        return min(usual, max(SHORTEST_S, SHORTEST_PER_WORKER_S * session.terms.workers))
