"""Run a whole sort on this machine with one command.

The master runs in this process and each worker in its own; they communicate as on different machines. A worker that dies is
started again, and so is the fork server that starts them. The state is beside the output until the job has ended: the same
command continues after a kill.
"""

import secrets
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torpor.sort.data.directory_lock import DirectoryLock
from torpor.sort.data.files import remove
from torpor.sort.data.inputs import cut, find
from torpor.sort.data.segments import Inputs
from torpor.sort.data.worker_directory import OUTPUT_PID, SCRATCH_PID, STATE, WorkerDirectory
from torpor.sort.errors import JournalCorrupt, SortError, SortRefused
from torpor.sort.job.options import LocalOptions, MasterOptions
from torpor.sort.job.report import JobReport, SortOutcome, count_text
from torpor.sort.job.worker_pool import WorkerPool
from torpor.sort.journal import Journal
from torpor.sort.machine.master import Master
from torpor.sort.machine.states import MasterState
from torpor.sort.master.master_service import MasterService
from torpor.sort.master.program import JOURNAL, serve_job
from torpor.sort.sizes import MIB, SMALLEST_MEMORY, worker_count
from torpor.sort.wire.credentials import JOIN, load_join
from torpor.sort.worker.fork_server import ForkServer

T = TypeVar("T")

FOLLOW_S = 0.1


@dataclass(frozen=True, slots=True)
class LocalJobPlan:
    """The arguments of an unfinished job: only the same command may continue it."""

    output: Path
    slices: tuple[Inputs, ...]
    format: str
    memory: int


def run(allowed: LocalOptions, fork_server: ForkServer) -> JobReport:
    # A folder of its own, because other files in the user's scratch directory belong to the user.
    state = ((allowed.scratch or allowed.output) / STATE).absolute()
    place = WorkerDirectory(state, allowed.output, share_output=False)
    place.refuse_overlap(allowed.inputs)
    found = find(allowed.inputs, allowed.format)
    options = replace(allowed, workers=worker_count(found.size, allowed.workers, allowed.min_share))
    _refuse_impossible(options)
    slices = cut(found, options.format, options.workers)
    plan = LocalJobPlan(place.output, slices, str(options.format), options.memory)
    with (
        DirectoryLock(place.output, "output", OUTPUT_PID, options.deadlines.lock, mode=0o777),
        DirectoryLock(state, "scratch", SCRATCH_PID, options.deadlines.lock, mode=0o700),
    ):
        job = _resume_or_begin(options, place, state, plan)
        pool = WorkerPool(fork_server, options, slices, place.output, state, state / "master" / JOIN)
        report = _sort(options, pool, state, job)
        if report.outcome is SortOutcome.FAILED:
            place.remove_output()
        place.release_output()
        _remove_state(state)
        state.rmdir()
        return replace(report, not_started=allowed.workers - options.workers)


def _refuse_impossible(options: LocalOptions) -> None:
    least = SMALLEST_MEMORY * options.workers
    if options.memory < least:
        workers = count_text(options.workers, "worker")
        raise SortRefused(
            "bad_memory", f"--memory {options.memory} is too little for {workers}; give at least --memory {least // MIB}M"
        )


def _resume_or_begin(options: LocalOptions, place: WorkerDirectory, state: Path, plan: LocalJobPlan) -> str:
    """The unfinished job of the same command, or a new one. The output directory is then claimed for it."""
    plans, journal = Journal(state / "plan"), Journal(state / "master" / JOURNAL)
    before, master = _load(plans, LocalJobPlan), _load(journal, Master)
    if before is not None and before.output != plan.output:
        raise SortRefused(
            "other_job", f"{state} holds an unfinished sort into {before.output}; finish it with its own command, or remove it"
        )
    is_unfinished = before is not None and master is not None and master.state is not MasterState.FAILED
    if is_unfinished and master is not None and options.resume and place.is_claimed(master.job, "run"):
        if before != plan:
            raise SortRefused(
                "other_job",
                f"{state} holds an unfinished sort of other inputs or settings; finish it with its own command, or remove it",
            )
        place.claim_output(master.job, "run")
        return master.job
    if before is not None or _claimed_by(state, place):
        place.remove_output()
        place.release_output()
    job = secrets.token_hex(8)
    try:
        place.claim_output(job, "run")
    except SortError:
        # In a directory of the user, leave no file of the sort and remove no file of the user.
        remove(state / SCRATCH_PID)
        with suppress(OSError):
            state.rmdir()
        raise
    _remove_state(state)
    plans.save(plan)
    return job


def _load(journal: Journal, declared: type[T]) -> T | None:
    """A corrupt journal counts as lost scratch: the sort begins again."""
    try:
        return journal.load(declared)
    except JournalCorrupt:
        return None


def _claimed_by(state: Path, place: WorkerDirectory) -> bool:
    """Whether the output directory belongs to the job in this state directory, although its plan is lost."""
    join = state / "master" / JOIN
    return join.exists() and place.is_claimed(load_join(join).job, "run")


def _sort(options: LocalOptions, pool: WorkerPool, state: Path, job: str) -> JobReport:
    master_options = MasterOptions(
        workers=options.workers,
        state=state / "master",
        format=options.format,
        proof=options.proof,
        sync=options.sync,
        tls=options.tls,
        deadlines=options.deadlines,
        say=lambda line: None,
        job=job,
    )

    def started(service: MasterService) -> None:
        pool.open(service.join.address, service.break_off)
        if options.follow is not None:
            threading.Thread(target=_follow, args=(options, service, pool), daemon=True).start()

    try:
        report = serve_job(master_options, started=started)
    except BaseException:
        # The same command continues from here; until then no worker may go on.
        pool.close(at_once=True)
        raise
    pool.close()
    return report


def _follow(options: LocalOptions, service: MasterService, pool: WorkerPool) -> None:
    assert options.follow is not None
    while not pool.is_over.wait(FOLLOW_S):
        options.follow(service.status())


def _remove_state(state: Path) -> None:
    """Remove everything but the directory itself, which is locked."""
    for path in sorted(state.iterdir()):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)
