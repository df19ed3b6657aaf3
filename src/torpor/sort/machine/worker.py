"""Decide what a worker does about an event.

`step(worker, event, now) -> (worker, commands)`. The whole value is saved before any command is carried out. What a handler of
a command returns is the next event, and what it raises becomes the event `WorkerFailed`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from torpor.sort.machine.history import Transition, monotonic_time
from torpor.sort.machine.reactions import IllegalTransition, Reaction, Row, WrongState, row
from torpor.sort.machine.records import (
    Goal,
    GoalStage,
    MergeReport,
    PartitionMap,
    Report,
    Sample,
    ShuffleReport,
    SortReport,
    WorkerAssignment,
)
from torpor.sort.machine.states import WORKER_MAY_GO_TO, WORKER_WAY, WorkerPhase
from torpor.sort.machine.states import WorkerState as W


@dataclass(frozen=True, slots=True)
class Worker:
    identity: str
    job: str = ""
    state: W = W.INITIALIZING
    terms: WorkerAssignment | None = None
    sample: Sample | None = None
    """Kept until the boundaries are known, because the master may ask for it again."""
    cut: PartitionMap | None = None
    """Never changes once it is set."""
    sorted: SortReport | None = None
    shuffled: ShuffleReport | None = None
    merged: MergeReport | None = None
    failing: W | None = None
    """The state in which it failed last."""
    reason: str = ""
    """Why it failed last."""
    fatal: bool = False
    """It failed, and a retry cannot help."""
    aborted: bool = False
    """The master or a user has ended the job."""
    job_done: bool = False
    """The master has reported that the whole job is completed."""
    history: tuple[Transition, ...] = ()

    @property
    def attempt(self) -> int:
        return self.terms.attempt if self.terms else 0

    def report(self, phase: WorkerPhase) -> Report | Sample | None:
        match phase:
            case WorkerPhase.SAMPLING:
                return self.sample
            case WorkerPhase.SORTING:
                return self.sorted
            case WorkerPhase.SHUFFLING:
                return self.shuffled
            case WorkerPhase.MERGING:
                return self.merged
            case _:
                return None


# Events.


@dataclass(frozen=True, slots=True)
class Started:
    """The process runs and has locked its directories."""


@dataclass(frozen=True, slots=True)
class Registered:
    terms: WorkerAssignment


@dataclass(frozen=True, slots=True)
class Sampled:
    sample: Sample


@dataclass(frozen=True, slots=True)
class PartitionsReceived:
    cut: PartitionMap


@dataclass(frozen=True, slots=True)
class SweepDone:
    report: SortReport


@dataclass(frozen=True, slots=True)
class ShuffleSignal:
    pass


@dataclass(frozen=True, slots=True)
class Shuffled:
    report: ShuffleReport


@dataclass(frozen=True, slots=True)
class MergeSignal:
    pass


@dataclass(frozen=True, slots=True)
class Merged:
    report: MergeReport


@dataclass(frozen=True, slots=True)
class JobDone:
    pass


@dataclass(frozen=True, slots=True)
class ReportRequested:
    phase: WorkerPhase


@dataclass(frozen=True, slots=True)
class PartsRequested:
    parts: tuple[tuple[int, int], ...]
    """(partition, receiver)"""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    reason: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class AbortRequested:
    reason: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """A new process continues the work of a failed one."""

    reason: str


Event = (
    Started
    | Registered
    | Sampled
    | PartitionsReceived
    | SweepDone
    | ShuffleSignal
    | Shuffled
    | MergeSignal
    | Merged
    | JobDone
    | ReportRequested
    | PartsRequested
    | WorkerFailed
    | AbortRequested
    | Restarted
)


# Commands.


@dataclass(frozen=True, slots=True)
class Register:
    pass


@dataclass(frozen=True, slots=True)
class DrawSample:
    pass


@dataclass(frozen=True, slots=True)
class Sweep:
    pass


@dataclass(frozen=True, slots=True)
class SendReport:
    """Send the master a sample or a report."""

    phase: WorkerPhase


@dataclass(frozen=True, slots=True)
class SendAll:
    """Send every part to the worker that owns it, without waiting for the signal: a worker that has boundaries accepts
    parts."""


@dataclass(frozen=True, slots=True)
class SendParts:
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FinishShuffle:
    """Wait until every declared part is complete and every part of this worker is acknowledged."""


@dataclass(frozen=True, slots=True)
class MergeAhead:
    """Start to merge: all own parts are complete, so the worker need not wait for others. Only the state Merging needs the
    signal."""


@dataclass(frozen=True, slots=True)
class Merge:
    pass


@dataclass(frozen=True, slots=True)
class ReportFailure:
    pass


@dataclass(frozen=True, slots=True)
class AbortJob:
    """Tell the master that the job cannot succeed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RemoveTemporaries:
    pass


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """The job has ended for good: remove the scratch and this job's output."""


@dataclass(frozen=True, slots=True)
class ExitWorker:
    ok: bool


Command = (
    Register
    | DrawSample
    | Sweep
    | SendReport
    | SendAll
    | SendParts
    | FinishShuffle
    | MergeAhead
    | Merge
    | ReportFailure
    | AbortJob
    | RemoveTemporaries
    | RemoveAll
    | ExitWorker
)

LEGAL, REPEATED, REFUSED = Reaction.LEGAL, Reaction.REPEATED, Reaction.REFUSED

# A handler that ends after the worker has failed has no effect. A signal to a failed worker is refused.
LATE, DEAD = (W.FAILED, REPEATED), (W.FAILED, REFUSED)
HAS_RUNS = {W.WAITING_FOR_SHUFFLE_SIGNAL, W.SHUFFLING, W.WAITING_FOR_MERGE_SIGNAL, W.MERGING, W.COMPLETED}

REACTS: Mapping[type[Event], Row[W]] = {
    Started: row(WORKER_WAY, {W.INITIALIZING, W.COMPLETED}, failed=DEAD, after=REFUSED),
    # A worker that was killed when it was Completed registers again, to report again.
    Registered: row(WORKER_WAY, {W.INITIALIZING, W.COMPLETED}, failed=LATE),
    Sampled: row(WORKER_WAY, {W.SAMPLING}, failed=LATE),
    PartitionsReceived: row(WORKER_WAY, {W.INITIALIZING, W.SAMPLING, W.WAITING_FOR_PARTITION_CONFIG}, failed=DEAD),
    SweepDone: row(WORKER_WAY, {W.SORTING}, failed=LATE),
    ShuffleSignal: row(WORKER_WAY, {W.WAITING_FOR_SHUFFLE_SIGNAL}, failed=DEAD),
    Shuffled: row(WORKER_WAY, {W.SHUFFLING}, failed=LATE),
    MergeSignal: row(WORKER_WAY, {W.WAITING_FOR_MERGE_SIGNAL}, failed=DEAD),
    Merged: row(WORKER_WAY, {W.MERGING}, failed=LATE),
    JobDone: row(WORKER_WAY, {W.COMPLETED}, failed=DEAD),
    # Every heartbeat repeats what the master wants until it has it, so a request that comes too early is not an error.
    ReportRequested: dict.fromkeys(WORKER_WAY, LEGAL) | {W.FAILED: REPEATED},
    PartsRequested: {state: LEGAL if state in HAS_RUNS else REPEATED for state in W},
    WorkerFailed: dict.fromkeys(WORKER_WAY, LEGAL) | {W.FAILED: REPEATED},
    AbortRequested: dict.fromkeys(WORKER_WAY, LEGAL) | {W.FAILED: REPEATED},
    Restarted: dict.fromkeys(WORKER_WAY, REFUSED) | {W.FAILED: LEGAL},
}


def move_to(worker: Worker, target: W, reason: str, now: float) -> Worker:
    """Record one transition. A transition that is not allowed is refused, with both states named."""
    if target not in WORKER_MAY_GO_TO[worker.state]:
        raise IllegalTransition(worker.state, target)
    transition = Transition(worker.state, target, monotonic_time(worker.history, now), reason, worker.attempt)
    return replace(worker, state=target, history=(*worker.history, transition))


def step(worker: Worker, event: Event, now: float) -> tuple[Worker, tuple[Command, ...]]:
    match REACTS[type(event)][worker.state]:
        case Reaction.REFUSED:
            raise WrongState(f"{type(event).__name__} is not allowed in state {worker.state}")
        case Reaction.REPEATED:
            _check_repeated(worker, event)
            return worker, ()
        case Reaction.LEGAL:
            return _take(worker, event, now)


def _take(worker: Worker, event: Event, now: float) -> tuple[Worker, tuple[Command, ...]]:
    match event:
        case Started():
            return worker, (Register(),)
        case Registered(terms):
            worker = replace(worker, terms=terms)
            if worker.state is W.COMPLETED:
                return worker, (SendReport(WorkerPhase.MERGING),)
            return move_to(worker, W.SAMPLING, f"registered as worker {terms.index} of {terms.workers}", now), (DrawSample(),)
        case Sampled(sample):
            worker = move_to(
                replace(worker, sample=sample), W.WAITING_FOR_PARTITION_CONFIG, f"{len(sample.keys)} keys drawn", now
            )
            return worker, (SendReport(WorkerPhase.SAMPLING),)
        case PartitionsReceived(cut):
            return _take_cut(worker, cut, now)
        case SweepDone(report):
            worker = replace(worker, sorted=report)
            worker = move_to(worker, W.WAITING_FOR_SHUFFLE_SIGNAL, f"{report.proof.records} records sorted", now)
            return worker, (SendReport(WorkerPhase.SORTING), SendAll())
        case ShuffleSignal():
            return move_to(worker, W.SHUFFLING, "all workers have sorted", now), (FinishShuffle(),)
        case Shuffled(report):
            worker = replace(worker, shuffled=report)
            worker = move_to(worker, W.WAITING_FOR_MERGE_SIGNAL, f"{report.received.records} records received", now)
            return worker, (SendReport(WorkerPhase.SHUFFLING), MergeAhead())
        case MergeSignal():
            return move_to(worker, W.MERGING, "all workers have their parts", now), (Merge(),)
        case Merged(report):
            worker = replace(worker, merged=report)
            count = len(report.files)
            written = f"{count} file{'' if count == 1 else 's'} written"
            return move_to(worker, W.COMPLETED, written, now), (SendReport(WorkerPhase.MERGING),)
        case JobDone():
            return replace(worker, job_done=True), (ExitWorker(ok=True),)
        case ReportRequested(phase):
            return worker, (SendReport(phase),) if worker.report(phase) else ()
        case PartsRequested(parts):
            return worker, (SendParts(parts),)
        case WorkerFailed(reason, fatal) if worker.state is W.COMPLETED:
            # A Completed worker cannot fail any more, but the job can: others would wait for parts that this worker cannot
            # give. Without a fatal error this process ends, and the next one finds everything as it is.
            return replace(worker, reason=reason), (AbortJob(reason),) if fatal else (ExitWorker(ok=False),)
        case WorkerFailed(reason, fatal):
            # A job that cannot succeed leaves no files. A worker that was not registered keeps the files of its earlier
            # attempt.
            ends_the_job = fatal and worker.state is not W.INITIALIZING
            removal = RemoveAll() if ends_the_job else RemoveTemporaries()
            return _fail(worker, reason, fatal, now), (ReportFailure(), removal, ExitWorker(ok=False))
        case AbortRequested(reason):
            if worker.state is not W.COMPLETED:
                worker = _fail(worker, f"aborted: {reason}", False, now)
            return replace(worker, aborted=True, reason=f"aborted: {reason}"), (RemoveAll(), ExitWorker(ok=False))
        case Restarted(reason):
            worker = move_to(worker, W.INITIALIZING, reason, now)
            forgotten = replace(worker, sample=None, sorted=None, shuffled=None, merged=None, fatal=False, aborted=False)
            return forgotten, (Register(),)
        case _:
            assert_never(event)


def _take_cut(worker: Worker, cut: PartitionMap, now: float) -> tuple[Worker, tuple[Command, ...]]:
    _check_cut(worker, cut)
    worker = replace(worker, cut=cut)
    if worker.state is not W.WAITING_FOR_PARTITION_CONFIG:
        return worker, ()
    return move_to(replace(worker, sample=None), W.SORTING, f"{len(cut.owners)} partitions", now), (Sweep(),)


def _fail(worker: Worker, reason: str, fatal: bool, now: float) -> Worker:
    failing = worker.state
    return replace(move_to(worker, W.FAILED, reason, now), failing=failing, reason=reason, fatal=fatal)


def _check_repeated(worker: Worker, event: Event) -> None:
    if isinstance(event, PartitionsReceived):
        _check_cut(worker, event.cut)


def _check_cut(worker: Worker, cut: PartitionMap) -> None:
    if worker.cut is not None and worker.cut != cut:
        raise WrongState(f"the journal has other boundaries, and boundaries never change (state {worker.state})")


AT_LEAST: Mapping[GoalStage, int] = {stage: place for place, stage in enumerate(GoalStage)}


def events_for_goal(worker: Worker, goal: Goal) -> tuple[Event, ...]:
    """The events that a goal means for a worker in this state. Goals come again and again, so a missed signal does no harm."""
    if goal.stage is GoalStage.ABORT:
        return () if worker.state is W.FAILED else (AbortRequested(goal.reason),)
    if goal.stage is GoalStage.DONE:
        return _events_for_done(worker)
    wanted: list[Event] = []
    if goal.wants is not None and worker.report(goal.wants) is not None:
        wanted.append(ReportRequested(goal.wants))
    if goal.send and worker.state in HAS_RUNS:
        wanted.append(PartsRequested(goal.send))
    return (*wanted, *_events_for_stage(worker, goal))


def _events_for_done(worker: Worker) -> tuple[Event, ...]:
    match worker.state:
        case W.COMPLETED:
            return () if worker.job_done else (JobDone(),)
        case W.FAILED:
            return ()
        case _:
            return (WorkerFailed("the job is completed, but the output of this worker is missing"),)


def _events_for_stage(worker: Worker, goal: Goal) -> tuple[Event, ...]:
    reached = AT_LEAST[goal.stage]
    cut = goal.cut or worker.cut
    match worker.state:
        case W.WAITING_FOR_PARTITION_CONFIG if cut and reached >= AT_LEAST[GoalStage.SORT]:
            return (PartitionsReceived(cut),)
        case W.WAITING_FOR_SHUFFLE_SIGNAL if reached >= AT_LEAST[GoalStage.SHUFFLE]:
            return (ShuffleSignal(),)
        case W.WAITING_FOR_MERGE_SIGNAL if reached >= AT_LEAST[GoalStage.MERGE]:
            return (MergeSignal(),)
        case _:
            return ()
