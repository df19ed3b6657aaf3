"""Convert records to protobuf messages and back.

Every field is written out, so that mypy checks both sides; decision 32 says why this is not a table.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from google.protobuf.message import DecodeError, Message

from torpor.sort.errors import SortRefused
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
    Report,
    Sample,
    ShuffleReport,
    SortReport,
    WorkerAssignment,
)
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import Proof
from torpor.sort.wire import sort_pb2 as pb
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

RecordType = TypeVar("RecordType")
MessageType = TypeVar("MessageType", bound=Message)


@dataclass(frozen=True, slots=True)
class Codec(Generic[RecordType, MessageType]):
    """One record and its message. `write` and `read` are inverse to each other."""

    message: type[MessageType]
    write: Callable[[RecordType], MessageType]
    read: Callable[[MessageType], RecordType]

    def to_bytes(self, record: RecordType) -> bytes:
        return self.write(record).SerializeToString()

    def from_bytes(self, serialized: bytes) -> RecordType:
        message = self.message()
        try:
            message.ParseFromString(serialized)
            return self.read(message)
        except (DecodeError, KeyError) as error:
            # KeyError: a phase or stage that is not in our tables
            raise malformed(self.message.__name__) from error


def malformed(what: str) -> SortRefused:
    return SortRefused("malformed", f"this is not a valid {what} of the sort's protocol")


PHASE_TO_WIRE: Mapping[WorkerPhase, pb.Phase] = {
    WorkerPhase.INITIALIZING: pb.PHASE_INITIALIZING,
    WorkerPhase.SAMPLING: pb.PHASE_SAMPLING,
    WorkerPhase.SORTING: pb.PHASE_SORTING,
    WorkerPhase.SHUFFLING: pb.PHASE_SHUFFLING,
    WorkerPhase.MERGING: pb.PHASE_MERGING,
    WorkerPhase.COMPLETED: pb.PHASE_COMPLETED,
    WorkerPhase.FAILED: pb.PHASE_FAILED,
}
STAGE_TO_WIRE: Mapping[GoalStage, pb.Stage] = {
    GoalStage.REGISTER: pb.STAGE_REGISTER,
    GoalStage.SAMPLE: pb.STAGE_SAMPLE,
    GoalStage.SORT: pb.STAGE_SORT,
    GoalStage.SHUFFLE: pb.STAGE_SHUFFLE,
    GoalStage.MERGE: pb.STAGE_MERGE,
    GoalStage.DONE: pb.STAGE_DONE,
    GoalStage.ABORT: pb.STAGE_ABORT,
}
PHASE_FROM_WIRE = {number: phase for phase, number in PHASE_TO_WIRE.items()}
STAGE_FROM_WIRE = {number: stage for stage, number in STAGE_TO_WIRE.items()}


def text(value: str) -> str:
    """Valid UTF-8, which protobuf requires. Reasons and identities can contain names of files that are not UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def write_caller(caller: WorkerRef) -> pb.Caller:
    match caller.worker:
        case None:
            return pb.Caller(job=text(caller.job), attempt=caller.attempt)
        case str(identity):
            return pb.Caller(job=text(caller.job), identity=text(identity), attempt=caller.attempt)
        case int(index):
            return pb.Caller(job=text(caller.job), index=index, attempt=caller.attempt)
        case _:
            assert_never(caller.worker)


def read_caller(message: pb.Caller) -> WorkerRef:
    worker: int | str | None
    match message.WhichOneof("worker"):
        case "index":
            worker = message.index
        case "identity":
            worker = message.identity
        case _:
            worker = None
    return WorkerRef(message.job, worker, message.attempt)


def write_registration(registration: Registration) -> pb.Registration:
    return pb.Registration(
        identity=text(registration.identity),
        nonce=registration.nonce,
        asked=registration.asked,
        control=registration.control,
        data=registration.data,
        size=registration.size,
        memory=registration.memory,
        format=registration.format,
    )


def read_registration(message: pb.Registration) -> Registration:
    return Registration(
        message.identity,
        message.nonce,
        message.asked if message.HasField("asked") else None,
        message.control,
        message.data,
        message.size,
        message.memory,
        message.format,
    )


def write_terms(terms: WorkerAssignment) -> pb.Terms:
    return pb.Terms(
        job=terms.job,
        index=terms.index,
        workers=terms.workers,
        attempt=terms.attempt,
        format=terms.format,
        memory=terms.memory,
        proof=terms.proof,
        sync=terms.sync,
        present=terms.present,
    )


def read_terms(message: pb.Terms) -> WorkerAssignment:
    return WorkerAssignment(
        message.job,
        message.index if message.HasField("index") else None,
        message.workers,
        message.attempt,
        message.format,
        message.memory,
        message.proof,
        message.sync,
        message.present,
    )


def write_sample(sample: Sample) -> pb.Sample:
    keys = [pb.SampledKey(key=key, position=position) for key, position in sample.keys]
    return pb.Sample(keys=keys, records=sample.records)


def read_sample(message: pb.Sample) -> Sample:
    return Sample(tuple((sampled.key, sampled.position) for sampled in message.keys), message.records)


def write_proof(proof: Proof) -> pb.Proof:
    return pb.Proof(records=proof.records, size=proof.size, checksum=proof.checksum)


def read_proof(message: pb.Proof) -> Proof:
    return Proof(message.records, message.size, message.checksum)


def write_sort_report(report: SortReport) -> pb.SortReport:
    return pb.SortReport(
        proof=write_proof(report.proof), declared=[write_proof(proof) for proof in report.declared], seconds=report.seconds
    )


def read_sort_report(message: pb.SortReport) -> SortReport:
    return SortReport(read_proof(message.proof), tuple(read_proof(proof) for proof in message.declared), message.seconds)


def write_shuffle_report(report: ShuffleReport) -> pb.ShuffleReport:
    return pb.ShuffleReport(
        received=write_proof(report.received), seconds=report.seconds, retries=report.retries, resent=report.resent
    )


def read_shuffle_report(message: pb.ShuffleReport) -> ShuffleReport:
    return ShuffleReport(read_proof(message.received), message.seconds, message.retries, message.resent)


def write_merge_report(report: MergeReport) -> pb.MergeReport:
    files = [
        pb.OutputFile(partition=file.partition, proof=write_proof(file.proof), first_key=file.first_key, last_key=file.last_key)
        for file in report.files
    ]
    return pb.MergeReport(files=files, seconds=report.seconds)


def read_merge_report(message: pb.MergeReport) -> MergeReport:
    files = (OutputFile(file.partition, read_proof(file.proof), file.first_key, file.last_key) for file in message.files)
    return MergeReport(tuple(files), message.seconds)


def write_report(request: ReportPhaseComplete) -> pb.ReportPhaseCompleteRequest:
    message = pb.ReportPhaseCompleteRequest(caller=write_caller(request.caller), history=write_history(request.history))
    match request.report:
        case SortReport() as report:
            message.sort.CopyFrom(write_sort_report(report))
        case ShuffleReport() as report:
            message.shuffle.CopyFrom(write_shuffle_report(report))
        case MergeReport() as report:
            message.merge.CopyFrom(write_merge_report(report))
        case _:
            assert_never(request.report)
    return message


def read_report(message: pb.ReportPhaseCompleteRequest) -> ReportPhaseComplete:
    report: Report
    match message.WhichOneof("report"):
        case "sort":
            report = read_sort_report(message.sort)
        case "shuffle":
            report = read_shuffle_report(message.shuffle)
        case "merge":
            report = read_merge_report(message.merge)
        case _:
            raise malformed("ReportPhaseCompleteRequest")
    return ReportPhaseComplete(read_caller(message.caller), report, read_history(message.history))


def write_pairs(pairs: Iterable[tuple[int, int]]) -> list[pb.PartOfWorker]:
    return [pb.PartOfWorker(partition=partition, worker=worker) for partition, worker in pairs]


def read_pairs(messages: Iterable[pb.PartOfWorker]) -> tuple[tuple[int, int], ...]:
    return tuple((pair.partition, pair.worker) for pair in messages)


def write_beat(beat: Beat) -> pb.Beat:
    return pb.Beat(
        state=beat.state,
        progress=beat.progress,
        lacks=write_pairs(beat.lacks),
        has_cut=beat.has_cut,
        has_declared=beat.has_declared,
        reason=text(beat.reason),
        fatal=beat.fatal,
    )


def read_beat(message: pb.Beat) -> Beat:
    return Beat(
        message.state,
        message.progress,
        read_pairs(message.lacks),
        message.has_cut,
        message.has_declared,
        message.reason,
        message.fatal,
    )


def write_cut(cut: PartitionMap) -> pb.Cut:
    boundaries = [pb.Boundary(key=each.key, worker=each.worker, position=each.position) for each in cut.boundaries]
    return pb.Cut(boundaries=boundaries, owners=cut.owners)


def read_cut(message: pb.Cut) -> PartitionMap:
    boundaries = (Boundary(each.key, each.worker, each.position) for each in message.boundaries)
    return PartitionMap(tuple(boundaries), tuple(message.owners))


def write_declared(declared: Mapping[int, tuple[Proof, ...]]) -> list[pb.DeclaredPartition]:
    return [
        pb.DeclaredPartition(partition=partition, senders=[write_proof(proof) for proof in senders])
        for partition, senders in declared.items()
    ]


def read_declared(messages: Iterable[pb.DeclaredPartition]) -> dict[int, tuple[Proof, ...]]:
    return {message.partition: tuple(read_proof(proof) for proof in message.senders) for message in messages}


def write_peers(peers: Iterable[Peer]) -> list[pb.Peer]:
    return [pb.Peer(index=peer.index, attempt=peer.attempt, control=peer.control, data=peer.data) for peer in peers]


def read_peers(messages: Iterable[pb.Peer]) -> tuple[Peer, ...]:
    return tuple(Peer(peer.index, peer.attempt, peer.control, peer.data) for peer in messages)


def write_goal(goal: Goal) -> pb.Goal:
    return pb.Goal(
        stage=STAGE_TO_WIRE[goal.stage],
        cut=None if goal.cut is None else write_cut(goal.cut),
        declared=write_declared(goal.declared),
        peers=write_peers(goal.peers),
        send=write_pairs(goal.send),
        wants=None if goal.wants is None else PHASE_TO_WIRE[goal.wants],
        reason=text(goal.reason),
    )


def read_goal(message: pb.Goal) -> Goal:
    return Goal(
        STAGE_FROM_WIRE[message.stage],
        read_cut(message.cut) if message.HasField("cut") else None,
        read_declared(message.declared),
        read_peers(message.peers),
        read_pairs(message.send),
        PHASE_FROM_WIRE[message.wants] if message.HasField("wants") else None,
        message.reason,
    )


def write_header(header: PartHeader) -> pb.PartHeader:
    return pb.PartHeader(
        job=header.job,
        partition=header.partition,
        sender=header.sender,
        attempt=header.attempt,
        receiver=header.receiver,
        proof=write_proof(header.proof),
        pieces=header.pieces,
    )


def read_header(message: pb.PartHeader) -> PartHeader:
    return PartHeader(
        message.job,
        message.partition,
        message.sender,
        message.attempt,
        message.receiver,
        read_proof(message.proof),
        tuple(message.pieces),
    )


def write_durations(durations: Mapping[str, float]) -> list[pb.Duration]:
    return [pb.Duration(state=state, seconds=seconds) for state, seconds in durations.items()]


def read_durations(messages: Iterable[pb.Duration]) -> dict[str, float]:
    return {message.state: message.seconds for message in messages}


def write_history(history: Iterable[Transition]) -> list[pb.Transition]:
    return [
        pb.Transition(source=each.source, target=each.target, at=each.at, reason=text(each.reason), attempt=each.attempt)
        for each in history
    ]


def read_history(messages: Iterable[pb.Transition]) -> tuple[Transition, ...]:
    return tuple(Transition(each.source, each.target, each.at, each.reason, each.attempt) for each in messages)


def write_own_status(status: OwnStatus) -> pb.OwnStatus:
    return pb.OwnStatus(
        job=status.job,
        index=status.index,
        identity=text(status.identity),
        attempt=status.attempt,
        state=status.state,
        phase=PHASE_TO_WIRE[status.phase],
        progress=status.progress,
        message=text(status.message),
        durations=write_durations(status.durations),
        counters=[pb.Counter(name=name, value=value) for name, value in status.counters.items()],
        history=write_history(status.history),
    )


def read_own_status(message: pb.OwnStatus) -> OwnStatus:
    return OwnStatus(
        message.job,
        message.index if message.HasField("index") else None,
        message.identity,
        message.attempt,
        message.state,
        PHASE_FROM_WIRE[message.phase],
        message.progress,
        message.message,
        read_durations(message.durations),
        {counter.name: counter.value for counter in message.counters},
        read_history(message.history),
    )


def write_worker_status(status: WorkerStatus) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        index=status.index,
        identity=text(status.identity),
        attempt=status.attempt,
        control=status.control,
        data=status.data,
        state=status.state,
        phase=status.phase,
        progress=status.progress,
        message=text(status.message),
        seen_seconds_ago=status.seen_seconds_ago,
        size=status.size,
    )


def read_worker_status(message: pb.WorkerStatus) -> WorkerStatus:
    return WorkerStatus(
        message.index if message.HasField("index") else None,
        message.identity,
        message.attempt,
        message.control,
        message.data,
        message.state,
        message.phase,
        message.progress,
        message.message,
        message.seen_seconds_ago,
        message.size,
    )


def write_job_status(status: JobStatus) -> pb.JobStatus:
    return pb.JobStatus(
        job=status.job,
        state=status.state,
        message=text(status.message),
        address=status.address,
        format=status.format,
        expected=status.expected,
        workers=[write_worker_status(worker) for worker in status.workers],
        durations=write_durations(status.durations),
        history=write_history(status.history),
        reason=text(status.reason),
        verdict=status.verdict,
    )


def read_job_status(message: pb.JobStatus) -> JobStatus:
    return JobStatus(
        message.job,
        message.state,
        message.message,
        message.address,
        message.format,
        message.expected,
        tuple(read_worker_status(worker) for worker in message.workers),
        read_durations(message.durations),
        read_history(message.history),
        message.reason,
        message.verdict,
    )


REGISTER_WORKER: Codec[RegisterWorker, pb.RegisterWorkerRequest] = Codec(
    pb.RegisterWorkerRequest,
    lambda request: pb.RegisterWorkerRequest(
        caller=write_caller(request.caller), registration=write_registration(request.registration)
    ),
    lambda message: RegisterWorker(read_caller(message.caller), read_registration(message.registration)),
)
TERMS: Codec[WorkerAssignment, pb.Terms] = Codec(pb.Terms, write_terms, read_terms)
SUBMIT_SAMPLE: Codec[SubmitSample, pb.SubmitSampleRequest] = Codec(
    pb.SubmitSampleRequest,
    lambda request: pb.SubmitSampleRequest(caller=write_caller(request.caller), sample=write_sample(request.sample)),
    lambda message: SubmitSample(read_caller(message.caller), read_sample(message.sample)),
)
REPORT_PHASE_COMPLETE: Codec[ReportPhaseComplete, pb.ReportPhaseCompleteRequest] = Codec(
    pb.ReportPhaseCompleteRequest, write_report, read_report
)
HEARTBEAT: Codec[Heartbeat, pb.HeartbeatRequest] = Codec(
    pb.HeartbeatRequest,
    lambda request: pb.HeartbeatRequest(caller=write_caller(request.caller), beat=write_beat(request.beat)),
    lambda message: Heartbeat(read_caller(message.caller), read_beat(message.beat)),
)
GOAL: Codec[Goal, pb.Goal] = Codec(pb.Goal, write_goal, read_goal)
SET_PARTITION_BOUNDARIES: Codec[SetPartitionBoundaries, pb.SetPartitionBoundariesRequest] = Codec(
    pb.SetPartitionBoundariesRequest,
    lambda request: pb.SetPartitionBoundariesRequest(
        caller=write_caller(request.caller), cut=write_cut(request.cut), peers=write_peers(request.peers)
    ),
    lambda message: SetPartitionBoundaries(read_caller(message.caller), read_cut(message.cut), read_peers(message.peers)),
)
START_SHUFFLE: Codec[StartShuffle, pb.StartShuffleRequest] = Codec(
    pb.StartShuffleRequest,
    lambda request: pb.StartShuffleRequest(
        caller=write_caller(request.caller), declared=write_declared(request.declared), peers=write_peers(request.peers)
    ),
    lambda message: StartShuffle(read_caller(message.caller), read_declared(message.declared), read_peers(message.peers)),
)
START_MERGE: Codec[StartMerge, pb.StartMergeRequest] = Codec(
    pb.StartMergeRequest,
    lambda request: pb.StartMergeRequest(caller=write_caller(request.caller)),
    lambda message: StartMerge(read_caller(message.caller)),
)
PART_HEADER: Codec[PartHeader, pb.PartHeader] = Codec(pb.PartHeader, write_header, read_header)
PART_ACKNOWLEDGED: Codec[PartAcknowledged, pb.PartAcknowledged] = Codec(
    pb.PartAcknowledged,
    lambda record: pb.PartAcknowledged(taken=record.taken),
    lambda message: PartAcknowledged(message.taken),
)
GET_STATUS: Codec[GetStatus, pb.GetStatusRequest] = Codec(
    pb.GetStatusRequest,
    lambda request: pb.GetStatusRequest(caller=write_caller(request.caller)),
    lambda message: GetStatus(read_caller(message.caller)),
)
OWN_STATUS: Codec[OwnStatus, pb.OwnStatus] = Codec(pb.OwnStatus, write_own_status, read_own_status)
JOB_STATUS: Codec[JobStatus, pb.JobStatus] = Codec(pb.JobStatus, write_job_status, read_job_status)
ABORT: Codec[Abort, pb.AbortRequest] = Codec(
    pb.AbortRequest,
    lambda request: pb.AbortRequest(caller=write_caller(request.caller), reason=text(request.reason)),
    lambda message: Abort(read_caller(message.caller), message.reason),
)
ACKNOWLEDGED: Codec[Acknowledged, pb.Acknowledged] = Codec(
    pb.Acknowledged, lambda record: pb.Acknowledged(), lambda message: Acknowledged()
)
