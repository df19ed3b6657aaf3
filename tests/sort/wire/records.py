"""Random records of every kind."""

from typing import Any

from hypothesis import strategies as st

from torpor.sort.job.status import JobStatus, WorkerStatus
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.history import Transition
from torpor.sort.machine.records import (
    Beat,
    Goal,
    GoalStage,
    MergeReport,
    OutputFile,
    PartHeader,
    PartitionMap,
    Peer,
    Sample,
    ShuffleReport,
    SortReport,
    WorkerAssignment,
)
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import MODULUS, Proof
from torpor.sort.wire import conversion
from torpor.sort.wire.conversion import Codec
from torpor.sort.wire.requests import (
    Abort,
    Acknowledged,
    GetStatus,
    Heartbeat,
    OwnStatus,
    PartAcknowledged,
    RegisterWorker,
    Registration,
    ReportPhaseComplete,
    SetPartitionBoundaries,
    StartMerge,
    StartShuffle,
    SubmitSample,
    WorkerRef,
)

small = st.integers(0, 2**32 - 1)
large = st.integers(0, 2**64 - 1)
word = st.text(max_size=8)
key = st.binary(max_size=12)
number = st.floats(allow_nan=False)
truth = st.booleans()


def some(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


def perhaps(of: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | of


proof = st.builds(Proof, large, large, st.integers(0, MODULUS - 1))
caller = st.builds(WorkerRef, word, st.none() | small | word, small)
boundary = st.builds(Boundary, key, small, large)
cut = st.builds(PartitionMap, some(boundary), some(small))
peer = st.builds(Peer, small, small, word, word)
peers = some(peer)
pairs = some(st.tuples(small, small))
declared = st.dictionaries(small, some(proof), max_size=3)
phase = st.sampled_from(WorkerPhase)
sample = st.builds(Sample, some(st.tuples(key, large)), large)
report = (
    st.builds(SortReport, proof, some(proof), number)
    | st.builds(ShuffleReport, proof, number, large, large)
    | st.builds(MergeReport, some(st.builds(OutputFile, small, proof, key, key)), number)
)
beat = st.builds(Beat, word, number, pairs, truth, truth, word, truth)
transition = st.builds(Transition, word, word, number, word, small)
durations = st.dictionaries(word, number, max_size=3)
worker_status = st.builds(WorkerStatus, perhaps(small), word, small, word, word, word, word, number, word, number, large)
registration = st.builds(Registration, word, word, perhaps(small), word, word, large, large)

# Every record that is a message by itself, with its codec.
CROSSES: list[tuple[Codec[Any, Any], st.SearchStrategy[object]]] = [
    (conversion.REGISTER_WORKER, st.builds(RegisterWorker, caller, registration)),
    (conversion.TERMS, st.builds(WorkerAssignment, word, perhaps(small), small, small, word, large, truth, truth, small)),
    (conversion.SUBMIT_SAMPLE, st.builds(SubmitSample, caller, sample)),
    (conversion.REPORT_PHASE_COMPLETE, st.builds(ReportPhaseComplete, caller, report)),
    (conversion.HEARTBEAT, st.builds(Heartbeat, caller, beat)),
    (
        conversion.GOAL,
        st.builds(Goal, st.sampled_from(GoalStage), perhaps(cut), declared, peers, pairs, perhaps(phase), word),
    ),
    (conversion.SET_PARTITION_BOUNDARIES, st.builds(SetPartitionBoundaries, caller, cut, peers)),
    (conversion.START_SHUFFLE, st.builds(StartShuffle, caller, declared, peers)),
    (conversion.START_MERGE, st.builds(StartMerge, caller)),
    (conversion.PART_HEADER, st.builds(PartHeader, word, small, small, small, small, proof, some(large))),
    (conversion.PART_ACKNOWLEDGED, st.builds(PartAcknowledged, truth)),
    (conversion.GET_STATUS, st.builds(GetStatus, caller)),
    (
        conversion.OWN_STATUS,
        st.builds(
            OwnStatus,
            word,
            perhaps(small),
            word,
            small,
            word,
            phase,
            number,
            word,
            durations,
            st.dictionaries(word, large, max_size=3),
            some(transition),
        ),
    ),
    (
        conversion.JOB_STATUS,
        st.builds(JobStatus, word, word, word, word, word, small, some(worker_status), durations, some(transition), word, word),
    ),
    (conversion.ABORT, st.builds(Abort, caller, word)),
    (conversion.ACKNOWLEDGED, st.builds(Acknowledged)),
]
