"""How do the messages of the sort look? Drawn from sort.proto by `make docs`; do not edit."""
# ruff: noqa
# fmt: off
# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNKNOWN: _ClassVar[Stage]
    STAGE_REGISTER: _ClassVar[Stage]
    STAGE_SAMPLE: _ClassVar[Stage]
    STAGE_SORT: _ClassVar[Stage]
    STAGE_SHUFFLE: _ClassVar[Stage]
    STAGE_MERGE: _ClassVar[Stage]
    STAGE_DONE: _ClassVar[Stage]
    STAGE_ABORT: _ClassVar[Stage]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNKNOWN: _ClassVar[Phase]
    PHASE_INITIALIZING: _ClassVar[Phase]
    PHASE_SAMPLING: _ClassVar[Phase]
    PHASE_SORTING: _ClassVar[Phase]
    PHASE_SHUFFLING: _ClassVar[Phase]
    PHASE_MERGING: _ClassVar[Phase]
    PHASE_COMPLETED: _ClassVar[Phase]
    PHASE_FAILED: _ClassVar[Phase]
STAGE_UNKNOWN: Stage
STAGE_REGISTER: Stage
STAGE_SAMPLE: Stage
STAGE_SORT: Stage
STAGE_SHUFFLE: Stage
STAGE_MERGE: Stage
STAGE_DONE: Stage
STAGE_ABORT: Stage
PHASE_UNKNOWN: Phase
PHASE_INITIALIZING: Phase
PHASE_SAMPLING: Phase
PHASE_SORTING: Phase
PHASE_SHUFFLING: Phase
PHASE_MERGING: Phase
PHASE_COMPLETED: Phase
PHASE_FAILED: Phase

class Caller(_message.Message):
    __slots__ = ("job", "index", "identity", "attempt")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: int
    identity: str
    attempt: int
    def __init__(self, job: _Optional[str] = ..., index: _Optional[int] = ..., identity: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("caller", "registration")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    registration: Registration
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., registration: _Optional[_Union[Registration, _Mapping]] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("identity", "nonce", "asked", "control", "data", "size", "memory", "format")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    identity: str
    nonce: str
    asked: int
    control: str
    data: str
    size: int
    memory: int
    format: str
    def __init__(self, identity: _Optional[str] = ..., nonce: _Optional[str] = ..., asked: _Optional[int] = ..., control: _Optional[str] = ..., data: _Optional[str] = ..., size: _Optional[int] = ..., memory: _Optional[int] = ..., format: _Optional[str] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("job", "index", "workers", "attempt", "format", "memory", "proof", "sync", "present")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: int
    workers: int
    attempt: int
    format: str
    memory: int
    proof: bool
    sync: bool
    present: int
    def __init__(self, job: _Optional[str] = ..., index: _Optional[int] = ..., workers: _Optional[int] = ..., attempt: _Optional[int] = ..., format: _Optional[str] = ..., memory: _Optional[int] = ..., proof: _Optional[bool] = ..., sync: _Optional[bool] = ..., present: _Optional[int] = ...) -> None: ...

class SubmitSampleRequest(_message.Message):
    __slots__ = ("caller", "sample")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    sample: Sample
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("keys", "records")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[SampledKey]
    records: int
    def __init__(self, keys: _Optional[_Iterable[_Union[SampledKey, _Mapping]]] = ..., records: _Optional[int] = ...) -> None: ...

class SampledKey(_message.Message):
    __slots__ = ("key", "position")
    KEY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    position: int
    def __init__(self, key: _Optional[bytes] = ..., position: _Optional[int] = ...) -> None: ...

class ReportPhaseCompleteRequest(_message.Message):
    __slots__ = ("caller", "sort", "shuffle", "merge", "history")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    sort: SortReport
    shuffle: ShuffleReport
    merge: MergeReport
    history: _containers.RepeatedCompositeFieldContainer[Transition]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., sort: _Optional[_Union[SortReport, _Mapping]] = ..., shuffle: _Optional[_Union[ShuffleReport, _Mapping]] = ..., merge: _Optional[_Union[MergeReport, _Mapping]] = ..., history: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("records", "size", "checksum")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    records: int
    size: int
    checksum: int
    def __init__(self, records: _Optional[int] = ..., size: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class SortReport(_message.Message):
    __slots__ = ("proof", "declared", "seconds")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    proof: Proof
    declared: _containers.RepeatedCompositeFieldContainer[Proof]
    seconds: float
    def __init__(self, proof: _Optional[_Union[Proof, _Mapping]] = ..., declared: _Optional[_Iterable[_Union[Proof, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class ShuffleReport(_message.Message):
    __slots__ = ("received", "seconds", "retries", "resent")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    received: Proof
    seconds: float
    retries: int
    resent: int
    def __init__(self, received: _Optional[_Union[Proof, _Mapping]] = ..., seconds: _Optional[float] = ..., retries: _Optional[int] = ..., resent: _Optional[int] = ...) -> None: ...

class MergeReport(_message.Message):
    __slots__ = ("files", "seconds")
    FILES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[OutputFile]
    seconds: float
    def __init__(self, files: _Optional[_Iterable[_Union[OutputFile, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class OutputFile(_message.Message):
    __slots__ = ("partition", "proof", "first_key", "last_key")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEY_FIELD_NUMBER: _ClassVar[int]
    LAST_KEY_FIELD_NUMBER: _ClassVar[int]
    partition: int
    proof: Proof
    first_key: bytes
    last_key: bytes
    def __init__(self, partition: _Optional[int] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., first_key: _Optional[bytes] = ..., last_key: _Optional[bytes] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("caller", "beat")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    beat: Beat
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("state", "progress", "lacks", "has_cut", "has_declared", "reason", "fatal")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    HAS_CUT_FIELD_NUMBER: _ClassVar[int]
    HAS_DECLARED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    state: str
    progress: float
    lacks: _containers.RepeatedCompositeFieldContainer[PartOfWorker]
    has_cut: bool
    has_declared: bool
    reason: str
    fatal: bool
    def __init__(self, state: _Optional[str] = ..., progress: _Optional[float] = ..., lacks: _Optional[_Iterable[_Union[PartOfWorker, _Mapping]]] = ..., has_cut: _Optional[bool] = ..., has_declared: _Optional[bool] = ..., reason: _Optional[str] = ..., fatal: _Optional[bool] = ...) -> None: ...

class PartOfWorker(_message.Message):
    __slots__ = ("partition", "worker")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    partition: int
    worker: int
    def __init__(self, partition: _Optional[int] = ..., worker: _Optional[int] = ...) -> None: ...

class Goal(_message.Message):
    __slots__ = ("stage", "cut", "declared", "peers", "send", "wants", "reason")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    cut: Cut
    declared: _containers.RepeatedCompositeFieldContainer[DeclaredPartition]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    send: _containers.RepeatedCompositeFieldContainer[PartOfWorker]
    wants: Phase
    reason: str
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ..., declared: _Optional[_Iterable[_Union[DeclaredPartition, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., send: _Optional[_Iterable[_Union[PartOfWorker, _Mapping]]] = ..., wants: _Optional[_Union[Phase, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("boundaries", "owners")
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    boundaries: _containers.RepeatedCompositeFieldContainer[Boundary]
    owners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, boundaries: _Optional[_Iterable[_Union[Boundary, _Mapping]]] = ..., owners: _Optional[_Iterable[int]] = ...) -> None: ...

class Boundary(_message.Message):
    __slots__ = ("key", "worker", "position")
    KEY_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    worker: int
    position: int
    def __init__(self, key: _Optional[bytes] = ..., worker: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class DeclaredPartition(_message.Message):
    __slots__ = ("partition", "senders")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    senders: _containers.RepeatedCompositeFieldContainer[Proof]
    def __init__(self, partition: _Optional[int] = ..., senders: _Optional[_Iterable[_Union[Proof, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("index", "attempt", "control", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt: int
    control: str
    data: str
    def __init__(self, index: _Optional[int] = ..., attempt: _Optional[int] = ..., control: _Optional[str] = ..., data: _Optional[str] = ...) -> None: ...

class SetPartitionBoundariesRequest(_message.Message):
    __slots__ = ("caller", "cut", "peers")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    cut: Cut
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class StartShuffleRequest(_message.Message):
    __slots__ = ("caller", "declared", "peers")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    declared: _containers.RepeatedCompositeFieldContainer[DeclaredPartition]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., declared: _Optional[_Iterable[_Union[DeclaredPartition, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class StartMergeRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class PartHeader(_message.Message):
    __slots__ = ("job", "partition", "sender", "attempt", "receiver", "proof", "pieces")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    job: str
    partition: int
    sender: int
    attempt: int
    receiver: int
    proof: Proof
    pieces: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., partition: _Optional[int] = ..., sender: _Optional[int] = ..., attempt: _Optional[int] = ..., receiver: _Optional[int] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., pieces: _Optional[_Iterable[int]] = ...) -> None: ...

class PartAcknowledged(_message.Message):
    __slots__ = ("taken",)
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    def __init__(self, taken: _Optional[bool] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("caller", "reason")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    reason: str
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Transition(_message.Message):
    __slots__ = ("source", "target", "at", "reason", "attempt")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    at: float
    reason: str
    attempt: int
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., at: _Optional[float] = ..., reason: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Duration(_message.Message):
    __slots__ = ("state", "seconds")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    state: str
    seconds: float
    def __init__(self, state: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Counter(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class OwnStatus(_message.Message):
    __slots__ = ("job", "index", "identity", "attempt", "state", "phase", "progress", "message", "durations", "counters", "history")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DURATIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: int
    identity: str
    attempt: int
    state: str
    phase: Phase
    progress: float
    message: str
    durations: _containers.RepeatedCompositeFieldContainer[Duration]
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    history: _containers.RepeatedCompositeFieldContainer[Transition]
    def __init__(self, job: _Optional[str] = ..., index: _Optional[int] = ..., identity: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., progress: _Optional[float] = ..., message: _Optional[str] = ..., durations: _Optional[_Iterable[_Union[Duration, _Mapping]]] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "state", "message", "address", "format", "expected", "workers", "durations", "history", "reason", "verdict")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DURATIONS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: str
    message: str
    address: str
    format: str
    expected: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    durations: _containers.RepeatedCompositeFieldContainer[Duration]
    history: _containers.RepeatedCompositeFieldContainer[Transition]
    reason: str
    verdict: str
    def __init__(self, job: _Optional[str] = ..., state: _Optional[str] = ..., message: _Optional[str] = ..., address: _Optional[str] = ..., format: _Optional[str] = ..., expected: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., durations: _Optional[_Iterable[_Union[Duration, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ..., reason: _Optional[str] = ..., verdict: _Optional[str] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("index", "identity", "attempt", "control", "data", "state", "phase", "progress", "message", "seen_seconds_ago", "size")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEEN_SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    index: int
    identity: str
    attempt: int
    control: str
    data: str
    state: str
    phase: str
    progress: float
    message: str
    seen_seconds_ago: float
    size: int
    def __init__(self, index: _Optional[int] = ..., identity: _Optional[str] = ..., attempt: _Optional[int] = ..., control: _Optional[str] = ..., data: _Optional[str] = ..., state: _Optional[str] = ..., phase: _Optional[str] = ..., progress: _Optional[float] = ..., message: _Optional[str] = ..., seen_seconds_ago: _Optional[float] = ..., size: _Optional[int] = ...) -> None: ...
