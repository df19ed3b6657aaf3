"""Carry out the commands of the worker's machine."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from torpor.sort.data.context import SortContext, StopRequested
from torpor.sort.data.files import is_whole, read_manifest
from torpor.sort.data.inputs import sample
from torpor.sort.data.merge import merge
from torpor.sort.data.parts import PartStore
from torpor.sort.data.running_proof import prove_file
from torpor.sort.data.runs import Runs
from torpor.sort.data.sweep import sweep
from torpor.sort.data.worker_directory import NOTHING
from torpor.sort.debug_breakpoints import Moment
from torpor.sort.errors import PeerUnavailable, SortError, SortRefused
from torpor.sort.kernels.sample import seed_of
from torpor.sort.machine.records import MergeReport, Sample, ShuffleReport, SortReport
from torpor.sort.machine.states import WORKING, WorkerPhase
from torpor.sort.machine.states import WorkerState as W
from torpor.sort.machine.worker import (
    AbortJob,
    AbortRequested,
    DrawSample,
    Event,
    ExitWorker,
    FinishShuffle,
    Merge,
    MergeAhead,
    Merged,
    Register,
    Registered,
    RemoveAll,
    RemoveTemporaries,
    ReportFailure,
    Sampled,
    SendAll,
    SendParts,
    SendReport,
    Shuffled,
    Sweep,
    SweepDone,
    Worker,
)
from torpor.sort.proof import total
from torpor.sort.record import parse
from torpor.sort.sizes import SAMPLES
from torpor.sort.wire.calls import ABORT_JOB, REGISTER_WORKER, REPORT_PHASE_COMPLETE, SUBMIT_SAMPLE
from torpor.sort.wire.requests import (
    JOB_FAILED,
    Abort,
    RegisterWorker,
    Registration,
    ReportPhaseComplete,
    SubmitSample,
    WorkerRef,
)
from torpor.sort.worker.exit_codes import WorkerExitCode
from torpor.sort.worker.heartbeat import HeartbeatLoop
from torpor.sort.worker.part_sender import PartSender
from torpor.sort.worker.worker_session import WorkerSession

CALL_S = 10.0
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
LOOK_S = 0.01
STOP_S = 30.0
"""How long threads may take to notice that the work has ended."""

Answer = TypeVar("Answer")


class CommandExecutor:
    def __init__(self, session: WorkerSession, heartbeat: HeartbeatLoop, control: str, data: str) -> None:
        self._session = session
        self._heartbeat = heartbeat
        self._control, self._data = control, data
        self._merging: Future[MergeReport] = Future()
        self._sorts_again = False
        session.driver.handlers = {
            Register: self._register,
            DrawSample: self._draw_sample,
            SendReport: self._tell,
            Sweep: self._sweep,
            SendAll: self._send_all,
            SendParts: self._send_parts,
            FinishShuffle: self._finish_shuffle,
            MergeAhead: self._merge_ahead,
            Merge: self._merge,
            ReportFailure: self._tell_failure,
            AbortJob: self._abort_job,
            RemoveTemporaries: self._remove_temporaries,
            RemoveAll: self._remove_all,
            ExitWorker: self._leave,
        }

    def close(self) -> None:
        session = self._session
        session.stop.set()
        self._heartbeat.end()
        if session.sender is not None:
            session.sender.close()

    # ---- calls to the master

    def _register(self, command: Register) -> None:
        self._begin(self._registered, Moment.AFTER_SEND)

    def _registered(self) -> Event | None:
        session, options, present = self._session, self._session.options, 0
        registration = Registration(
            identity=session.worker.identity,
            nonce=session.nonce,
            asked=options.index,
            control=self._control,
            data=self._data,
            size=session.inputs.size,
            memory=options.memory,
            format=session.input_format,
        )
        request = RegisterWorker(WorkerRef(session.worker.job, session.worker.identity, session.worker.attempt), registration)
        while not session.stop.is_set():
            try:
                terms = self._call_with_retries(lambda: session.master.call(REGISTER_WORKER, request, CALL_S))
            except SortRefused as error:
                if error.code == JOB_FAILED:
                    return AbortRequested(error.message)
                raise
            if terms.index is not None:
                return Registered(terms)
            if terms.present != present:
                present = terms.present
                session.say(f"registered; {present} of {terms.workers} workers have registered")
            session.stop.wait(min(0.1, options.deadlines.heartbeat))
        return None

    def _tell(self, command: SendReport) -> None:
        self._begin(lambda: self._told(command.phase), Moment.AFTER_SEND)
        self._heartbeat.begin()

    def _told(self, phase: WorkerPhase) -> None:
        session = self._session
        report = session.worker.report(phase)
        if isinstance(report, Sample):
            sampled = SubmitSample(session.caller(), report)
            self._call_with_retries(lambda: session.master.call(SUBMIT_SAMPLE, sampled, CALL_S))
        elif report is not None:
            reported = ReportPhaseComplete(session.caller(), report, session.worker.history)
            self._call_with_retries(lambda: session.master.call(REPORT_PHASE_COMPLETE, reported, CALL_S))
        session.nudge.set()

    def _call_with_retries(self, call: Callable[[], Answer]) -> Answer:
        """Retry until the call is answered: the master may be away for a while."""
        wait_s, end = FIRST_RETRY_S, time.monotonic() + self._session.options.deadlines.master_grace
        while True:
            try:
                return call()
            except PeerUnavailable as error:
                if time.monotonic() > end:
                    raise
                if self._session.stop.is_set():
                    raise StopRequested("the work was stopped") from error
                self._session.stop.wait(wait_s)
                wait_s = min(LONGEST_RETRY_S, wait_s * 2)

    def _tell_failure(self, command: ReportFailure) -> None:
        self._session.stop.set()
        if self._session.worker.terms is None:
            return
        try:
            self._heartbeat.once()
        except SortError as error:
            self._session.say(f"the master could not be notified: {error.message}")
        self._hold(Moment.AFTER_SEND)

    def _abort_job(self, command: AbortJob) -> None:
        session = self._session
        abort = Abort(WorkerRef(session.worker.job, session.worker.identity), f"{session.worker.identity}: {command.reason}")

        def told() -> None:
            self._call_with_retries(lambda: session.master.call(ABORT_JOB, abort, CALL_S))

        session.driver.begin(told)

    # ---- moving records

    def _draw_sample(self, command: DrawSample) -> None:
        self._heartbeat.begin()
        self._begin(self._sampled, Moment.MIDWAY)
        self._hold(Moment.AFTER_SEND)

    def _sampled(self) -> Event:
        session = self._session
        seed = seed_of(session.index, [segment.length for segment in session.inputs.segments])
        keys = sample(session.inputs, parse(session.terms.format), SAMPLES, seed)
        return Sampled(Sample(tuple(keys), len(keys)))

    def _sweep(self, command: Sweep) -> None:
        self._begin(self._swept)
        self._hold(Moment.AFTER_SEND)

    def _swept(self) -> Event:
        return SweepDone(self._run_sweep()[1])

    def _run_sweep(self) -> tuple[Runs, SortReport]:
        session = self._session
        context = self._context()
        if session.parts is None:
            session.place.keep(context.job, context.boundaries, session.own)
            parts = PartStore(context)
            parts.load_kept()
            session.parts = parts
        runs, report = sweep(context)
        session.runs = runs
        session.sender = PartSender(
            job=context.job,
            index=context.index,
            attempt=context.attempt,
            source=runs,
            join=session.join,
            seed=int(session.nonce, 16),
            failed=self._sending_failed,
        )
        session.meet(tuple(session.peers.values()))
        return runs, report

    def _send_all(self, command: SendAll) -> None:
        assert self._session.sender is not None
        self._session.sender.want(self._outgoing())

    def _outgoing(self) -> list[tuple[int, int]]:
        """Every part that another worker owns, with its owner."""
        cut, index = self._session.worker.cut, self._session.index
        assert cut is not None
        return [(partition, owner) for partition, owner in enumerate(cut.owners) if owner != index]

    def _send_parts(self, command: SendParts) -> None:
        """Send parts that other workers lack. A worker that was killed when it was Completed has no runs in memory, so it sorts
        again."""
        if self._session.sender is not None:
            self._session.sender.want(command.parts)
        elif not self._sorts_again:
            # Every heartbeat repeats what is wanted, so it need not be kept here.
            self._sorts_again = True
            self._session.say("other workers lack parts of this worker; it sorts its input again")
            self._session.driver.begin(self._sort_again)

    def _sort_again(self) -> None:
        self._run_sweep()

    def _sending_failed(self, error: SortError) -> None:
        event = self._session.driver.broke(error)
        if event is not None:
            self._session.driver.tell(event)

    def _finish_shuffle(self, command: FinishShuffle) -> None:
        self._begin(self._shuffled)
        self._hold(Moment.AFTER_SEND)

    def _shuffled(self) -> Event:
        session, began = self._session, time.monotonic()
        sender, outgoing = session.sender, self._outgoing()
        incoming = len(session.own) * (session.terms.workers - 1)
        assert sender is not None
        while True:
            if session.stop.is_set():
                raise StopRequested("the work was stopped")
            lacks = session.lacking() if session.declared else None
            unsent = sender.unacknowledged(outgoing)
            if lacks == () and not unsent:
                break
            self._advance(50.0 * _share(lacks, incoming) + 50.0 * _share(unsent, len(outgoing)))
            time.sleep(LOOK_S)
        self._advance(100.0)
        received = total(
            proof for proofs in session.declared.values() for sender_, proof in enumerate(proofs) if sender_ != session.index
        )
        counters = sender.counters
        return Shuffled(ShuffleReport(received, time.monotonic() - began, counters.retries, counters.resent))

    def _merge_ahead(self, command: MergeAhead) -> None:
        session = self._session
        assert session.runs is not None
        assert session.parts is not None
        runs, parts, merging = session.runs, session.parts, self._merging

        def ahead() -> None:
            try:
                merging.set_result(merge(self._context(), runs, parts, session.declared))
            except Exception as error:
                merging.set_exception(error)
                raise

        session.driver.begin(ahead)

    def _merge(self, command: Merge) -> None:
        self._begin(self._merged)
        self._hold(Moment.AFTER_SEND)

    def _merged(self) -> Event:
        report = self._merging.result()
        self._advance(100.0)
        return Merged(report)

    # ---- files that stay

    def _remove_temporaries(self, command: RemoveTemporaries) -> None:
        self._session.stop.set()
        self._session.driver.wait_for_handlers(STOP_S)
        self._session.place.remove_temporaries(self._session.own)
        self._hold(Moment.MIDWAY)

    def _remove_all(self, command: RemoveAll) -> None:
        self.close()
        self._session.driver.wait_for_handlers(STOP_S)
        self.remove_everything()

    def remove_everything(self) -> None:
        """After a job that failed: remove scratch, output and the marker."""
        self.remove_all_files()
        self._session.place.release_output()
        self._session.place.remove_scratch()

    def forget_files(self) -> None:
        """Use no files of an earlier attempt. They are removed when they are written again."""
        self._session.place.forget()

    def remove_all_files(self) -> None:
        """Remove all files of this worker but the journal."""
        self._session.place.clean(W.MERGING, NOTHING, own=self._session.own)

    def _leave(self, command: ExitWorker) -> None:
        session = self._session
        if command.ok:
            session.place.finish_output(session.worker.job, session.worker.identity)
            self._take_leave()
            self.close()
            session.place.remove_scratch(journal=False)
        session.driver.finish(_ending(command.ok, session.worker))

    def _take_leave(self) -> None:
        """Tell the master that the end is in this worker's journal, so that the master need not wait for this worker."""
        try:
            self._heartbeat.once()
        except SortError as error:
            self._session.say(f"the master has ended already: {error.message}")

    def output_is_whole(self) -> bool:
        """Whether every file that was reported is still there with the same content."""
        session, merged = self._session, self._session.worker.merged
        if merged is None:
            return False
        for file in merged.files:
            path = session.place.output_file(file.partition)
            manifest = read_manifest(session.place.manifest_of(path))
            if manifest is None or not is_whole(path, manifest):
                return False
            if session.terms.proof and prove_file(path, parse(session.terms.format)) != file.proof:
                return False
        return True

    # ---- helpers

    def _context(self) -> SortContext:
        return replace(self._session.context(), progress=self._advance)

    def _advance(self, done: float) -> None:
        self._session.advance(done)
        if done >= 50:
            self._hold(Moment.MIDWAY)

    def _begin(self, work: Callable[[], Event | None], hold: Moment | None = None) -> None:
        state = self._session.worker.state

        def then() -> None:
            if hold is not None:
                self._session.driver.holding.at(state, hold)
                if state not in WORKING:
                    self._session.driver.holding.at(state, Moment.MIDWAY)

        self._session.done = 0.0
        self._session.driver.begin(work, then=then)

    def _hold(self, moment: Moment) -> None:
        self._session.driver.holding.at(self._session.worker.state, moment)


def _ending(ok: bool, worker: Worker) -> WorkerExitCode:
    if ok:
        return WorkerExitCode.COMPLETED
    return WorkerExitCode.JOB_FAILED if worker.fatal or worker.aborted else WorkerExitCode.FAILED


def _share(lacking: tuple[tuple[int, int], ...] | None, of: int) -> float:
    """How much of `of` is there, from 0 to 1."""
    return 0.0 if lacking is None else 1 - len(lacking) / of if of else 1.0
