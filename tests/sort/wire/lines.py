"""Real servers on the loopback, and connections to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torpor.sort.job.status import JobStatus
from torpor.sort.machine.records import Goal, GoalStage, PartHeader, WorkerAssignment
from torpor.sort.machine.states import WorkerPhase
from torpor.sort.proof import Proof
from torpor.sort.wire.calls import METHODS, CallHandler, CallKind, call_handler, handlers
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JoinCredentials, make_join
from torpor.sort.wire.requests import Acknowledged, OwnStatus
from torpor.sort.wire.server import RpcServer, serve
from torpor.sort.wire.shuffle import Accept, part_receiver

ANYWHERE = "127.0.0.1:0"
TIMEOUT_S = 30.0
"""Only ends a test that hangs."""

TERMS = WorkerAssignment("job", 1, 3, 2, "gensort", 1 << 30, True, False, 3)
GOAL = Goal(GoalStage.SHUFFLE, send=((4, 2),), wants=WorkerPhase.SORTING)
JOB_STATUS = JobStatus("job", "Sorting", "workers sort their inputs", "127.0.0.1:1", "gensort", 3)
OWN_STATUS = OwnStatus("job", 1, "name", 2, "Sorting", WorkerPhase.SORTING, 33.5, "sorts")


def any_join(tls: bool = False) -> JoinCredentials:
    return make_join("job", "127.0.0.1:1", tls)


def answer_to(name: str) -> Callable[[object], Any]:
    """A fixed answer, of the kind that the call expects."""
    answers = {"Terms": TERMS, "Goal": GOAL, "JobStatus": JOB_STATUS, "OwnStatus": OWN_STATUS, "Acknowledged": Acknowledged()}
    return lambda request: answers[name]


def control_answers(
    service: str, heard: list[tuple[str, object]], act: Callable[[object], object] | None = None
) -> list[CallHandler]:
    """Handlers for every call of a service. They record the requests, and `act` may raise."""

    def answer(name: str, kind: str) -> Callable[[object], object]:
        def noted(request: object) -> object:
            heard.append((name, request))
            if act:
                act(request)
            return answer_to(kind)(request)

        return noted

    return [
        call_handler(method, answer(method.name, method.answer.message.__name__))
        for method in METHODS
        if method.service == service and method.kind is CallKind.CALL
    ]


@contextmanager
def control_server(
    service: str,
    join: JoinCredentials,
    *,
    heard: list[tuple[str, object]] | None = None,
    act: Callable[[object], object] | None = None,
) -> Iterator[RpcServer]:
    answers = control_answers(service, [] if heard is None else heard, act)
    serving = serve(handlers(*answers), ANYWHERE, join, 2, data=False)
    try:
        yield serving
    finally:
        serving.stop(0)


@contextmanager
def data_server(accept: Accept, join: JoinCredentials, *, threads: int = 2) -> Iterator[RpcServer]:
    serving = serve(handlers(part_receiver(accept)), ANYWHERE, join, threads, data=True)
    try:
        yield serving
    finally:
        serving.stop(0)


@contextmanager
def data_line(accept: Accept, *, tls: bool = False, threads: int = 2) -> Iterator[Connection]:
    join = any_join(tls)
    with data_server(accept, join, threads=threads) as serving, Connection(serving.address, join, data=True) as connection:
        yield connection


def header(size: int, *, partition: int = 0, receiver: int = 1) -> PartHeader:
    return PartHeader("job", partition, 0, 1, receiver, Proof(size // 100, size, 7), (size,))
