"""Run a master from its state directory to its report.

It locks the directory, continues the job in it or begins one, answers the workers, and carries out the commands of its machine.
What must survive a restart is in the journal. Contact times and missing parts come again with the next heartbeats.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace

from torpor.sort.data.directory_lock import DirectoryLock
from torpor.sort.debug_breakpoints import BreakpointStop
from torpor.sort.driver import Driver
from torpor.sort.errors import JournalCorrupt, SortError, SortRefused
from torpor.sort.job.options import MasterOptions
from torpor.sort.job.report import JobReport
from torpor.sort.journal import Journal
from torpor.sort.machine.master import Command, Event, JobFailed, Master, step
from torpor.sort.master.master_service import MasterService
from torpor.sort.wire.credentials import JOIN, JoinCredentials, is_loopback, load_join, make_join, save_join, split_address
from torpor.sort.wire.server import RpcServer, serve

JOURNAL = "journal"
THREADS = 16


def serve_job(options: MasterOptions, *, started: Callable[[MasterService], None] = lambda service: None) -> JobReport:
    """Serve until the job has ended. `started` is called when workers can register."""
    if options.workers < 1:
        raise SortRefused("bad_workers", f"--workers {options.workers} is too small; at least 1 worker is needed")
    with DirectoryLock(options.state, "state", "master.pid", options.deadlines.lock, mode=0o700):
        journal = Journal(options.state / JOURNAL)
        journal.reserve()
        saved = _saved(journal, options)
        if saved is not None:
            _refuse_other(options, saved)
        join, serving, service = _open(options, journal, saved)
        try:
            options.say(f"master of job {join.job} at {join.address}, workers join with --join {options.state / JOIN}")
            started(service)
            return service.carry_out(resumed=saved is not None)
        finally:
            service.close()
            serving.stop(0.5)


def _open(options: MasterOptions, journal: Journal, saved: Master | None) -> tuple[JoinCredentials, RpcServer, MasterService]:
    join_path = options.state / JOIN
    before = load_join(join_path) if join_path.exists() else None
    if options.join is not None:
        # The command line says where it listens. The address that is visible from outside is known only to others.
        join, listen = load_join(options.join), options.listen
    elif before is not None:
        # The workers of `run` start with the master, so any port is right for them. Other workers know the earlier address.
        join, listen = before, before.address if options.job is None else options.listen
    else:
        host, _ = split_address(options.listen)
        tls = not is_loopback(host) if options.tls is None else options.tls
        join, listen = make_join(options.job or secrets.token_hex(8), options.listen, tls), options.listen
    if saved is not None and saved.job != join.job:
        raise SortRefused(
            "other_job",
            f"the job in {options.state} is {saved.job}, but the join file is of job {join.job};"
            " use the join file of that job, or another --state",
        )
    job = join.job
    form = "" if options.format is None else str(options.format)
    master = saved or Master(job, options.workers, form, options.proof, options.sync)
    driver: Driver[Master, Event, Command] = Driver(
        master,
        step=step,
        # Samples are large, and the master asks for them again.
        save=lambda value: journal.save(replace(value, samples={})),
        broke=lambda error: JobFailed(error.message if isinstance(error, SortError) else f"{type(error).__name__}: {error}"),
        log=lambda line: None,
        holding=BreakpointStop(options.hold),
    )
    service = MasterService(options, join, driver)
    serving = serve(service.handlers(), listen, join, THREADS, data=False)
    join = service.join = replace(join, address=serving.address)
    if join != before:
        save_join(join, join_path)
    return join, serving, service


def _saved(journal: Journal, options: MasterOptions) -> Master | None:
    """A corrupt journal counts as lost: the same job begins again, and its workers register again and keep their files."""
    try:
        return journal.load(Master)
    except JournalCorrupt as error:
        options.say(f"{error.message}; the job begins again, and its workers keep their files")
        return None


def _refuse_other(options: MasterOptions, saved: Master) -> None:
    # Without `--format` the inputs decide the format, and may have decided it already.
    asked = (options.workers, saved.format if options.format is None else str(options.format))
    if asked != (saved.expected, saved.format):
        raise SortRefused(
            "other_job",
            f"the job in {options.state} has {saved.expected} workers and format {saved.format}, not {asked[0]} and {asked[1]}",
        )
