"""Every call arrives, and every error is raised again at the caller."""

from typing import Any

import pytest

from tests.sort.wire.lines import ANYWHERE, TIMEOUT_S, answer_to, any_join, control_answers, control_server
from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortError, SortFailed, SortRefused, StaleAttempt
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.history import Transition
from torpor.sort.machine.reactions import WrongState
from torpor.sort.machine.records import Beat, PartitionMap, Peer, Sample, ShuffleReport
from torpor.sort.proof import Proof
from torpor.sort.wire.calls import (
    ABORT_JOB,
    ABORT_WORKER,
    GET_JOB_STATUS,
    GET_WORKER_STATUS,
    HEARTBEAT,
    METHODS,
    REGISTER_WORKER,
    REPORT_PHASE_COMPLETE,
    SET_PARTITION_BOUNDARIES,
    START_MERGE,
    START_SHUFFLE,
    SUBMIT_SAMPLE,
    CallKind,
    Method,
    call_handler,
    handlers,
)
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.requests import (
    Abort,
    GetStatus,
    Heartbeat,
    RegisterWorker,
    Registration,
    ReportPhaseComplete,
    SetPartitionBoundaries,
    StartMerge,
    StartShuffle,
    SubmitSample,
    WorkerRef,
)
from torpor.sort.wire.server import serve

HISTORY = (Transition("Sorting", "Failed", 1.5, "killed", 2),)
CALLER = WorkerRef("job", 1, 2)
PEER = Peer(1, 2, "127.0.0.1:5", "127.0.0.1:6")
ASKS: list[tuple[Method[Any, Any], object]] = [
    (
        REGISTER_WORKER,
        RegisterWorker(
            WorkerRef("job", "name"), Registration("name", "nonce", None, "127.0.0.1:5", "127.0.0.1:6", 5, 1 << 31, "lines")
        ),
    ),
    (SUBMIT_SAMPLE, SubmitSample(CALLER, Sample(((b"key", 100),), 1))),
    (
        REPORT_PHASE_COMPLETE,
        ReportPhaseComplete(
            CALLER, ShuffleReport(Proof(1, 100, 2**64 - 1), 1.5, 2, 3), (Transition("Sorting", "Failed", 1.5, "killed", 2),)
        ),
    ),
    (HEARTBEAT, Heartbeat(CALLER, Beat("Shuffling", 60.5, ((3, 0),), True, True))),
    (GET_JOB_STATUS, GetStatus()),
    (ABORT_JOB, Abort(CALLER, "enough")),
    (SET_PARTITION_BOUNDARIES, SetPartitionBoundaries(CALLER, PartitionMap((Boundary(b"m", 0, 700),), (0, 1)), (PEER,))),
    (START_SHUFFLE, StartShuffle(CALLER, {1: (Proof(), Proof(1, 100, 9))}, (PEER,))),
    (START_MERGE, StartMerge(CALLER)),
    (GET_WORKER_STATUS, GetStatus(CALLER)),
    (ABORT_WORKER, Abort(CALLER, "enough")),
]


def test_every_call_is_tested() -> None:
    assert [method for method, _ in ASKS] == [method for method in METHODS if method.kind is CallKind.CALL]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_call_arrives_and_is_answered(tls: bool) -> None:
    join = any_join(tls)
    for service in ("Master", "Worker"):
        heard: list[tuple[str, object]] = []
        asks = [(method, request) for method, request in ASKS if method.service == service]
        with control_server(service, join, heard=heard) as serving, Connection(serving.address, join) as connection:
            for method, request in asks:
                answer = connection.call(method, request, TIMEOUT_S)
                assert answer == answer_to(method.answer.message.__name__)(request)
        assert heard == [(method.name, request) for method, request in asks]


@pytest.mark.parametrize(
    "error",
    [
        SortRefused("too_many", "one too many"),
        PeerNotReady("no boundaries yet"),
        PeerUnavailable("a disk is away"),
        StaleAttempt("attempt 3 has taken over"),
        SortFailed("the disk is full: /data/ä"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_raised_again(error: SortError) -> None:
    raised = raised_by(error)
    assert type(raised) is type(error)
    assert vars(raised) == vars(error)


def test_a_special_refusal_is_a_refusal_with_its_code() -> None:
    raised = raised_by(WrongState("StartMerge is not allowed in state Sorting"))
    assert isinstance(raised, SortRefused)
    assert (raised.code, raised.message) == ("wrong_state", "StartMerge is not allowed in state Sorting")


def test_an_unexpected_error_fails_the_job_and_is_named() -> None:
    raised = raised_by(ZeroDivisionError("by nothing"))
    assert isinstance(raised, SortFailed)
    assert "ZeroDivisionError: by nothing" in raised.message


def test_a_very_long_reason_still_arrives() -> None:
    raised = raised_by(SortFailed("ä" * 100_000))
    assert isinstance(raised, SortFailed)
    assert raised.message.startswith("äää")


def test_a_missing_server_is_unavailable() -> None:
    join = any_join()
    with control_server("Master", join) as serving:
        address = serving.address
    with Connection(address, join) as connection, pytest.raises(PeerUnavailable, match=address) as raised:
        connection.call(GET_JOB_STATUS, GetStatus(), TIMEOUT_S)
    assert not isinstance(raised.value, PeerNotReady)


def test_a_closed_connection_is_unavailable() -> None:
    connection = Connection("127.0.0.1:1", any_join())
    connection.close()
    with pytest.raises(PeerUnavailable, match="closed"):
        connection.call(GET_JOB_STATUS, GetStatus(), TIMEOUT_S)


def test_a_master_does_not_answer_calls_for_a_worker() -> None:
    join = any_join()
    with (
        control_server("Master", join) as serving,
        Connection(serving.address, join) as line,
        pytest.raises(SortRefused) as refused,
    ):
        line.call(GET_WORKER_STATUS, GetStatus(), TIMEOUT_S)
    assert refused.value.code == "unknown_call"


def test_a_server_without_a_handler_for_every_call_does_not_start() -> None:
    answers = control_answers("Worker", [])
    with pytest.raises(ValueError, match="no handler answers Abort of Worker"):
        handlers(*(each for each in answers if each.method is not ABORT_WORKER))


def raised_by(error: Exception) -> SortError:
    """The error that the caller gets when this one is raised in the handler."""

    def act(request: object) -> object:
        raise error

    join = any_join()
    with (
        control_server("Master", join, act=act) as serving,
        Connection(serving.address, join) as connection,
        pytest.raises(SortError) as raised,
    ):
        connection.call(HEARTBEAT, Heartbeat(CALLER, Beat("Sorting", 20.0)), TIMEOUT_S)
    return raised.value


def test_a_malformed_request_is_refused_by_the_server() -> None:
    """As from another version: the same bytes are a sample to one side and a report to the other."""
    join = any_join()
    answers = [each for each in control_answers("Master", []) if each.method is not REPORT_PHASE_COMPLETE]
    answers.append(call_handler(REPORT_PHASE_COMPLETE, answer_to("Acknowledged")))
    serving = serve(handlers(*answers), ANYWHERE, join, 2, data=False)
    mistaken: Method[Any, Any] = Method("Master", "ReportPhaseComplete", START_MERGE.request, REPORT_PHASE_COMPLETE.answer)
    try:
        with Connection(serving.address, join) as connection, pytest.raises(SortRefused) as refused:
            connection.call(mistaken, StartMerge(CALLER), TIMEOUT_S)
    finally:
        serving.stop(0)
    assert refused.value.code == "malformed"
