"""Run a worker from its start to its exit code.

It locks its directories, reads what an earlier attempt left in them, serves, registers, and then carries out the commands of
its machine.
"""

import ipaddress
import platform
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor.sort.data.context import StopRequested
from torpor.sort.data.format_detection import examine
from torpor.sort.data.inputs import find
from torpor.sort.data.segments import Inputs
from torpor.sort.data.worker_directory import OUTPUT, STATE, WorkerDirectory
from torpor.sort.debug_breakpoints import BreakpointStop
from torpor.sort.driver import Driver
from torpor.sort.errors import JournalCorrupt, PeerUnavailable, SortError, SortFailed, SortRefused, StaleAttempt
from torpor.sort.job.options import WorkerOptions
from torpor.sort.job.status import JobStatus
from torpor.sort.journal import Journal
from torpor.sort.machine.history import lines
from torpor.sort.machine.master import UNKNOWN_WORKER
from torpor.sort.machine.states import MASTER_WAY, MasterState
from torpor.sort.machine.states import WorkerState as W
from torpor.sort.machine.worker import Command, Event, Restarted, Started, Worker, WorkerFailed, step
from torpor.sort.record import Format, Lines, parse
from torpor.sort.wire.calls import ABORT_JOB, GET_JOB_STATUS
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JoinCredentials, load_join, split_address
from torpor.sort.wire.requests import Abort, GetStatus, WorkerRef
from torpor.sort.wire.server import RpcServer, serve
from torpor.sort.worker.exit_codes import WorkerExitCode, WorkerResult
from torpor.sort.worker.heartbeat import HeartbeatLoop
from torpor.sort.worker.worker_commands import CommandExecutor
from torpor.sort.worker.worker_service import WorkerService
from torpor.sort.worker.worker_session import WorkerSession

CONTROL_THREADS = 4
DATA_THREADS = 4
CALL_S = 10.0
"""The timeout of one call to the master."""
RETRY_S = 0.2

# A worker is Completed only when its master is Merging. A master in an earlier state has lost its journal.
BEFORE_MERGING = frozenset(MASTER_WAY[: MASTER_WAY.index(MasterState.MERGING)])
# A worker that cannot read its input can never take part, so the others need not wait for it.
FAILS_THE_JOB = frozenset({"missing_input", "unreadable_input", "special_input", "truncated", "unclear_format"})


@dataclass(frozen=True, slots=True)
class SavedWorker:
    """The content of the journal: the machine and its inputs."""

    worker: Worker
    inputs: Inputs


def run_worker(options: WorkerOptions) -> WorkerResult:
    join = load_join(options.join)
    with (
        Connection(options.master, join) as master,
        WorkerDirectory(_scratch(options), options.output, share_output=options.share_output) as place,
    ):
        place.refuse_overlap(options.inputs)
        place.lock(options.deadlines.lock)
        identity = _identity(options)
        if place.is_finished(join.job, identity) or _was_completed(place, join.job, identity):
            # The master may have ended, and it is not needed any more.
            place.finish_output(join.job, identity)
            place.remove_scratch(journal=False)
            print_line("this job is completed, and so is this worker's output")
            return WorkerResult(WorkerExitCode.COMPLETED)
        job = _find_master(master, options, print_line)
        try:
            form = parse(job.format) if job.format else examine(options.inputs)
            inputs = find(options.inputs, form or Lines()) if options.slice is None else options.slice
            place.claim_output(job.job, identity)
            while (left := _run_attempt(options, join, master, place, job, identity, inputs, form)).is_forgotten:
                print_line("the master no longer knows this worker; the worker registers again")
                job = _find_master(master, options, print_line)
        except SortRefused as error:
            if error.code in FAILS_THE_JOB:
                _fail_the_job(master, job, identity, error)
            raise
        except SortFailed as error:
            _fail_the_job(master, job, identity, error)
            raise
        return left


def release_output(options: WorkerOptions) -> None:
    """The last step after a completed job. Before it, the next process can tell from the marker that all work is done."""
    WorkerDirectory(_scratch(options), options.output, share_output=options.share_output).release_output()


def print_line(line: str) -> None:
    print(f"worker: {line}", file=sys.stderr, flush=True)


def _scratch(options: WorkerOptions) -> Path:
    return options.scratch or options.output / STATE / "worker"


def _identity(options: WorkerOptions) -> str:
    """The same for the same command on the same machine, so that a worker that comes back is recognised."""
    if options.index is not None:
        return f"index {options.index}"
    return ":".join([platform.node(), *(str(path.absolute()) for path in options.inputs), str(options.output.absolute())])


def _was_completed(place: WorkerDirectory, job: str, identity: str) -> bool:
    try:
        saved = Journal(place.journal).load(SavedWorker)
    except SortFailed:
        return False  # A corrupt journal is reported later, when there is a master to report it to.
    if saved is None or (saved.worker.job, saved.worker.identity) != (job, identity) or not saved.worker.job_done:
        return False
    files = saved.worker.merged.files if saved.worker.merged else ()
    return all(_has_size(place.output_file(file.partition), file.proof.size) for file in files)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _find_master(master: Connection, options: WorkerOptions, log: Callable[[str], None]) -> JobStatus:
    """The job and its format. Waits for a master that is being restarted."""
    end = time.monotonic() + options.deadlines.master_grace
    while True:
        try:
            return master.call(GET_JOB_STATUS, GetStatus(), CALL_S)
        except PeerUnavailable as error:
            if time.monotonic() > end:
                raise PeerUnavailable(
                    f"the master was not reachable for {options.deadlines.master_grace:g} s: {error.message}"
                ) from error
            log(f"looking for the master: {error.message}")
            time.sleep(min(1.0, options.deadlines.master_grace / 10))


def _fail_the_job(master: Connection, job: JobStatus, identity: str, error: SortError) -> None:
    try:
        master.call(ABORT_JOB, Abort(WorkerRef(job.job, identity), f"{identity}: {error.message}"), CALL_S)
    except SortError as trouble:
        print_line(f"the master could not be notified: {trouble.message}")


def _run_attempt(
    options: WorkerOptions,
    join: JoinCredentials,
    master: Connection,
    place: WorkerDirectory,
    job: JobStatus,
    identity: str,
    inputs: Inputs,
    form: Format | None,
) -> WorkerResult:
    journal = Journal(place.journal)
    journal.reserve()
    saved = _saved(journal)
    # A worker with another identity (for example after a corrected --index) is another worker and has no earlier attempt here.
    is_ours = saved is not None and (saved.worker.job, saved.worker.identity) == (job.job, identity)
    before = saved.worker if saved is not None and is_ours else None
    is_over = job.state == MasterState.COMPLETED
    if before is None and is_over:
        return _leave_alone(place)
    nudge, forgotten = threading.Event(), threading.Event()
    driver: Driver[Worker, Event, Command] = Driver(
        before or Worker(identity, job.job),
        step=step,
        save=lambda worker: journal.save(SavedWorker(worker, inputs)),
        broke=lambda error: _broke(error, forgotten),
        log=print_line,
        entered=nudge.set,
        holding=BreakpointStop(options.hold),
    )
    input_format = "" if form is None else str(form)
    session = WorkerSession(options, join, master, place, driver, inputs, input_format, secrets.token_hex(8), nudge, print_line)
    _end_on_signals(driver)
    service = WorkerService(session)
    listen = options.listen or f"{_own_host(options.master)}:0"
    with (
        stop_on_exit(serve(service.control(), listen, join, CONTROL_THREADS, data=False)) as control,
        stop_on_exit(serve(service.data(), _beside(listen), join, DATA_THREADS, data=True)) as data,
    ):
        executor = CommandExecutor(
            session, HeartbeatLoop(session), _announced(control.address, options), _announced(data.address, options)
        )
        try:
            if saved is not None and before is not None and saved.inputs != inputs and not is_over:
                changed = SortFailed(f"{_changed(saved.inputs, inputs)} was changed during the job")
                _fail_the_job(master, job, identity, changed)
                # The job may have been completed just before; then the output of this worker is part of the result.
                if _find_master(master, options, print_line).state != MasterState.COMPLETED:
                    executor.remove_everything()
                raise changed
            begins_again = job.state in BEFORE_MERGING
            _resume_or_begin(driver, executor, before, resume=options.resume or is_over, begins_again=begins_again)
            code = driver.run()
        finally:
            executor.close()
    if options.history or code != WorkerExitCode.COMPLETED:
        for line in lines(driver.value.history):
            print_line(line)
    ending = WorkerExitCode(code)
    is_forgotten = ending is WorkerExitCode.FAILED and forgotten.is_set()
    return WorkerResult(ending, driver.value.reason or "the job has not ended", is_forgotten=is_forgotten)


def _saved(journal: Journal) -> SavedWorker | None:
    """A corrupt journal counts as lost scratch: the worker does its part again."""
    try:
        return journal.load(SavedWorker)
    except JournalCorrupt as error:
        print_line(f"{error.message}; this counts as lost scratch, and the worker does its part again")
        return None


def _own_host(master: str) -> str:
    """The address by which this machine reaches the master, and by which others reach this machine."""
    host, port = split_address(master)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError as error:
        # The master has already answered, so the name is right and only the name server or the network is not available.
        raise PeerUnavailable(f"the master's host {host!r} is unknown at present: {error.strerror}") from error
    return f"[{own}]" if ":" in own else own


def _announced(address: str, options: WorkerOptions) -> str:
    """The address that other workers use: a worker that listens on all addresses is reached where it reaches the master
    from."""
    host, port = split_address(address)
    return f"{_own_host(options.master)}:{port}" if ipaddress.ip_address(host).is_unspecified else address


def _beside(listen: str) -> str:
    """The address for parts: the next port, or any port if any was allowed."""
    host, port = listen.rsplit(":", 1)
    return f"{host}:{int(port) + 1 if int(port) else 0}"


@contextmanager
def stop_on_exit(serving: RpcServer) -> Iterator[RpcServer]:
    try:
        yield serving
    finally:
        serving.stop(0.2)


def _leave_alone(place: WorkerDirectory) -> WorkerResult:
    """The scratch was lost after the last report. No other worker could send its parts again, and none has to."""
    if not any(OUTPUT.fullmatch(path.name) for path in place.output.iterdir()):
        return WorkerResult(WorkerExitCode.FAILED, f"the job is completed, but its output is not in {place.output}")
    place.remove_scratch()
    print_line(f"this job is completed, and the files in {place.output} are left unchanged")
    return WorkerResult(WorkerExitCode.COMPLETED)


def _changed(before: Inputs, now: Inputs) -> str:
    """The first input file that has changed."""
    differing = set(before.segments) ^ set(now.segments)
    return f"the input file {min(segment.path for segment in differing)}" if differing else "the order of the input files"


def _resume_or_begin(
    driver: Driver[Worker, Event, Command],
    executor: CommandExecutor,
    before: Worker | None,
    *,
    resume: bool,
    begins_again: bool,
) -> None:
    """Begin anew, after a completed attempt, or in the middle of an attempt that was killed."""
    if before is None or not resume:
        # The output stays: until this process has registered, the report of an earlier attempt is valid.
        executor.forget_files()
    if before is None:
        driver.save_first()
        driver.tell(Started())
    elif before.state is W.COMPLETED and not begins_again and executor.output_is_whole():
        driver.tell(Started())
    elif before.state is W.COMPLETED:
        # Completed is a final state. A worker that lost its output, or whose master lost its journal, begins a new attempt with
        # the old assignment, boundaries and history.
        driver.value = Worker(before.identity, before.job, terms=before.terms, cut=before.cut, history=before.history)
        driver.save_first()
        driver.tell(Started())
    else:
        if before.state is not W.FAILED:
            driver.record(WorkerFailed("killed"))
        driver.tell(Restarted("started again"))


def _broke(error: Exception, forgotten: threading.Event) -> Event | None:
    match error:
        case SortRefused(code=code) if code == UNKNOWN_WORKER:
            forgotten.set()
            return WorkerFailed(f"the master has lost its journal: {error.message}")
        case StopRequested():
            return None
        case StaleAttempt():
            return WorkerFailed(error.message)
        case SortFailed() | SortRefused():
            return WorkerFailed(error.message, fatal=True)
        case SortError():
            return WorkerFailed(error.message)
        case _:
            import traceback

            traceback.print_exception(error)
            return WorkerFailed(f"unexpected error: {type(error).__name__}: {error}")


def _end_on_signals(driver: Driver[Worker, Event, Command]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return

    def end(number: int, frame: object) -> None:
        driver.tell(WorkerFailed(f"ended by {signal.Signals(number).name}"))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
