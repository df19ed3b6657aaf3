"""Hold what all steps that move a worker's records need."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from torpor.sort.data.files import digest
from torpor.sort.data.inputs import InputReader
from torpor.sort.data.memory_budget import MemoryBudget, memory_budget
from torpor.sort.data.segments import Inputs
from torpor.sort.data.worker_directory import WorkerDirectory
from torpor.sort.machine.records import PartitionMap
from torpor.sort.record import Format


class StopRequested(Exception):
    """The work was asked to stop; it did not fail."""


def _ignore_progress(_: float) -> None:
    return


@dataclass(frozen=True, slots=True)
class SortContext:
    job: str
    index: int
    workers: int
    attempt: int
    cut: PartitionMap
    format: Format
    inputs: Inputs
    reader: InputReader
    place: WorkerDirectory
    memory: int
    threads: int
    proof: bool = True
    """Whether records are hashed."""
    sync: bool = True
    """Whether output is on the disk before it counts as written."""
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[float], None] = _ignore_progress
    """Gets how much of the present work is done, from 0 to 100. Called from any thread."""

    @property
    def partitions(self) -> int:
        return len(self.cut.owners)

    @property
    def own(self) -> tuple[int, ...]:
        return self.cut.owned_by(self.index)

    @property
    def budget(self) -> MemoryBudget:
        return memory_budget(self.memory, self.threads, self.format, self.inputs, self.workers)

    @property
    def boundaries(self) -> str:
        """The digest that distinguishes files made under other boundaries."""
        return digest(self.cut.boundaries)

    @property
    def sync_scratch(self) -> bool:
        """Whether scratch files are fsynced. Files with checksums are checked before they are used again, so they need no
        fsync."""
        return self.sync and not self.proof

    def go_on(self) -> None:
        """Raise if the work should stop. Called between blocks."""
        if self.stop.is_set():
            raise StopRequested("the work was stopped")
