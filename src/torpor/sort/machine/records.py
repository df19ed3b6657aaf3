"""What do master and workers tell each other and remember?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import Proof


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """How the keys are cut: P - 1 boundaries, and which worker owns each of the P partitions (ascending)."""

    boundaries: tuple[Boundary, ...]
    owners: tuple[int, ...]

    def owned_by(self, worker: int) -> tuple[int, ...]:
        return tuple(partition for partition, owner in enumerate(self.owners) if owner == worker)


@dataclass(frozen=True, slots=True)
class Sample:
    keys: tuple[tuple[bytes, int], ...]
    """Keys with their positions."""
    records: int
    """How many records were read for it."""


@dataclass(frozen=True, slots=True)
class SortReport:
    """The input has become runs; what each partition will get from this worker is declared, zero included."""

    proof: Proof
    declared: tuple[Proof, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """Every declared part is whole here, and every own part was acknowledged."""

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
    """Where a worker takes signals and parts, and which of its lives this is."""

    index: int
    attempt: int
    control: str
    """HOST:PORT"""
    data: str


@dataclass(frozen=True, slots=True)
class WorkerAssignment:
    """What a worker is told when it registers."""

    job: str
    index: int | None
    """None until all workers are there."""
    workers: int
    attempt: int
    format: str
    memory: int
    """The least that any worker has: chunks and partitions follow from it, so that they are the same everywhere."""
    proof: bool
    """Whether records are hashed on their way."""
    sync: bool
    """Whether files are flushed to the disk before they count."""
    present: int
    """How many workers have registered."""


class GoalStage(StrEnum):
    """How far a worker should come."""

    REGISTER = "REGISTER"
    SAMPLE = "SAMPLE"
    SORT = "SORT"
    SHUFFLE = "SHUFFLE"
    MERGE = "MERGE"
    DONE = "DONE"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a worker should reach, and everything it needs for that. It is the truth; signals are hints of it."""

    stage: GoalStage
    cut: PartitionMap | None = None
    """Only for a worker that says it has none."""
    declared: Mapping[int, tuple[Proof, ...]] = field(default_factory=dict)
    """For each own partition what each sender declared; empty until everybody has declared."""
    peers: tuple[Peer, ...] = ()
    send: tuple[tuple[int, int], ...] = ()
    """(partition, receiver) that a receiver says it lacks from this worker."""
    wants: WorkerPhase | None = None
    """A report (or, for SAMPLING, a sample) that the master has not got from this worker."""
    reason: str = ""
    """Why it is ABORT."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker says of itself in a heartbeat."""

    state: str
    progress: float
    lacks: tuple[tuple[int, int], ...] = ()
    """(partition, sender) that are declared and not whole here; the first thousands of them."""
    has_cut: bool = False
    has_declared: bool = False
    reason: str = ""
    fatal: bool = False
    """It has failed in a way that trying again cannot help."""


@dataclass(frozen=True, slots=True)
class PartHeader:
    """What goes before the bytes of a part."""

    job: str
    partition: int
    sender: int
    attempt: int
    """The sender's."""
    receiver: int
    proof: Proof
    pieces: tuple[int, ...] = ()
    """The bytes of each piece, in chunk order; each piece is sorted."""
