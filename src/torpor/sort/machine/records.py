"""Define what master and workers send each other and save."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import Proof


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """How the keys are divided: P - 1 boundaries, and the worker that owns each of the P partitions (ascending)."""

    boundaries: tuple[Boundary, ...]
    owners: tuple[int, ...]

    def owned_by(self, worker: int) -> tuple[int, ...]:
        return tuple(partition for partition, owner in enumerate(self.owners) if owner == worker)


@dataclass(frozen=True, slots=True)
class Sample:
    keys: tuple[tuple[bytes, int], ...]
    """Keys with their positions."""
    records: int
    """The number of records that were read for it."""


@dataclass(frozen=True, slots=True)
class SortReport:
    """The input was written as runs. `declared` has the proof of each partition's records from this worker, also where they are
    none."""

    proof: Proof
    declared: tuple[Proof, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """Every declared part is complete here, and every part of this worker was acknowledged."""

    received: Proof
    seconds: float = 0.0
    retries: int = 0
    resent: int = 0


@dataclass(frozen=True, slots=True)
class OutputFile:
    partition: int
    proof: Proof
    first_key: bytes
    last_key: bytes


@dataclass(frozen=True, slots=True)
class MergeReport:
    files: tuple[OutputFile, ...]
    seconds: float = 0.0


Report = SortReport | ShuffleReport | MergeReport


@dataclass(frozen=True, slots=True)
class Peer:
    """The addresses for signals and parts of a worker, and its present attempt."""

    index: int
    attempt: int
    control: str
    """HOST:PORT"""
    data: str


@dataclass(frozen=True, slots=True)
class WorkerAssignment:
    """The answer to a registration."""

    job: str
    index: int | None
    """None until all workers are registered."""
    workers: int
    attempt: int
    format: str
    memory: int
    """The smallest memory of any worker. Chunks and partitions follow from it, so they are the same everywhere."""
    proof: bool
    """Whether records are hashed."""
    sync: bool
    """Whether files are flushed to the disk before they count as written."""
    present: int
    """How many workers have registered."""


class GoalStage(StrEnum):
    """How far a worker should go."""

    REGISTER = "REGISTER"
    SAMPLE = "SAMPLE"
    SORT = "SORT"
    SHUFFLE = "SHUFFLE"
    MERGE = "MERGE"
    DONE = "DONE"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a worker should reach, and everything that it needs for that. The goal decides; signals are only hints to ask for
    it."""

    stage: GoalStage
    cut: PartitionMap | None = None
    """Only for a worker that reports that it has none."""
    declared: Mapping[int, tuple[Proof, ...]] = field(default_factory=dict)
    """For each own partition the proofs that the senders declared; empty until all workers have declared."""
    peers: tuple[Peer, ...] = ()
    send: tuple[tuple[int, int], ...] = ()
    """(partition, receiver) of parts that the receiver reports as missing from this worker."""
    wants: WorkerPhase | None = None
    """A report (for SAMPLING, a sample) that the master did not get from this worker."""
    reason: str = ""
    """Why the stage is ABORT."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker reports in a heartbeat."""

    state: str
    progress: float
    lacks: tuple[tuple[int, int], ...] = ()
    """(partition, sender) of parts that are declared and not complete here; the first thousands."""
    has_cut: bool = False
    has_declared: bool = False
    reason: str = ""
    fatal: bool = False
    """The worker has failed, and a retry cannot help."""


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The first message of a part, before its bytes."""

    job: str
    partition: int
    sender: int
    attempt: int
    """The sender's."""
    receiver: int
    proof: Proof
    pieces: tuple[int, ...] = ()
    """The bytes of each piece, in chunk order; each piece is sorted."""
