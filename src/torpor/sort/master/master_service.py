"""Answer the workers' calls, and carry out the commands of the master's machine."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as TookTooLong
from typing import TypeVar

import grpc

from torpor.sort import clock
from torpor.sort.data.format_detection import format_message
from torpor.sort.debug_breakpoints import Moment
from torpor.sort.driver import Driver
from torpor.sort.errors import PeerNotReady, SortError, SortRefused
from torpor.sort.job.options import MasterOptions
from torpor.sort.job.report import JobReport, SortOutcome, WorkerReport
from torpor.sort.job.status import JobStatus, WorkerStatus
from torpor.sort.kernels.partition_boundaries import choose
from torpor.sort.machine.history import durations
from torpor.sort.machine.master import (
    STAGE_OF,
    AnnounceRanges,
    ChoosePartitions,
    Command,
    EndJob,
    Event,
    JobFailed,
    Master,
    PartitionsChosen,
    RegisteredWorker,
    SampleReceived,
    SignalWorkers,
    WorkerJoined,
    check_caller,
    goal,
    owners,
    report_event,
    terms,
)
from torpor.sort.machine.records import Beat, Goal, GoalStage, PartitionMap, WorkerAssignment
from torpor.sort.machine.states import MASTER_MEANS, MASTER_TERMINAL, PHASE_OF, WORKER_MEANS, WORKING
from torpor.sort.machine.states import MasterState as M
from torpor.sort.machine.states import WorkerState as W
from torpor.sort.master.worker_timeouts import WorkerContact, timeout_reasons
from torpor.sort.proof import Proof, total
from torpor.sort.record import parse
from torpor.sort.sizes import partitions
from torpor.sort.wire.calls import (
    ABORT_JOB,
    ABORT_WORKER,
    GET_JOB_STATUS,
    GET_WORKER_STATUS,
    HEARTBEAT,
    REGISTER_WORKER,
    REPORT_PHASE_COMPLETE,
    SET_PARTITION_BOUNDARIES,
    START_MERGE,
    START_SHUFFLE,
    SUBMIT_SAMPLE,
    call_handler,
    handlers,
)
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JoinCredentials
from torpor.sort.wire.requests import (
    JOB_FAILED,
    Abort,
    Acknowledged,
    GetStatus,
    Heartbeat,
    RegisterWorker,
    ReportPhaseComplete,
    SetPartitionBoundaries,
    StartMerge,
    StartShuffle,
    SubmitSample,
    WorkerRef,
)

TAKEN_S = 10.0
SIGNAL_S = 2.0
WATCH_S = 0.2

Answer = TypeVar("Answer")


class MasterService:
    def __init__(self, options: MasterOptions, join: JoinCredentials, driver: Driver[Master, Event, Command]) -> None:
        self.join = join
        self._options = options
        self._driver = driver
        self._began = clock.now()
        self._seen: dict[str, WorkerContact] = {
            member.identity: WorkerContact(time.monotonic()) for member in driver.value.members
        }
        self._is_over = threading.Event()
        driver.handlers = {
            AnnounceRanges: self._announce,
            ChoosePartitions: self._choose,
            SignalWorkers: self._signal,
            EndJob: self._end,
        }

    @property
    def master(self) -> Master:
        return self._driver.value

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return handlers(
            call_handler(REGISTER_WORKER, self._register),
            call_handler(SUBMIT_SAMPLE, self._take_sample),
            call_handler(REPORT_PHASE_COMPLETE, self._take_report),
            call_handler(HEARTBEAT, self._heartbeat),
            call_handler(GET_JOB_STATUS, lambda request: self.status()),
            call_handler(ABORT_JOB, self._abort),
        )

    def carry_out(self, *, resumed: bool) -> JobReport:
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        if resumed:
            self._resume()
        else:
            self._driver.save_first()
        if self.master.state is M.WAITING_FOR_WORKERS:
            # In this state the master only waits.
            self._held(Moment.AFTER_SEND, Moment.MIDWAY)()
        self._driver.run()
        return self.report()

    def break_off(self, reason: str) -> None:
        """Fail the job."""
        self._driver.tell(JobFailed(reason))

    def close(self) -> None:
        self._is_over.set()

    # ---- calls from workers

    def _register(self, request: RegisterWorker) -> WorkerAssignment:
        came = request.registration
        self._refuse_other_job(request.caller.job)
        try:
            self._ask(
                WorkerJoined(
                    came.identity,
                    came.nonce,
                    came.asked,
                    came.control,
                    came.data,
                    came.size,
                    came.memory,
                    request.caller.attempt,
                    came.format,
                )
            )
        except SortRefused as error:
            if self.master.state is M.FAILED:
                raise SortRefused(JOB_FAILED, f"the job has failed: {self.master.reason}") from error
            raise
        self._seen[came.identity] = WorkerContact(time.monotonic())
        return terms(self.master, came.identity)

    def _take_sample(self, request: SubmitSample) -> Acknowledged:
        index = self._caller(request.caller)
        self._ask(SampleReceived(index, request.sample, request.caller.attempt))
        return Acknowledged()

    def _take_report(self, request: ReportPhaseComplete) -> Acknowledged:
        index = self._caller(request.caller)
        self._ask(report_event(index, request.report, request.caller.attempt))
        self._heard_of(self.master.member(index)).history = request.history
        return Acknowledged()

    def _heartbeat(self, request: Heartbeat) -> Goal:
        index, beat = self._caller(request.caller), request.beat
        member = self.master.member(index)
        seen = self._heard_of(member)
        seen.at, seen.beat = time.monotonic(), beat
        if beat.state == W.FAILED and beat.fatal:
            self._driver.tell(JobFailed(f"worker {index}: {beat.reason}"))
        answer = goal(self.master, index, beat, self._lacks())
        seen.heard, seen.told = seen.told, answer.stage
        return answer

    def _heard_of(self, member: RegisteredWorker) -> WorkerContact:
        return self._seen.setdefault(member.identity, WorkerContact(time.monotonic()))

    def _lacks(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        return {
            member.index: self._seen[member.identity].beat.lacks
            for member in self.master.members
            if member.index is not None and member.identity in self._seen
        }

    def _abort(self, request: Abort) -> Acknowledged:
        self._refuse_other_job(request.caller.job)
        self._refuse_other_worker(request.caller.worker)
        if request.caller.worker is None:
            return self._abort_for_a_user(request.reason)
        self._driver.tell(JobFailed(request.reason))
        return Acknowledged()

    def _abort_for_a_user(self, reason: str) -> Acknowledged:
        """Answered only after the event is saved: a user must learn whether the job had ended before."""
        if self._ask(JobFailed(reason)).state is M.COMPLETED:
            raise SortRefused("completed", f"job {self.master.job} is completed and can no longer be aborted")
        return Acknowledged()

    def _caller(self, caller: WorkerRef) -> int:
        index = caller.worker if isinstance(caller.worker, int) else -1
        check_caller(self.master, caller.job, index, caller.attempt)
        return index

    def _refuse_other_worker(self, worker: int | str | None) -> None:
        """A worker with a mistyped input must not end a job that has all its workers."""
        identities = {member.identity for member in self.master.members}
        if self.master.state is not M.WAITING_FOR_WORKERS and isinstance(worker, str) and worker not in identities:
            raise SortRefused("too_many", f"{worker} is not one of this job's workers")

    def _refuse_other_job(self, job: str) -> None:
        if job != self.master.job:
            raise SortRefused("other_job", f"this is job {self.master.job}, not {job}")

    def _ask(self, event: Event) -> Master:
        try:
            return self._driver.ask(event, TAKEN_S)
        except TookTooLong as error:
            raise PeerNotReady(f"not ready: the master, in state {self.master.state}, is busy") from error

    # ---- commands of the machine

    def _resume(self) -> None:
        """After a restart: send every signal of this state again, because it may not have been sent."""
        self._signal(SignalWorkers(STAGE_OF[self.master.state]))
        if self.master.state in MASTER_TERMINAL:
            self._end(EndJob(ok=self.master.state is M.COMPLETED))

    def _announce(self, command: AnnounceRanges) -> None:
        if self._options.format is None:
            self._options.say(format_message(parse(self.master.format)))
        for member in self.master.members:
            self._options.say(f"worker {member.index}: {member.identity} at {member.control}, {member.size} bytes of input")
        self._held(Moment.AFTER_SEND, Moment.MIDWAY)()

    def _choose(self, command: ChoosePartitions) -> None:
        self._driver.begin(lambda: PartitionsChosen(_cut(self.master)), then=self._held(Moment.AFTER_SEND, Moment.MIDWAY))

    def _signal(self, command: SignalWorkers) -> None:
        """Send hints in order of the workers. A worker that does not get its hint asks by itself."""

        def each() -> None:
            members = self.master.members
            for place, member in enumerate(members):
                self._hint(command.stage, member)
                if place == 0:
                    self._driver.holding.at(self.master.state, Moment.MIDWAY)

        self._driver.begin(lambda: each(), then=self._held(Moment.AFTER_SEND))

    def _hint(self, stage: GoalStage, member: RegisteredWorker) -> None:
        master = self.master
        caller = WorkerRef(master.job, member.index, member.attempt)
        try:
            with Connection(member.control, self.join) as connection:
                match stage:
                    case GoalStage.SORT:
                        assert master.cut is not None
                        assert member.index is not None
                        peers = goal(master, member.index, Beat(W.SORTING, 0.0), {}).peers
                        connection.call(SET_PARTITION_BOUNDARIES, SetPartitionBoundaries(caller, master.cut, peers), SIGNAL_S)
                    case GoalStage.SHUFFLE:
                        assert member.index is not None
                        full = goal(master, member.index, Beat(W.SORTING, 0.0), {})
                        connection.call(START_SHUFFLE, StartShuffle(caller, full.declared, full.peers), SIGNAL_S)
                    case GoalStage.MERGE:
                        connection.call(START_MERGE, StartMerge(caller), SIGNAL_S)
                    case GoalStage.ABORT:
                        # The worker ends then, and its history belongs in the report.
                        self._heard_of(member).history = connection.call(GET_WORKER_STATUS, GetStatus(caller), SIGNAL_S).history
                        connection.call(ABORT_WORKER, Abort(caller, master.reason), SIGNAL_S)
                        self._heard_of(member).told = stage
                    case GoalStage.REGISTER | GoalStage.SAMPLE | GoalStage.DONE:
                        # Workers that wait for these stages ask often enough.
                        return
        except SortError:
            return

    def _end(self, command: EndJob) -> None:
        """Wait until all workers have heard of the end, or were silent for too long."""

        def has_heard(seen: WorkerContact) -> bool:
            # A worker that is killed before it heard of the success comes back for it. A failure needs no confirmation.
            return seen.heard is GoalStage.DONE if command.ok else seen.told is GoalStage.ABORT

        def until_heard() -> None:
            end = time.monotonic() + self._options.deadlines.heartbeat_lost
            while time.monotonic() < end and not all(has_heard(seen) for seen in self._staying()):
                time.sleep(0.02)
            self._driver.finish(0 if command.ok else 1)

        self._driver.begin(until_heard)

    def _staying(self) -> list[WorkerContact]:
        """The workers that can still hear of the end. A failed worker is ending and need not be told."""
        lost = time.monotonic() - self._options.deadlines.heartbeat_lost
        return [seen for seen in self._seen.values() if seen.at >= lost and seen.beat.state != W.FAILED]

    def _held(self, *moments: Moment) -> Callable[[], None]:
        state = self.master.state

        def hold() -> None:
            for moment in moments:
                self._driver.holding.at(state, moment)

        return hold

    # ---- silence

    def _watch(self) -> None:
        """Fail the job when workers do not register or are silent for too long."""
        began, deadlines = time.monotonic(), self._options.deadlines
        turn_s, last = min(WATCH_S, deadlines.heartbeat), began
        while not self._is_over.wait(turn_s):
            master = self.master
            if master.state in MASTER_TERMINAL:
                return
            now = time.monotonic()
            slept_s, last = now - last - turn_s, now
            if slept_s > deadlines.heartbeat_lost / 2:
                # The master itself was stopped, and no worker could reach it meanwhile.
                began += slept_s
                for seen in tuple(self._seen.values()):
                    seen.excuse(slept_s, now)
            for reason in timeout_reasons(master, self._heard_of, deadlines, waited_s=now - began, now=now):
                self._driver.tell(JobFailed(reason))

    # ---- status and report

    def status(self) -> JobStatus:
        master, now = self.master, clock.now()
        return JobStatus(
            job=master.job,
            state=master.state,
            message=master.reason or MASTER_MEANS[master.state],
            address=self.join.address,
            format=master.format,
            expected=master.expected,
            workers=tuple(self._worker_status(member) for member in master.members),
            durations=durations(master.history, now),
            history=master.history,
            reason=master.reason,
            verdict=master.verdict,
        )

    def _worker_status(self, member: RegisteredWorker) -> WorkerStatus:
        seen = self._heard_of(member)
        silent_s = max(0.0, time.monotonic() - seen.at)
        state = W(seen.beat.state)
        lost = silent_s > self._options.deadlines.heartbeat_lost and self.master.state not in MASTER_TERMINAL
        return WorkerStatus(
            index=member.index,
            identity=member.identity,
            attempt=member.attempt,
            control=member.control,
            data=member.data,
            state=state,
            phase=PHASE_OF[state],
            progress=seen.beat.progress,
            message=f"no heartbeat for {silent_s:.0f} s" if lost else seen.beat.reason or WORKER_MEANS[state],
            seen_seconds_ago=silent_s,
            size=member.size,
        )

    def report(self) -> JobReport:
        master = self.master
        outcome = SortOutcome(master.verdict) if master.verdict else SortOutcome.FAILED
        # A master that was restarted began before this process did.
        began = min(self._began, master.history[0].at) if master.history else self._began
        ended = master.history[-1].at if master.history else self._began
        return JobReport(
            job=master.job,
            outcome=outcome,
            format=master.format,
            partitions=len(master.cut.owners) if master.cut else 0,
            seconds=ended - began,
            reason=master.reason,
            proof=total(file.proof for report in master.merged.values() for file in report.files),
            durations={
                state: spent for state, spent in durations(master.history, ended).items() if state not in MASTER_TERMINAL
            },
            history=master.history,
            workers=tuple(self._worker_report(member) for member in master.members if member.index is not None),
        )

    def _worker_report(self, member: RegisteredWorker) -> WorkerReport:
        master, index = self.master, member.index
        assert index is not None
        history = self._heard_of(member).history
        merged, shuffled = master.merged.get(index), master.shuffled.get(index)
        return WorkerReport(
            index=index,
            identity=member.identity,
            attempts=member.attempt,
            read=master.sorted[index].proof if index in master.sorted else Proof(),
            written=total(file.proof for file in merged.files) if merged else Proof(),
            durations=_worked(durations(history, history[-1].at)) if history else {},
            retries=shuffled.retries if shuffled else 0,
            resent=shuffled.resent if shuffled else 0,
            history=history,
        )


def _cut(master: Master) -> PartitionMap:
    sizes = {member.index: member.size for member in master.members if member.index is not None}
    count = partitions(sum(sizes.values()), master.expected, master.memory)
    samples = {index: sample.keys for index, sample in master.samples.items()}
    return PartitionMap(choose(samples, sizes, count), owners(count, master.expected))


def _worked(spent: Mapping[str, float]) -> Mapping[str, float]:
    return {state: spent[state] for state in WORKING if state in spent}
