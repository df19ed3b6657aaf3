"""Define the states of a worker and of a master, and the transitions between them."""

from collections.abc import Mapping
from enum import StrEnum


class WorkerState(StrEnum):
    INITIALIZING = "Initializing"
    SAMPLING = "Sampling"
    WAITING_FOR_PARTITION_CONFIG = "WaitingForPartitionConfig"
    SORTING = "Sorting"
    WAITING_FOR_SHUFFLE_SIGNAL = "WaitingForShuffleSignal"
    SHUFFLING = "Shuffling"
    WAITING_FOR_MERGE_SIGNAL = "WaitingForMergeSignal"
    MERGING = "Merging"
    COMPLETED = "Completed"
    FAILED = "Failed"


class MasterState(StrEnum):
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    SAMPLING = "Sampling"
    CONFIGURING = "Configuring"
    SORTING = "Sorting"
    SHUFFLING = "Shuffling"
    MERGING = "Merging"
    COMPLETED = "Completed"
    FAILED = "Failed"


class WorkerPhase(StrEnum):
    """The phase that a worker reports. A waiting state belongs to the phase before it."""

    INITIALIZING = "INITIALIZING"
    SAMPLING = "SAMPLING"
    SORTING = "SORTING"
    SHUFFLING = "SHUFFLING"
    MERGING = "MERGING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


W, M = WorkerState, MasterState

# The order of states without a failure. Each state but the last can also go to Failed, and Failed goes back to Initializing
# (worker).
WORKER_WAY = (
    W.INITIALIZING,
    W.SAMPLING,
    W.WAITING_FOR_PARTITION_CONFIG,
    W.SORTING,
    W.WAITING_FOR_SHUFFLE_SIGNAL,
    W.SHUFFLING,
    W.WAITING_FOR_MERGE_SIGNAL,
    W.MERGING,
    W.COMPLETED,
)
MASTER_WAY = (
    M.WAITING_FOR_WORKERS,
    M.SAMPLING,
    M.CONFIGURING,
    M.SORTING,
    M.SHUFFLING,
    M.MERGING,
    M.COMPLETED,
)

WORKER_MAY_GO_TO: Mapping[WorkerState, frozenset[WorkerState]] = {
    W.INITIALIZING: frozenset({W.SAMPLING, W.FAILED}),
    W.SAMPLING: frozenset({W.WAITING_FOR_PARTITION_CONFIG, W.FAILED}),
    W.WAITING_FOR_PARTITION_CONFIG: frozenset({W.SORTING, W.FAILED}),
    W.SORTING: frozenset({W.WAITING_FOR_SHUFFLE_SIGNAL, W.FAILED}),
    W.WAITING_FOR_SHUFFLE_SIGNAL: frozenset({W.SHUFFLING, W.FAILED}),
    W.SHUFFLING: frozenset({W.WAITING_FOR_MERGE_SIGNAL, W.FAILED}),
    W.WAITING_FOR_MERGE_SIGNAL: frozenset({W.MERGING, W.FAILED}),
    W.MERGING: frozenset({W.COMPLETED, W.FAILED}),
    W.COMPLETED: frozenset(),
    W.FAILED: frozenset({W.INITIALIZING}),
}
MASTER_MAY_GO_TO: Mapping[MasterState, frozenset[MasterState]] = {
    M.WAITING_FOR_WORKERS: frozenset({M.SAMPLING, M.FAILED}),
    M.SAMPLING: frozenset({M.CONFIGURING, M.FAILED}),
    M.CONFIGURING: frozenset({M.SORTING, M.FAILED}),
    M.SORTING: frozenset({M.SHUFFLING, M.FAILED}),
    M.SHUFFLING: frozenset({M.MERGING, M.FAILED}),
    M.MERGING: frozenset({M.COMPLETED, M.FAILED}),
    M.COMPLETED: frozenset(),
    M.FAILED: frozenset(),
}

MASTER_TERMINAL = frozenset({M.COMPLETED, M.FAILED})

# The states in which a worker works and does not wait. Their time is measured.
WORKING = (W.SAMPLING, W.SORTING, W.SHUFFLING, W.MERGING)

PHASE_OF: Mapping[WorkerState, WorkerPhase] = {
    W.INITIALIZING: WorkerPhase.INITIALIZING,
    W.SAMPLING: WorkerPhase.SAMPLING,
    W.WAITING_FOR_PARTITION_CONFIG: WorkerPhase.SAMPLING,
    W.SORTING: WorkerPhase.SORTING,
    W.WAITING_FOR_SHUFFLE_SIGNAL: WorkerPhase.SORTING,
    W.SHUFFLING: WorkerPhase.SHUFFLING,
    W.WAITING_FOR_MERGE_SIGNAL: WorkerPhase.SHUFFLING,
    W.MERGING: WorkerPhase.MERGING,
    W.COMPLETED: WorkerPhase.COMPLETED,
    W.FAILED: WorkerPhase.FAILED,
}

# The progress at which a state begins, from 0 to 100, and the state's share.
PROGRESS: Mapping[WorkerState, tuple[float, float]] = {
    W.INITIALIZING: (0, 0),
    W.SAMPLING: (10, 0),
    W.WAITING_FOR_PARTITION_CONFIG: (15, 0),
    W.SORTING: (15, 0.40),
    W.WAITING_FOR_SHUFFLE_SIGNAL: (55, 0),
    W.SHUFFLING: (55, 0.25),
    W.WAITING_FOR_MERGE_SIGNAL: (80, 0),
    W.MERGING: (80, 0.20),
    W.COMPLETED: (100, 0),
    W.FAILED: (0, 0),
}

WORKER_MEANS: Mapping[WorkerState, str] = {
    W.INITIALIZING: "registering",
    W.SAMPLING: "drawing sample keys",
    W.WAITING_FOR_PARTITION_CONFIG: "sample sent, boundaries not yet known",
    W.SORTING: "sorting the input into runs",
    W.WAITING_FOR_SHUFFLE_SIGNAL: "sorted, waiting for the other workers",
    W.SHUFFLING: "sending and receiving parts",
    W.WAITING_FOR_MERGE_SIGNAL: "has all parts, waiting for the other workers",
    W.MERGING: "merging parts into output files",
    W.COMPLETED: "output complete",
    W.FAILED: "failed",
}
MASTER_MEANS: Mapping[MasterState, str] = {
    M.WAITING_FOR_WORKERS: "waiting until all workers have registered",
    M.SAMPLING: "waiting for every worker's sample",
    M.CONFIGURING: "choosing boundaries",
    M.SORTING: "workers sort their inputs",
    M.SHUFFLING: "workers send each other their parts",
    M.MERGING: "workers write their output",
    M.COMPLETED: "the output is complete",
    M.FAILED: "failed",
}


def progress(state: WorkerState, done: float) -> float:
    """From 0 to 100. `done` is how much of the state's own work is done, also from 0 to 100."""
    begins, share = PROGRESS[state]
    return begins + share * min(100.0, max(0.0, done))
