"""List the calls of the protocol, and build their handlers."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import grpc

from torpor.sort.job.status import JobStatus
from torpor.sort.machine.records import Goal, PartHeader, WorkerAssignment
from torpor.sort.wire import conversion
from torpor.sort.wire.conversion import Codec
from torpor.sort.wire.failures import run_call
from torpor.sort.wire.requests import (
    Abort,
    Acknowledged,
    GetStatus,
    Heartbeat,
    OwnStatus,
    PartAcknowledged,
    RegisterWorker,
    ReportPhaseComplete,
    SetPartitionBoundaries,
    StartMerge,
    StartShuffle,
    SubmitSample,
)

PACKAGE = "torpor.sort"
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class CallKind(StrEnum):
    CALL = "call"
    """One message each way; served on a control address."""
    PART = "part"
    """A header, then raw bytes; served on a data address."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Answer]):
    service: str
    name: str
    request: Codec[Request, Any]
    answer: Codec[Answer, Any]
    kind: CallKind = CallKind.CALL

    @property
    def path(self) -> str:
        return f"/{PACKAGE}.{self.service}/{self.name}"


REGISTER_WORKER: Method[RegisterWorker, WorkerAssignment] = Method(
    "Master", "RegisterWorker", conversion.REGISTER_WORKER, conversion.TERMS
)
SUBMIT_SAMPLE: Method[SubmitSample, Acknowledged] = Method(
    "Master", "SubmitSample", conversion.SUBMIT_SAMPLE, conversion.ACKNOWLEDGED
)
REPORT_PHASE_COMPLETE: Method[ReportPhaseComplete, Acknowledged] = Method(
    "Master", "ReportPhaseComplete", conversion.REPORT_PHASE_COMPLETE, conversion.ACKNOWLEDGED
)
HEARTBEAT: Method[Heartbeat, Goal] = Method("Master", "Heartbeat", conversion.HEARTBEAT, conversion.GOAL)
GET_JOB_STATUS: Method[GetStatus, JobStatus] = Method("Master", "GetStatus", conversion.GET_STATUS, conversion.JOB_STATUS)
ABORT_JOB: Method[Abort, Acknowledged] = Method("Master", "Abort", conversion.ABORT, conversion.ACKNOWLEDGED)

SET_PARTITION_BOUNDARIES: Method[SetPartitionBoundaries, Acknowledged] = Method(
    "Worker", "SetPartitionBoundaries", conversion.SET_PARTITION_BOUNDARIES, conversion.ACKNOWLEDGED
)
START_SHUFFLE: Method[StartShuffle, Acknowledged] = Method(
    "Worker", "StartShuffle", conversion.START_SHUFFLE, conversion.ACKNOWLEDGED
)
START_MERGE: Method[StartMerge, Acknowledged] = Method("Worker", "StartMerge", conversion.START_MERGE, conversion.ACKNOWLEDGED)
SHUFFLE_DATA: Method[PartHeader, PartAcknowledged] = Method(
    "Worker", "ShuffleData", conversion.PART_HEADER, conversion.PART_ACKNOWLEDGED, CallKind.PART
)
GET_WORKER_STATUS: Method[GetStatus, OwnStatus] = Method("Worker", "GetStatus", conversion.GET_STATUS, conversion.OWN_STATUS)
ABORT_WORKER: Method[Abort, Acknowledged] = Method("Worker", "Abort", conversion.ABORT, conversion.ACKNOWLEDGED)

METHODS: tuple[Method[Any, Any], ...] = (
    REGISTER_WORKER,
    SUBMIT_SAMPLE,
    REPORT_PHASE_COMPLETE,
    HEARTBEAT,
    GET_JOB_STATUS,
    ABORT_JOB,
    SET_PARTITION_BOUNDARIES,
    START_SHUFFLE,
    START_MERGE,
    SHUFFLE_DATA,
    GET_WORKER_STATUS,
    ABORT_WORKER,
)


@dataclass(frozen=True, slots=True)
class CallHandler:
    """A method and its handler."""

    method: Method[Any, Any]
    handler: "grpc.RpcMethodHandler[Any, Any]"


def call_handler(method: Method[Request, Answer], act: Callable[[Request], Answer]) -> CallHandler:
    """A handler that takes and returns records. Errors of the sort that `act` raises are raised again at the caller."""
    if method.kind is not CallKind.CALL:
        raise ValueError(f"{method.path} is a stream")

    def behave(serialized: bytes, context: grpc.ServicerContext) -> bytes:
        return run_call(context, lambda: method.answer.to_bytes(act(method.request.from_bytes(serialized))))

    return CallHandler(method, grpc.unary_unary_rpc_method_handler(behave))


def handlers(*answers: CallHandler) -> list[grpc.GenericRpcHandler]:
    """The handlers of one server. They must answer every call of their service and kind."""
    for service, kind in {(each.method.service, each.method.kind) for each in answers}:
        expected = {method.name for method in METHODS if (method.service, method.kind) == (service, kind)}
        present = {each.method.name for each in answers if (each.method.service, each.method.kind) == (service, kind)}
        if expected != present:
            raise ValueError(f"no handler answers {', '.join(sorted(expected - present))} of {service}")
    return [
        grpc.method_handlers_generic_handler(
            f"{PACKAGE}.{service}", {each.method.name: each.handler for each in answers if each.method.service == service}
        )
        for service in sorted({each.method.service for each in answers})
    ]
