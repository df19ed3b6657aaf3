"""How does a worker carry out what its machine commands?"""

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
"""How long those who still work may take to notice that it is over."""

Answer = TypeVar("Answer")


class CommandExecutor:
    def __init__(self, bench: WorkerSession, pulse: HeartbeatLoop, control: str, data: str) -> None:
        self._bench = bench
        self._pulse = pulse
        self._control, self._data = control, data
        self._merging: Future[MergeReport] = Future()
        self._sorts_again = False
        bench.driver.hands = {
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
        bench = self._bench
        bench.stop.set()
        self._pulse.end()
        if bench.sender is not None:
            bench.sender.close()

    # ---- talking to the master

    def _register(self, command: Register) -> None:
        self._begin(self._registered, Moment.AFTER_SEND)

    def _registered(self) -> Event | None:
        bench, options, present = self._bench, self._bench.options, 0
        registration = Registration(
            identity=bench.worker.identity,
            nonce=bench.nonce,
            asked=options.index,
            control=self._control,
            data=self._data,
            size=bench.inputs.size,
            memory=options.memory,
            format=bench.input_format,
        )
        request = RegisterWorker(WorkerRef(bench.worker.job, bench.worker.identity, bench.worker.attempt), registration)
        while not bench.stop.is_set():
            try:
                terms = self._insist(lambda: bench.master.call(REGISTER_WORKER, request, CALL_S))
            except SortRefused as error:
                if error.code == JOB_FAILED:
                    return AbortRequested(error.message)
                raise
            if terms.index is not None:
                return Registered(terms)
            if terms.present != present:
                present = terms.present
                bench.say(f"registered; {present} of {terms.workers} workers are here")
            bench.stop.wait(min(0.1, options.deadlines.heartbeat))
        return None

    def _tell(self, command: SendReport) -> None:
        self._begin(lambda: self._told(command.phase), Moment.AFTER_SEND)
        self._pulse.begin()

    def _told(self, phase: WorkerPhase) -> None:
        bench = self._bench
        report = bench.worker.report(phase)
        if isinstance(report, Sample):
            sampled = SubmitSample(bench.caller(), report)
            self._insist(lambda: bench.master.call(SUBMIT_SAMPLE, sampled, CALL_S))
        elif report is not None:
            reported = ReportPhaseComplete(bench.caller(), report, bench.worker.history)
            self._insist(lambda: bench.master.call(REPORT_PHASE_COMPLETE, reported, CALL_S))
        bench.nudge.set()

    def _insist(self, call: Callable[[], Answer]) -> Answer:
        """Tried again until it is answered: the master may be away for a while."""
        wait_s, end = FIRST_RETRY_S, time.monotonic() + self._bench.options.deadlines.master_grace
        while True:
            try:
                return call()
            except PeerUnavailable as error:
                if time.monotonic() > end:
                    raise
                if self._bench.stop.is_set():
                    raise StopRequested("the work was stopped") from error
                self._bench.stop.wait(wait_s)
                wait_s = min(LONGEST_RETRY_S, wait_s * 2)

    def _tell_failure(self, command: ReportFailure) -> None:
        self._bench.stop.set()
        if self._bench.worker.terms is None:
            return
        try:
            self._pulse.once()
        except SortError as error:
            self._bench.say(f"the master could not be told: {error.message}")
        self._hold(Moment.AFTER_SEND)

    def _abort_job(self, command: AbortJob) -> None:
        bench = self._bench
        abort = Abort(WorkerRef(bench.worker.job, bench.worker.identity), f"{bench.worker.identity}: {command.reason}")

        def told() -> None:
            self._insist(lambda: bench.master.call(ABORT_JOB, abort, CALL_S))

        bench.driver.begin(told)

    # ---- moving records

    def _draw_sample(self, command: DrawSample) -> None:
        self._pulse.begin()
        self._begin(self._sampled, Moment.MIDWAY)
        self._hold(Moment.AFTER_SEND)

    def _sampled(self) -> Event:
        bench = self._bench
        seed = seed_of(bench.index, [segment.length for segment in bench.inputs.segments])
        keys = sample(bench.inputs, parse(bench.terms.format), SAMPLES, seed)
        return Sampled(Sample(tuple(keys), len(keys)))

    def _sweep(self, command: Sweep) -> None:
        self._begin(self._swept)
        self._hold(Moment.AFTER_SEND)

    def _swept(self) -> Event:
        return SweepDone(self._run_sweep()[1])

    def _run_sweep(self) -> tuple[Runs, SortReport]:
        bench = self._bench
        context = self._context()
        if bench.parts is None:
            bench.place.keep(context.job, context.boundaries, bench.own)
            parts = PartStore(context)
            parts.load_kept()
            bench.parts = parts
        runs, report = sweep(context)
        bench.runs = runs
        bench.sender = PartSender(
            job=context.job,
            index=context.index,
            attempt=context.attempt,
            source=runs,
            join=bench.join,
            seed=int(bench.nonce, 16),
            failed=self._sending_failed,
        )
        bench.meet(tuple(bench.peers.values()))
        return runs, report

    def _send_all(self, command: SendAll) -> None:
        assert self._bench.sender is not None
        self._bench.sender.want(self._outgoing())

    def _outgoing(self) -> list[tuple[int, int]]:
        """Every part that somebody else owns, with its owner."""
        cut, index = self._bench.worker.cut, self._bench.index
        assert cut is not None
        return [(partition, owner) for partition, owner in enumerate(cut.owners) if owner != index]

    def _send_parts(self, command: SendParts) -> None:
        """A worker that was killed when it was Completed has no runs in memory, and others may still need them."""
        if self._bench.sender is not None:
            self._bench.sender.want(command.parts)
        elif not self._sorts_again:
            # Every heartbeat tells again what is wanted, so it need not be remembered here.
            self._sorts_again = True
            self._bench.say("others lack parts of this worker: it sorts again")
            self._bench.driver.begin(self._sort_again)

    def _sort_again(self) -> None:
        self._run_sweep()

    def _sending_failed(self, error: SortError) -> None:
        event = self._bench.driver.broke(error)
        if event is not None:
            self._bench.driver.tell(event)

    def _finish_shuffle(self, command: FinishShuffle) -> None:
        self._begin(self._shuffled)
        self._hold(Moment.AFTER_SEND)

    def _shuffled(self) -> Event:
        bench, began = self._bench, time.monotonic()
        sender, outgoing = bench.sender, self._outgoing()
        incoming = len(bench.own) * (bench.terms.workers - 1)
        assert sender is not None
        while True:
            if bench.stop.is_set():
                raise StopRequested("the work was stopped")
            lacks = bench.lacking() if bench.declared else None
            unsent = sender.unacknowledged(outgoing)
            if lacks == () and not unsent:
                break
            self._advance(50.0 * _share(lacks, incoming) + 50.0 * _share(unsent, len(outgoing)))
            time.sleep(LOOK_S)
        self._advance(100.0)
        received = total(
            proof for proofs in bench.declared.values() for sender_, proof in enumerate(proofs) if sender_ != bench.index
        )
        counters = sender.counters
        return Shuffled(ShuffleReport(received, time.monotonic() - began, counters.retries, counters.resent))

    def _merge_ahead(self, command: MergeAhead) -> None:
        bench = self._bench
        assert bench.runs is not None
        assert bench.parts is not None
        runs, parts, merging = bench.runs, bench.parts, self._merging

        def ahead() -> None:
            try:
                merging.set_result(merge(self._context(), runs, parts, bench.declared))
            except Exception as error:
                merging.set_exception(error)
                raise

        bench.driver.begin(ahead)

    def _merge(self, command: Merge) -> None:
        self._begin(self._merged)
        self._hold(Moment.AFTER_SEND)

    def _merged(self) -> Event:
        report = self._merging.result()
        self._advance(100.0)
        return Merged(report)

    # ---- what stays behind

    def _remove_temporaries(self, command: RemoveTemporaries) -> None:
        self._bench.stop.set()
        self._bench.driver.wait_for_hands(STOP_S)
        self._bench.place.remove_temporaries(self._bench.own)
        self._hold(Moment.MIDWAY)

    def _remove_all(self, command: RemoveAll) -> None:
        self.close()
        self._bench.driver.wait_for_hands(STOP_S)
        self.remove_everything()

    def remove_everything(self) -> None:
        """Of a job that has failed: neither scratch nor output, nor a trace of them."""
        self.remove_all_files()
        self._bench.place.release_output()
        self._bench.place.remove_scratch()

    def forget_files(self) -> None:
        """Nothing of an earlier life is used; what it has written goes when that is made anew."""
        self._bench.place.forget()

    def remove_all_files(self) -> None:
        """As if this worker had never been here, but for the journal."""
        self._bench.place.clean(W.MERGING, NOTHING, own=self._bench.own)

    def _leave(self, command: ExitWorker) -> None:
        bench = self._bench
        if command.ok:
            bench.place.finish_output(bench.worker.job, bench.worker.identity)
            self._take_leave()
            self.close()
            bench.place.remove_scratch(journal=False)
        bench.driver.finish(_ending(command.ok, bench.worker))

    def _take_leave(self) -> None:
        """Now that it is in the journal the master need not stay for this worker."""
        try:
            self._pulse.once()
        except SortError as error:
            self._bench.say(f"the master is gone already: {error.message}")

    def output_is_whole(self) -> bool:
        """Is every file that was reported still there, byte for byte?"""
        bench, merged = self._bench, self._bench.worker.merged
        if merged is None:
            return False
        for file in merged.files:
            path = bench.place.output_file(file.partition)
            manifest = read_manifest(bench.place.manifest_of(path))
            if manifest is None or not is_whole(path, manifest):
                return False
            if bench.terms.proof and prove_file(path, parse(bench.terms.format)) != file.proof:
                return False
        return True

    # ---- how

    def _context(self) -> SortContext:
        return replace(self._bench.context(), progress=self._advance)

    def _advance(self, done: float) -> None:
        self._bench.advance(done)
        if done >= 50:
            self._hold(Moment.MIDWAY)

    def _begin(self, work: Callable[[], Event | None], hold: Moment | None = None) -> None:
        state = self._bench.worker.state

        def then() -> None:
            if hold is not None:
                self._bench.driver.holding.at(state, hold)
                if state not in WORKING:
                    self._bench.driver.holding.at(state, Moment.MIDWAY)

        self._bench.done = 0.0
        self._bench.driver.begin(work, then=then)

    def _hold(self, moment: Moment) -> None:
        self._bench.driver.holding.at(self._bench.worker.state, moment)


def _ending(ok: bool, worker: Worker) -> WorkerExitCode:
    if ok:
        return WorkerExitCode.COMPLETED
    return WorkerExitCode.JOB_FAILED if worker.fatal or worker.aborted else WorkerExitCode.FAILED


def _share(lacking: tuple[tuple[int, int], ...] | None, of: int) -> float:
    """How much of so many is there, from 0 to 1."""
    return 0.0 if lacking is None else 1 - len(lacking) / of if of else 1.0
