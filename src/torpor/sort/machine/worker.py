"""What does a worker do about what has happened?

`step(worker, event, now) -> (worker, commands)`. The whole value is saved before any of the commands is carried out; what a
command's hand returns is the next event, what it raises is the event `Broke`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from torpor.sort.machine.history import Transition, no_earlier
from torpor.sort.machine.reactions import IllegalTransition, Reaction, Row, WrongState, row
from torpor.sort.machine.records import Cut, Goal, MergeReport, Report, Sample, ShuffleReport, SortReport, Stage, Terms
from torpor.sort.machine.states import WORKER_MAY_GO_TO, WORKER_WAY, Phase
from torpor.sort.machine.states import WorkerState as W


@dataclass(frozen=True, slots=True)
class Worker:
    identity: str
    job: str = ""
    state: W = W.INITIALIZING
    terms: Terms | None = None
    sample: Sample | None = None
    """Until the boundaries are known: the master may ask for it again."""
    cut: Cut | None = None
    """Never changes once it is here."""
    sorted: SortReport | None = None
    shuffled: ShuffleReport | None = None
    merged: MergeReport | None = None
    failing: W | None = None
    """In which state it failed last."""
    reason: str = ""
    """Why it failed last."""
    fatal: bool = False
    """It failed in a way that trying again cannot help."""
    aborted: bool = False
    """The master, or somebody else, has ended the job."""
    job_done: bool = False
    """The master has said that the whole job is completed."""
    history: tuple[Transition, ...] = ()

    @property
    def attempt(self) -> int:
        return self.terms.attempt if self.terms else 0

    def report(self, phase: Phase) -> Report | Sample | None:
        match phase:
            case Phase.SAMPLING:
                return self.sample
            case Phase.SORTING:
                return self.sorted
            case Phase.SHUFFLING:
                return self.shuffled
            case Phase.MERGING:
                return self.merged
            case _:
                return None


# What happens.


@dataclass(frozen=True, slots=True)
class Started:
    """The process is up, its directories are its own."""


@dataclass(frozen=True, slots=True)
class Registered:
    terms: Terms


@dataclass(frozen=True, slots=True)
class Sampled:
    sample: Sample


@dataclass(frozen=True, slots=True)
class CutCame:
    cut: Cut


@dataclass(frozen=True, slots=True)
class Swept:
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
class ReportWanted:
    phase: Phase


@dataclass(frozen=True, slots=True)
class PartsWanted:
    parts: tuple[tuple[int, int], ...]
    """(partition, receiver)"""


@dataclass(frozen=True, slots=True)
class Broke:
    reason: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class AbortAsked:
    reason: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """A new process takes up what a failed one left."""

    reason: str


Event = (
    Started
    | Registered
    | Sampled
    | CutCame
    | Swept
    | ShuffleSignal
    | Shuffled
    | MergeSignal
    | Merged
    | JobDone
    | ReportWanted
    | PartsWanted
    | Broke
    | AbortAsked
    | Restarted
)


# What is to be done.


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
class Tell:
    """Hand the master a sample or a report."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class SendAll:
    """Every part that another worker owns, without waiting for the signal: whoever has boundaries takes parts."""


@dataclass(frozen=True, slots=True)
class SendParts:
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FinishShuffle:
    """Until every declared part is whole and every own one acknowledged."""


@dataclass(frozen=True, slots=True)
class MergeAhead:
    """All own parts are whole, so what others still wait for need not be waited for; only to be Merging needs the signal."""


@dataclass(frozen=True, slots=True)
class Merge:
    pass


@dataclass(frozen=True, slots=True)
class TellFailure:
    pass


@dataclass(frozen=True, slots=True)
class AbortJob:
    """Tell the master that the job cannot come to a good end."""

    reason: str


@dataclass(frozen=True, slots=True)
class RemoveTemporaries:
    pass


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """The job is over for good: scratch goes, and this job's output with it."""


@dataclass(frozen=True, slots=True)
class Leave:
    ok: bool


Command = (
    Register
    | DrawSample
    | Sweep
    | Tell
    | SendAll
    | SendParts
    | FinishShuffle
    | MergeAhead
    | Merge
    | TellFailure
    | AbortJob
    | RemoveTemporaries
    | RemoveAll
    | Leave
)

LEGAL, REPEATED, REFUSED = Reaction.LEGAL, Reaction.REPEATED, Reaction.REFUSED

# A hand that ends after the worker has failed changes nothing; a signal to a failed worker is refused.
LATE, DEAD = (W.FAILED, REPEATED), (W.FAILED, REFUSED)
HAS_RUNS = {W.WAITING_FOR_SHUFFLE_SIGNAL, W.SHUFFLING, W.WAITING_FOR_MERGE_SIGNAL, W.MERGING, W.COMPLETED}

REACTS: Mapping[type[Event], Row[W]] = {
    Started: row(WORKER_WAY, {W.INITIALIZING, W.COMPLETED}, failed=DEAD, after=REFUSED),
    # One that was Completed when it was killed registers again, to report again.
    Registered: row(WORKER_WAY, {W.INITIALIZING, W.COMPLETED}, failed=LATE),
    Sampled: row(WORKER_WAY, {W.SAMPLING}, failed=LATE),
    CutCame: row(WORKER_WAY, {W.INITIALIZING, W.SAMPLING, W.WAITING_FOR_PARTITION_CONFIG}, failed=DEAD),
    Swept: row(WORKER_WAY, {W.SORTING}, failed=LATE),
    ShuffleSignal: row(WORKER_WAY, {W.WAITING_FOR_SHUFFLE_SIGNAL}, failed=DEAD),
    Shuffled: row(WORKER_WAY, {W.SHUFFLING}, failed=LATE),
    MergeSignal: row(WORKER_WAY, {W.WAITING_FOR_MERGE_SIGNAL}, failed=DEAD),
    Merged: row(WORKER_WAY, {W.MERGING}, failed=LATE),
    JobDone: row(WORKER_WAY, {W.COMPLETED}, failed=DEAD),
    # What is wanted is told by every heartbeat until it is there: before it can be had, it is not an error to want it.
    ReportWanted: dict.fromkeys(WORKER_WAY, LEGAL) | {W.FAILED: REPEATED},
    PartsWanted: {state: LEGAL if state in HAS_RUNS else REPEATED for state in W},
    Broke: dict.fromkeys(WORKER_WAY, LEGAL) | {W.FAILED: REPEATED},
    AbortAsked: dict.fromkeys(WORKER_WAY, LEGAL) | {W.FAILED: REPEATED},
    Restarted: dict.fromkeys(WORKER_WAY, REFUSED) | {W.FAILED: LEGAL},
}


def go(worker: Worker, target: W, reason: str, now: float) -> Worker:
    """One transition, recorded; what may not follow is refused with both states named."""
    if target not in WORKER_MAY_GO_TO[worker.state]:
        raise IllegalTransition(worker.state, target)
    transition = Transition(worker.state, target, no_earlier(worker.history, now), reason, worker.attempt)
    return replace(worker, state=target, history=(*worker.history, transition))


def require_state(worker: Worker, *expected: W) -> None:
    if worker.state not in expected:
        raise WrongState(f"expected state {' or '.join(expected)} but was {worker.state}")


def step(worker: Worker, event: Event, now: float) -> tuple[Worker, tuple[Command, ...]]:
    match REACTS[type(event)][worker.state]:
        case Reaction.REFUSED:
            raise WrongState(f"{type(event).__name__} cannot be in state {worker.state}")
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
                return worker, (Tell(Phase.MERGING),)
            return go(worker, W.SAMPLING, f"registered as worker {terms.index} of {terms.workers}", now), (DrawSample(),)
        case Sampled(sample):
            worker = go(replace(worker, sample=sample), W.WAITING_FOR_PARTITION_CONFIG, f"{len(sample.keys)} keys drawn", now)
            return worker, (Tell(Phase.SAMPLING),)
        case CutCame(cut):
            return _take_cut(worker, cut, now)
        case Swept(report):
            worker = replace(worker, sorted=report)
            worker = go(worker, W.WAITING_FOR_SHUFFLE_SIGNAL, f"{report.proof.records} records sorted", now)
            return worker, (Tell(Phase.SORTING), SendAll())
        case ShuffleSignal():
            return go(worker, W.SHUFFLING, "everybody has sorted", now), (FinishShuffle(),)
        case Shuffled(report):
            worker = replace(worker, shuffled=report)
            worker = go(worker, W.WAITING_FOR_MERGE_SIGNAL, f"{report.received.records} records received", now)
            return worker, (Tell(Phase.SHUFFLING), MergeAhead())
        case MergeSignal():
            return go(worker, W.MERGING, "everybody has every part", now), (Merge(),)
        case Merged(report):
            worker = replace(worker, merged=report)
            return go(worker, W.COMPLETED, f"{len(report.files)} files written", now), (Tell(Phase.MERGING),)
        case JobDone():
            return replace(worker, job_done=True), (Leave(ok=True),)
        case ReportWanted(phase):
            return worker, (Tell(phase),) if worker.report(phase) else ()
        case PartsWanted(parts):
            return worker, (SendParts(parts),)
        case Broke(reason, fatal) if worker.state is W.COMPLETED:
            # What is Completed cannot fail any more, but the job can: others would wait for what this worker cannot give. And a
            # process that is of no use can end: the next one finds everything as it is.
            return replace(worker, reason=reason), (AbortJob(reason),) if fatal else (Leave(ok=False),)
        case Broke(reason, fatal):
            # A job that cannot be saved leaves nothing. Who was not even let in keeps what an earlier life has done.
            ends_the_job = fatal and worker.state is not W.INITIALIZING
            removal = RemoveAll() if ends_the_job else RemoveTemporaries()
            return _fail(worker, reason, fatal, now), (TellFailure(), removal, Leave(ok=False))
        case AbortAsked(reason):
            if worker.state is not W.COMPLETED:
                worker = _fail(worker, f"aborted: {reason}", False, now)
            return replace(worker, aborted=True, reason=f"aborted: {reason}"), (RemoveAll(), Leave(ok=False))
        case Restarted(reason):
            worker = go(worker, W.INITIALIZING, reason, now)
            forgotten = replace(worker, sample=None, sorted=None, shuffled=None, merged=None, fatal=False, aborted=False)
            return forgotten, (Register(),)
        case _:
            assert_never(event)


def _take_cut(worker: Worker, cut: Cut, now: float) -> tuple[Worker, tuple[Command, ...]]:
    _check_cut(worker, cut)
    worker = replace(worker, cut=cut)
    if worker.state is not W.WAITING_FOR_PARTITION_CONFIG:
        return worker, ()
    return go(replace(worker, sample=None), W.SORTING, f"{len(cut.owners)} partitions", now), (Sweep(),)


def _fail(worker: Worker, reason: str, fatal: bool, now: float) -> Worker:
    failing = worker.state
    return replace(go(worker, W.FAILED, reason, now), failing=failing, reason=reason, fatal=fatal)


def _check_repeated(worker: Worker, event: Event) -> None:
    if isinstance(event, CutCame):
        _check_cut(worker, event.cut)


def _check_cut(worker: Worker, cut: Cut) -> None:
    if worker.cut is not None and worker.cut != cut:
        raise WrongState(f"other boundaries are in the journal, and they never change (state {worker.state})")


AT_LEAST: Mapping[Stage, int] = {stage: place for place, stage in enumerate(Stage)}


def heed(worker: Worker, goal: Goal) -> tuple[Event, ...]:
    """What the goal means for a worker that stands here: asked again and again, so a missed signal is no loss."""
    if goal.stage is Stage.ABORT:
        return () if worker.state is W.FAILED else (AbortAsked(goal.reason),)
    if goal.stage is Stage.DONE:
        return _heed_done(worker)
    wanted: list[Event] = []
    if goal.wants is not None and worker.report(goal.wants) is not None:
        wanted.append(ReportWanted(goal.wants))
    if goal.send and worker.state in HAS_RUNS:
        wanted.append(PartsWanted(goal.send))
    return (*wanted, *_heed_stage(worker, goal))


def _heed_done(worker: Worker) -> tuple[Event, ...]:
    match worker.state:
        case W.COMPLETED:
            return () if worker.job_done else (JobDone(),)
        case W.FAILED:
            return ()
        case _:
            return (Broke("the job is completed, and the output of this worker is not here any more"),)


def _heed_stage(worker: Worker, goal: Goal) -> tuple[Event, ...]:
    reached = AT_LEAST[goal.stage]
    cut = goal.cut or worker.cut
    match worker.state:
        case W.WAITING_FOR_PARTITION_CONFIG if cut and reached >= AT_LEAST[Stage.SORT]:
            return (CutCame(cut),)
        case W.WAITING_FOR_SHUFFLE_SIGNAL if reached >= AT_LEAST[Stage.SHUFFLE]:
            return (ShuffleSignal(),)
        case W.WAITING_FOR_MERGE_SIGNAL if reached >= AT_LEAST[Stage.MERGE]:
            return (MergeSignal(),)
        case _:
            return ()
