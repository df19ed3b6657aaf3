"""Answer the calls that a worker gets from the master and from other workers."""

from collections.abc import Iterator
from concurrent.futures import TimeoutError as TookTooLong

import grpc

from torpor.sort.clock import now
from torpor.sort.data.context import StopRequested
from torpor.sort.errors import PeerNotReady, SortFailed, SortRefused, StaleAttempt
from torpor.sort.machine.history import durations
from torpor.sort.machine.records import PartHeader, Peer
from torpor.sort.machine.states import PHASE_OF, WORKER_MEANS, WORKING, progress
from torpor.sort.machine.states import WorkerState as W
from torpor.sort.machine.worker import AbortRequested, Event, MergeSignal, PartitionsReceived, ShuffleSignal, WorkerFailed
from torpor.sort.wire.calls import (
    ABORT_WORKER,
    GET_WORKER_STATUS,
    SET_PARTITION_BOUNDARIES,
    START_MERGE,
    START_SHUFFLE,
    call_handler,
    handlers,
)
from torpor.sort.wire.requests import (
    Abort,
    Acknowledged,
    GetStatus,
    OwnStatus,
    SetPartitionBoundaries,
    StartMerge,
    StartShuffle,
    WorkerRef,
)
from torpor.sort.wire.shuffle import part_receiver, refuse_if_not_for
from torpor.sort.worker.worker_session import WorkerSession

TAKEN_S = 10.0
"""How long a signal may wait until it is taken and saved."""

BEFORE_SORTING = frozenset({W.INITIALIZING, W.SAMPLING, W.WAITING_FOR_PARTITION_CONFIG})


class WorkerService:
    def __init__(self, session: WorkerSession) -> None:
        self._session = session

    def control(self) -> list[grpc.GenericRpcHandler]:
        return handlers(
            call_handler(SET_PARTITION_BOUNDARIES, self._set_boundaries),
            call_handler(START_SHUFFLE, self._start_shuffle),
            call_handler(START_MERGE, self._start_merge),
            call_handler(GET_WORKER_STATUS, self._status),
            call_handler(ABORT_WORKER, self._abort),
        )

    def data(self) -> list[grpc.GenericRpcHandler]:
        return handlers(part_receiver(self._accept))

    def _set_boundaries(self, request: SetPartitionBoundaries) -> Acknowledged:
        return self._take(request.caller, PartitionsReceived(request.cut), request.peers)

    def _start_shuffle(self, request: StartShuffle) -> Acknowledged:
        self._refuse_if_not_me(request.caller)
        if request.declared:
            self._session.declared = request.declared
        return self._take(request.caller, ShuffleSignal(), request.peers)

    def _start_merge(self, request: StartMerge) -> Acknowledged:
        return self._take(request.caller, MergeSignal())

    def _abort(self, request: Abort) -> Acknowledged:
        self._refuse_if_not_me(request.caller)
        # Work that is in progress stops now, not when the event is taken from the queue.
        self._session.stop.set()
        self._session.driver.tell(AbortRequested(request.reason))
        return Acknowledged()

    def _take(self, caller: WorkerRef, event: Event, peers: tuple[Peer, ...] = ()) -> Acknowledged:
        self._refuse_if_not_me(caller)
        self._session.meet(peers)
        try:
            self._session.driver.ask(event, TAKEN_S)
        except TookTooLong as error:
            raise PeerNotReady(f"not ready: the worker, in state {self._session.worker.state}, is busy") from error
        return Acknowledged()

    def _refuse_if_not_me(self, caller: WorkerRef) -> None:
        worker = self._session.worker
        if caller.job != worker.job:
            raise SortRefused("other_job", f"this is a worker of job {worker.job}, not of {caller.job}")
        if worker.terms is not None and caller.attempt != worker.terms.attempt:
            raise StaleAttempt(f"this is attempt {worker.terms.attempt} of {worker.identity}, not {caller.attempt}")

    def _status(self, request: GetStatus) -> OwnStatus:
        session, worker = self._session, self._session.worker
        spent = durations(worker.history, now())
        sender = session.sender
        return OwnStatus(
            job=worker.job,
            index=worker.terms.index if worker.terms else None,
            identity=worker.identity,
            attempt=worker.attempt,
            state=worker.state,
            phase=PHASE_OF[worker.state],
            progress=progress(worker.state, session.done),
            message=worker.reason if worker.state is W.FAILED else WORKER_MEANS[worker.state],
            durations={state: spent[state] for state in WORKING if state in spent},
            counters={
                "records": worker.sorted.proof.records if worker.sorted else 0,
                "bytes": worker.sorted.proof.size if worker.sorted else 0,
                "retries": sender.counters.retries if sender else 0,
                "resent_parts": sender.counters.resent if sender else 0,
            },
            history=worker.history,
        )

    def _accept(self, header: PartHeader, blocks: Iterator[bytes]) -> bool:
        session = self._session
        state = session.worker.state
        if session.parts is None or state in BEFORE_SORTING:
            raise PeerNotReady(
                f"not ready: this worker is in state {state} and accepts parts only after its boundaries are in the journal"
            )
        if state is W.FAILED:
            raise PeerNotReady("not ready: this worker has failed and may be started again")
        refuse_if_not_for(header, session.worker.job, session.index)
        session.refuse_stale(header.sender, header.attempt)
        if header.partition not in session.own:
            raise SortRefused("other_partition", f"partition {header.partition} does not belong to worker {session.index}")
        try:
            return session.parts.receive(header, blocks)
        except StopRequested as error:
            raise PeerNotReady("not ready: this worker is ending and may be started again") from error
        except SortFailed as error:
            # This worker cannot store the part. The sender did nothing wrong.
            session.driver.tell(WorkerFailed(error.message, fatal=True))
            raise PeerNotReady(f"not ready: {error.message}") from error
