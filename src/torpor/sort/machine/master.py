"""Decide what the master does about an event, and what each worker should reach.

`step(master, event, now) -> (master, commands)` and `goal(master, ...)`. As for a worker, the value is saved before anything is
sent. Samples are not saved; the master asks for them again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, assert_never

from torpor.sort.errors import SortRefused, StaleAttempt
from torpor.sort.machine.history import Transition, monotonic_time
from torpor.sort.machine.reactions import IllegalTransition, Reaction, Row, WrongState, row
from torpor.sort.machine.records import (
    Beat,
    Goal,
    GoalStage,
    MergeReport,
    PartitionMap,
    Peer,
    Report,
    Sample,
    ShuffleReport,
    SortReport,
    WorkerAssignment,
)
from torpor.sort.machine.states import MASTER_MAY_GO_TO, MASTER_WAY, WorkerPhase, WorkerState
from torpor.sort.machine.states import MasterState as M
from torpor.sort.machine.verdict import find_fault
from torpor.sort.proof import Proof


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    identity: str
    nonce: str
    """Identifies the process: the same process that registers again is the same attempt."""
    asked: int | None
    index: int | None
    attempt: int
    control: str
    data: str
    size: int
    memory: int
    format: str = ""
    """The format that its input seems to have; empty if it has no input."""


@dataclass(frozen=True, slots=True)
class Master:
    job: str
    expected: int
    format: str
    """Empty while no `--format` is given and the workers' inputs have not decided it."""
    proof: bool = True
    sync: bool = True
    state: M = M.WAITING_FOR_WORKERS
    members: tuple[RegisteredWorker, ...] = ()
    """In order of their indices, once they have indices."""
    samples: Mapping[int, Sample] = field(default_factory=dict)
    cut: PartitionMap | None = None
    sorted: Mapping[int, SortReport] = field(default_factory=dict)
    shuffled: Mapping[int, ShuffleReport] = field(default_factory=dict)
    merged: Mapping[int, MergeReport] = field(default_factory=dict)
    reason: str = ""
    history: tuple[Transition, ...] = ()

    @property
    def verdict(self) -> str:
        if self.state is not M.COMPLETED:
            return ""
        return "valid" if self.proof else "unproven"

    @property
    def memory(self) -> int:
        return min((member.memory for member in self.members), default=0)

    def member(self, index: int) -> RegisteredWorker:
        return self.members[index]


# Events.


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    identity: str
    nonce: str
    asked: int | None
    control: str
    data: str
    size: int
    memory: int
    attempt: int = 0
    """The last attempt that the worker had, which a master that lost its journal does not know; 0 for none."""
    format: str = ""
    """The format that its input seems to have; empty if it has no input."""


@dataclass(frozen=True, slots=True)
class SampleReceived:
    index: int
    sample: Sample
    attempt: int | None = None
    """The attempt of the worker that sent it; None if it is known to be the latest."""


@dataclass(frozen=True, slots=True)
class PartitionsChosen:
    cut: PartitionMap


@dataclass(frozen=True, slots=True)
class SortReported:
    index: int
    report: SortReport
    attempt: int | None = None
    """The attempt of the worker that sent it; None if it is known to be the latest."""


@dataclass(frozen=True, slots=True)
class ShuffleReported:
    index: int
    report: ShuffleReport
    attempt: int | None = None
    """The attempt of the worker that sent it; None if it is known to be the latest."""


@dataclass(frozen=True, slots=True)
class MergeReported:
    index: int
    report: MergeReport
    attempt: int | None = None
    """The attempt of the worker that sent it; None if it is known to be the latest."""


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A worker failed for good or stayed away, a deadline passed, or a user aborted the job."""

    reason: str


Event = WorkerJoined | SampleReceived | PartitionsChosen | SortReported | ShuffleReported | MergeReported | JobFailed


def report_event(index: int, report: Report, attempt: int) -> SortReported | ShuffleReported | MergeReported:
    match report:
        case SortReport():
            return SortReported(index, report, attempt)
        case ShuffleReport():
            return ShuffleReported(index, report, attempt)
        case MergeReport():
            return MergeReported(index, report, attempt)
        case _:
            assert_never(report)


# Commands.


@dataclass(frozen=True, slots=True)
class AnnounceRanges:
    """All workers are registered: print which worker has which range."""


@dataclass(frozen=True, slots=True)
class ChoosePartitions:
    pass


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Tell every worker that there is a new goal. It is only a hint, because workers also ask by themselves."""

    stage: GoalStage


@dataclass(frozen=True, slots=True)
class EndJob:
    ok: bool


Command = AnnounceRanges | ChoosePartitions | SignalWorkers | EndJob

UNKNOWN_WORKER = "unknown_worker"
"""The code of the refusal of a worker that is not registered. If the worker has registered before, the master has lost its
journal."""

LEGAL, REPEATED, REFUSED = Reaction.LEGAL, Reaction.REPEATED, Reaction.REFUSED
DEAD = (M.FAILED, REFUSED)
T = TypeVar("T")

REACTS: Mapping[type[Event], Row[M]] = {
    # A worker that restarts registers again at any time. A worker too many is refused by its identity.
    WorkerJoined: dict.fromkeys(MASTER_WAY, LEGAL) | {M.FAILED: REFUSED},
    # A master that was killed while it chose has lost the samples, and they are sent again.
    SampleReceived: row(MASTER_WAY, {M.SAMPLING, M.CONFIGURING}, failed=DEAD),
    PartitionsChosen: row(MASTER_WAY, {M.CONFIGURING}, failed=(M.FAILED, REPEATED)),
    SortReported: row(MASTER_WAY, {M.SORTING}, failed=DEAD),
    ShuffleReported: row(MASTER_WAY, {M.SHUFFLING}, failed=DEAD),
    MergeReported: row(MASTER_WAY, {M.MERGING}, failed=DEAD),
    JobFailed: dict.fromkeys(MASTER_WAY, LEGAL) | {M.COMPLETED: REPEATED, M.FAILED: REPEATED},
}


def move_to(master: Master, target: M, reason: str, now: float) -> Master:
    if target not in MASTER_MAY_GO_TO[master.state]:
        raise IllegalTransition(master.state, target)
    transition = Transition(master.state, target, monotonic_time(master.history, now), reason)
    return replace(master, state=target, history=(*master.history, transition))


def step(master: Master, event: Event, now: float) -> tuple[Master, tuple[Command, ...]]:
    if isinstance(event, SampleReceived | SortReported | ShuffleReported | MergeReported) and event.attempt is not None:
        # Checked here again, because another attempt of the worker may have registered since the call.
        check_caller(master, master.job, event.index, event.attempt)
    match REACTS[type(event)][master.state]:
        case Reaction.REFUSED:
            raise WrongState(f"{type(event).__name__} is not allowed in state {master.state}{_because(master)}")
        case Reaction.REPEATED:
            if isinstance(event, SortReported):
                return _compare_declared(master, event, now)
            return master, ()
        case Reaction.LEGAL:
            return _take(master, event, now)


def _because(master: Master) -> str:
    return f" ({master.reason})" if master.reason else ""


def _take(master: Master, event: Event, now: float) -> tuple[Master, tuple[Command, ...]]:
    match event:
        case WorkerJoined():
            return _register(master, event, now)
        case SampleReceived(index, sample):
            return _take_sample(master, index, sample, now)
        case PartitionsChosen(cut):
            master = move_to(replace(master, cut=cut, samples={}), M.SORTING, f"{len(cut.owners)} partitions", now)
            return master, (SignalWorkers(GoalStage.SORT),)
        case SortReported(index, report):
            if fault := _declared_wrongly(master, report):
                return _fail(master, f"worker {index} {fault}", now)
            master = replace(master, sorted={**master.sorted, index: report})
            if len(master.sorted) < master.expected:
                return master, ()
            return move_to(master, M.SHUFFLING, "all workers have sorted", now), (SignalWorkers(GoalStage.SHUFFLE),)
        case ShuffleReported(index, report):
            master = replace(master, shuffled={**master.shuffled, index: report})
            if len(master.shuffled) < master.expected:
                return master, ()
            return move_to(master, M.MERGING, "all workers have their parts", now), (SignalWorkers(GoalStage.MERGE),)
        case MergeReported(index, report):
            master = replace(master, merged={**master.merged, index: report})
            if len(master.merged) < master.expected:
                return master, ()
            return _judge(master, now)
        case JobFailed(reason):
            return _fail(master, reason, now)
        case _:
            assert_never(event)


def _take_sample(master: Master, index: int, sample: Sample, now: float) -> tuple[Master, tuple[Command, ...]]:
    if index in master.samples:
        return master, ()
    master = replace(master, samples={**master.samples, index: sample})
    if len(master.samples) < master.expected:
        return master, ()
    if master.state is M.SAMPLING:
        master = move_to(master, M.CONFIGURING, "all samples have arrived", now)
    return master, (ChoosePartitions(),)


def _fail(master: Master, reason: str, now: float) -> tuple[Master, tuple[Command, ...]]:
    return replace(move_to(master, M.FAILED, reason, now), reason=reason), (SignalWorkers(GoalStage.ABORT), EndJob(ok=False))


def _judge(master: Master, now: float) -> tuple[Master, tuple[Command, ...]]:
    assert master.cut is not None
    if fault := find_fault(master.sorted, master.merged, len(master.cut.owners)):
        return _fail(master, fault, now)
    return move_to(master, M.COMPLETED, "totals and order are correct", now), (SignalWorkers(GoalStage.DONE), EndJob(ok=True))


def _declared_wrongly(master: Master, report: SortReport) -> str:
    assert master.cut is not None
    if len(report.declared) != len(master.cut.owners):
        return f"declares {len(report.declared)} partitions, but there are {len(master.cut.owners)}"
    return ""


def _compare_declared(master: Master, event: SortReported, now: float) -> tuple[Master, tuple[Command, ...]]:
    """A worker that sorts again after SHUFFLING began must declare the same as before: others may have its parts already."""
    before = master.sorted.get(event.index)
    if master.state is M.COMPLETED or before is None or before.declared == event.report.declared:
        return master, ()
    fault = f"worker {event.index} sorted its input again and declares other parts than before; the input may have changed"
    return _fail(master, fault, now)


# Registration.


def _register(master: Master, came: WorkerJoined, now: float) -> tuple[Master, tuple[Command, ...]]:
    for place, member in enumerate(master.members):
        if member.identity == came.identity:
            return _register_again(master, place, came, now)
    if master.state is not M.WAITING_FOR_WORKERS:
        there = ", ".join(member.identity for member in master.members)
        raise SortRefused(
            "too_many", f"{came.identity} cannot join: this job already has its {master.expected} workers ({there})"
        )
    if came.asked is not None and not 0 <= came.asked < master.expected:
        raise SortRefused("bad_index", f"--index {came.asked} is not from 0 to {master.expected - 1}, the workers of this job")
    attempt = came.attempt + 1
    new = RegisteredWorker(
        came.identity, came.nonce, came.asked, None, attempt, came.control, came.data, came.size, came.memory, came.format
    )
    members = (*master.members, new)
    if fault := formats_differ(master, members):
        return _fail(replace(master, members=members), fault, now)
    if len(members) < master.expected:
        return replace(master, members=members), ()
    master = replace(master, members=with_indices(members), format=master.format or agreed_format(members))
    return move_to(master, M.SAMPLING, f"all {master.expected} workers have registered", now), (AnnounceRanges(),)


def _register_again(master: Master, place: int, came: WorkerJoined, now: float) -> tuple[Master, tuple[Command, ...]]:
    member = master.members[place]
    if came.size != member.size and master.state not in (M.WAITING_FOR_WORKERS, M.COMPLETED):
        return _fail(master, f"the input of {came.identity} was {member.size} bytes and is now {came.size}", now)
    again = replace(member, control=came.control, data=came.data, size=came.size)
    if came.nonce != member.nonce:
        again = replace(again, nonce=came.nonce, attempt=max(member.attempt, came.attempt) + 1)
        master = _leave_barrier(master, member.index)
    if master.state is M.WAITING_FOR_WORKERS:
        again = replace(again, memory=came.memory, format=came.format)
    master = replace(master, members=(*master.members[:place], again, *master.members[place + 1 :]))
    if fault := formats_differ(master, master.members):
        return _fail(master, fault, now)
    return master, ()


FORMAT_OF_NOTHING = "lines"


def formats_differ(master: Master, members: tuple[RegisteredWorker, ...]) -> str:
    """Why the inputs cannot decide the format when no `--format` is given, with one example of each format; empty if
    they can."""
    examples = {member.format: member.identity for member in reversed(members) if member.format}
    if master.format or len(examples) < 2:
        return ""
    seem = ", ".join(f"{identity} seems to be {name}" for name, identity in sorted(examples.items()))
    return f"the inputs have different formats ({seem}); choose one with --format"


def agreed_format(members: tuple[RegisteredWorker, ...]) -> str:
    return next((member.format for member in members if member.format), FORMAT_OF_NOTHING)


def _leave_barrier(master: Master, index: int | None) -> Master:
    match master.state:
        case M.SAMPLING:
            return replace(master, samples=_without(master.samples, index))
        case M.SORTING:
            return replace(master, sorted=_without(master.sorted, index))
        case M.SHUFFLING:
            return replace(master, shuffled=_without(master.shuffled, index))
        case M.MERGING:
            return replace(master, merged=_without(master.merged, index))
        case _:
            return master


def _without(barrier: Mapping[int, T], index: int | None) -> Mapping[int, T]:
    return {other: report for other, report in barrier.items() if other != index}


def with_indices(members: tuple[RegisteredWorker, ...]) -> tuple[RegisteredWorker, ...]:
    """A worker gets the index that it asked for. The others get theirs in order of identity, never in order of arrival."""
    asked = {member.asked: member for member in members if member.asked is not None}
    others = iter(sorted((member for member in members if member.asked is None), key=lambda member: member.identity))
    return tuple(replace(asked[index] if index in asked else next(others), index=index) for index in range(len(members)))


def check_caller(master: Master, job: str, index: int, attempt: int) -> RegisteredWorker:
    """The worker that calls. Refuses a caller that is not its latest attempt."""
    if job != master.job:
        raise SortRefused("other_job", f"this is job {master.job}, not {job}")
    if not 0 <= index < len(master.members) or master.members[index].index is None:
        raise SortRefused(UNKNOWN_WORKER, f"worker {index} is not registered with this master")
    member = master.members[index]
    if attempt < member.attempt:
        raise StaleAttempt(f"attempt {attempt} of worker {index} is over: attempt {member.attempt} has replaced it")
    return member


def terms(master: Master, identity: str) -> WorkerAssignment:
    member = next(member for member in master.members if member.identity == identity)
    return WorkerAssignment(
        job=master.job,
        index=member.index,
        workers=master.expected,
        attempt=member.attempt,
        format=master.format,
        memory=master.memory,
        proof=master.proof,
        sync=master.sync,
        present=len(master.members),
    )


# Goals.

STAGE_OF: Mapping[M, GoalStage] = {
    M.WAITING_FOR_WORKERS: GoalStage.REGISTER,
    M.SAMPLING: GoalStage.SAMPLE,
    M.CONFIGURING: GoalStage.SAMPLE,
    M.SORTING: GoalStage.SORT,
    M.SHUFFLING: GoalStage.SHUFFLE,
    M.MERGING: GoalStage.MERGE,
    M.COMPLETED: GoalStage.DONE,
    M.FAILED: GoalStage.ABORT,
}

# A worker in this state has done what the master waits for. If the master does not have its report, the report was lost.
HAS_DONE: Mapping[tuple[M, str], WorkerPhase] = {
    (M.SAMPLING, WorkerState.WAITING_FOR_PARTITION_CONFIG): WorkerPhase.SAMPLING,
    (M.CONFIGURING, WorkerState.WAITING_FOR_PARTITION_CONFIG): WorkerPhase.SAMPLING,
    (M.SORTING, WorkerState.WAITING_FOR_SHUFFLE_SIGNAL): WorkerPhase.SORTING,
    (M.SHUFFLING, WorkerState.WAITING_FOR_MERGE_SIGNAL): WorkerPhase.SHUFFLING,
    (M.MERGING, WorkerState.COMPLETED): WorkerPhase.MERGING,
}


def goal(master: Master, index: int, beat: Beat, lacks: Mapping[int, tuple[tuple[int, int], ...]]) -> Goal:
    """The goal of one worker. `lacks` has the parts that each worker last reported as missing."""
    return Goal(
        stage=STAGE_OF[master.state],
        cut=None if beat.has_cut else master.cut,
        declared={} if beat.has_declared else _declared_to(master, index),
        peers=_peers(master),
        send=tuple(
            (partition, receiver)
            for receiver, parts in lacks.items()
            if receiver != index
            for partition, sender in parts
            if sender == index
        ),
        wants=_wanted(master, index, beat),
        reason=master.reason,
    )


def _peers(master: Master) -> tuple[Peer, ...]:
    return tuple(
        Peer(member.index, member.attempt, member.control, member.data) for member in master.members if member.index is not None
    )


def _wanted(master: Master, index: int, beat: Beat) -> WorkerPhase | None:
    phase = HAS_DONE.get((master.state, beat.state))
    barriers: Mapping[WorkerPhase, Mapping[int, object]] = {
        WorkerPhase.SAMPLING: master.samples,
        WorkerPhase.SORTING: master.sorted,
        WorkerPhase.SHUFFLING: master.shuffled,
        WorkerPhase.MERGING: master.merged,
    }
    return None if phase is None or index in barriers[phase] else phase


def _declared_to(master: Master, index: int) -> Mapping[int, tuple[Proof, ...]]:
    """For each partition of this worker what every sender has declared, once all have declared."""
    if master.cut is None or STAGE_OF[master.state] not in (GoalStage.SHUFFLE, GoalStage.MERGE):
        return {}
    reports = [master.sorted[sender] for sender in range(master.expected)]
    return {partition: tuple(report.declared[partition] for report in reports) for partition in master.cut.owned_by(index)}


def owners(partitions: int, workers: int) -> tuple[int, ...]:
    """The worker that owns each partition: the same number for each worker, in order."""
    return tuple(partition * workers // partitions for partition in range(partitions))
