"""Decide when workers that do not register, or send no heartbeat, fail the job."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torpor.sort.job.options import Deadlines
from torpor.sort.machine.history import Transition
from torpor.sort.machine.master import Master, RegisteredWorker
from torpor.sort.machine.records import Beat, GoalStage
from torpor.sort.machine.states import MasterState, WorkerState


@dataclass(slots=True)
class WorkerContact:
    """The last contact with a worker. It is not in the journal, because the next heartbeat brings it again."""

    at: float
    beat: Beat = field(default_factory=lambda: Beat(WorkerState.INITIALIZING, 0.0))
    told: GoalStage | None = None
    """The stage of the last goal that the worker was sent."""
    heard: GoalStage | None = None
    """The stage of the goal before that: a worker that asks again has received it."""
    history: tuple[Transition, ...] = ()
    """The worker's history at its last report."""

    def excuse(self, seconds: float, now: float) -> None:
        """Do not count the time in which the master itself did not run. A worker that was heard since then is not moved into
        the future."""
        self.at = min(self.at + seconds, now)


def timeout_reasons(
    master: Master,
    contact_of: Callable[[RegisteredWorker], WorkerContact],
    deadlines: Deadlines,
    *,
    waited_s: float,
    now: float,
) -> Iterator[str]:
    """Why the job fails; none while all workers are in time. `waited_s` is the time since the master started."""
    if master.state is MasterState.WAITING_FOR_WORKERS:
        if waited_s > deadlines.registration:
            here = ", ".join(member.identity for member in master.members) or "none"
            yield f"{len(master.members)} of {master.expected} workers registered within {deadlines.registration:g} s: {here}"
        return
    for member in master.members:
        silent_s = now - contact_of(member).at
        if silent_s > deadlines.worker_grace:
            what = f"worker {member.index} ({member.identity}) sent no heartbeat for {silent_s:.0f} s"
            yield f"{what}, longer than --worker-grace {deadlines.worker_grace:g}"
