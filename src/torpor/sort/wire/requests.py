"""Define the requests and answers of the calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.sort.machine.history import Transition
from torpor.sort.machine.records import Beat, PartitionMap, Peer, Report, Sample
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import Proof

JOB_FAILED = "job_failed"
"""The code of the refusal of a worker that registers after the job has failed."""


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """The attempt of a worker that a call is about: the caller in calls to the master, the called worker in calls to a
    worker."""

    job: str = ""
    worker: int | str | None = None
    """Its index; its identity while it has no index; None for a user who only asks."""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Registration:
    identity: str
    nonce: str
    """Random for each process: the same nonce is the same attempt."""
    asked: int | None
    """The index that the worker asks for."""
    control: str
    """HOST:PORT"""
    data: str
    size: int
    """Bytes of input."""
    memory: int
    format: str = ""
    """The format that its input seems to have; empty if it has no input."""


@dataclass(frozen=True, slots=True)
class RegisterWorker:
    caller: WorkerRef
    registration: Registration


@dataclass(frozen=True, slots=True)
class SubmitSample:
    caller: WorkerRef
    sample: Sample


@dataclass(frozen=True, slots=True)
class ReportPhaseComplete:
    caller: WorkerRef
    report: Report
    history: tuple[Transition, ...] = ()
    """What has happened to the worker so far."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    caller: WorkerRef
    beat: Beat


@dataclass(frozen=True, slots=True)
class SetPartitionBoundaries:
    caller: WorkerRef
    cut: PartitionMap
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class StartShuffle:
    caller: WorkerRef
    declared: Mapping[int, tuple[Proof, ...]] = field(default_factory=dict)
    """For each partition of the called worker what each sender declared."""
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True, slots=True)
class StartMerge:
    caller: WorkerRef


@dataclass(frozen=True, slots=True)
class GetStatus:
    caller: WorkerRef = WorkerRef()


@dataclass(frozen=True, slots=True)
class Abort:
    caller: WorkerRef
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The request took effect, now or before."""


@dataclass(frozen=True, slots=True)
class PartAcknowledged:
    taken: bool
    """False: the part was complete before, and this stream was not used."""


@dataclass(frozen=True, slots=True)
class OwnStatus:
    """The status of a worker, as reported by itself."""

    job: str
    index: int | None
    identity: str
    attempt: int
    state: str
    phase: WorkerPhase
    progress: float
    message: str
    durations: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    history: tuple[Transition, ...] = ()
