"""Hold what a worker needs while it works and does not save in its journal."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torpor.sort.data.context import SortContext
from torpor.sort.data.inputs import InputReader
from torpor.sort.data.parts import PartStore
from torpor.sort.data.runs import Runs
from torpor.sort.data.segments import Inputs
from torpor.sort.data.thread_pool import default_threads
from torpor.sort.data.worker_directory import WorkerDirectory
from torpor.sort.driver import Driver
from torpor.sort.errors import StaleAttempt
from torpor.sort.job.options import WorkerOptions
from torpor.sort.machine.records import Beat, Peer, WorkerAssignment
from torpor.sort.machine.states import WorkerState, progress
from torpor.sort.machine.worker import Command, Event, Worker
from torpor.sort.proof import Proof
from torpor.sort.record import parse
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.requests import WorkerRef
from torpor.sort.worker.part_sender import PartSender

LACKS_AT_ONCE = 4_000
"""The most missing parts that one heartbeat lists. The rest is listed when these have arrived."""


@dataclass(slots=True)
class WorkerSession:
    options: WorkerOptions
    join: JoinCredentials
    master: Connection
    place: WorkerDirectory
    driver: Driver[Worker, Event, Command]
    inputs: Inputs
    input_format: str
    """The format that the inputs seem to have, or the one that was given; empty if there is no input."""
    nonce: str
    """Identifies this process."""
    nudge: threading.Event
    """Set to send a heartbeat at once."""
    say: Callable[[str], None]
    reader: InputReader | None = None
    runs: Runs | None = None
    parts: PartStore | None = None
    sender: PartSender | None = None
    declared: Mapping[int, tuple[Proof, ...]] = field(default_factory=dict)
    peers: Mapping[int, Peer] = field(default_factory=dict)
    done: float = 0.0
    """How much of the present state's work is done, from 0 to 100."""
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def worker(self) -> Worker:
        return self.driver.value

    @property
    def terms(self) -> WorkerAssignment:
        terms = self.worker.terms
        assert terms is not None
        return terms

    @property
    def index(self) -> int:
        index = self.terms.index
        assert index is not None
        return index

    @property
    def own(self) -> tuple[int, ...]:
        """The partitions of this worker; empty until they are known."""
        worker = self.worker
        if worker.cut is None or worker.terms is None or worker.terms.index is None:
            return ()
        return worker.cut.owned_by(worker.terms.index)

    def caller(self) -> WorkerRef:
        return WorkerRef(self.worker.job, self.index, self.terms.attempt)

    def context(self) -> SortContext:
        terms, cut = self.terms, self.worker.cut
        assert cut is not None
        record_format = parse(terms.format)
        if self.reader is None:
            self.reader = InputReader(self.inputs, record_format)
        return SortContext(
            job=terms.job,
            index=self.index,
            workers=terms.workers,
            attempt=terms.attempt,
            cut=cut,
            format=record_format,
            inputs=self.inputs,
            reader=self.reader,
            place=self.place,
            memory=self.options.memory,
            threads=self.options.threads or default_threads(),
            proof=terms.proof,
            sync=terms.sync,
            stop=self.stop,
            progress=self.advance,
        )

    def advance(self, done: float) -> None:
        self.done = done

    def lacking(self) -> tuple[tuple[int, int], ...]:
        if not self.declared or self.parts is None:
            return ()
        return self.parts.lacking(self.declared)

    def beat(self) -> Beat:
        worker = self.worker
        return Beat(
            state=worker.state,
            progress=progress(worker.state, self.done),
            lacks=self.lacking()[:LACKS_AT_ONCE],
            has_cut=worker.cut is not None,
            has_declared=bool(self.declared),
            reason=worker.reason if worker.state is WorkerState.FAILED else "",
            fatal=worker.fatal,
        )

    def meet(self, peers: tuple[Peer, ...]) -> None:
        """Take the present addresses of the other workers."""
        if not peers:
            return
        self.peers = {peer.index: peer for peer in peers}
        if self.sender is not None:
            self.sender.peers(peers)

    def refuse_stale(self, sender: int, attempt: int) -> None:
        known = self.peers.get(sender)
        if known is not None and attempt < known.attempt:
            raise StaleAttempt(f"attempt {attempt} of worker {sender} is over: attempt {known.attempt} has replaced it")
