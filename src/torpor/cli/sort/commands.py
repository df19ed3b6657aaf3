"""sort run, master, worker, status, abort, join, generate, validate: sort large files on several workers."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.options import Json
from torpor.cli.output.console import say, show, show_bytes, show_json, show_line, show_text
from torpor.cli.sort.exit_codes import translate_sort_errors
from torpor.cli.sort.options import (
    Delimiter,
    FormatText,
    Heartbeat,
    HeartbeatLost,
    History,
    HoldText,
    JoinFile,
    Key,
    LockWait,
    Master,
    MasterGrace,
    Memory,
    NoProof,
    NoResume,
    NoSync,
    Output,
    Registration,
    ReportFile,
    Scratch,
    Threads,
    Tls,
    WorkerGrace,
    address,
    deadlines,
    detected_format,
    format_from_options,
    report_file,
)
from torpor.fast_imports import fast_imports

if TYPE_CHECKING:
    from torpor.sort.job.report import JobReport

MEMORY = "2G"

app = typer.Typer(
    name="sort",
    help="Sort data that is larger than memory, on one or more workers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _sort(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_bytes(f"{context.get_help()}\n".encode())


@app.command()
def run(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT", help="Files or directories of files.", show_default=False)],
    output: Output,
    workers: Annotated[int, typer.Option("--workers", min=1, help="The maximum number of worker processes.")] = 1,
    min_share: Annotated[
        str | None,
        typer.Option("--min-share", metavar="SIZE", help="The minimum input per worker; 0 starts all workers (default: 16M)."),
    ] = None,
    memory: Memory = MEMORY,
    format_: FormatText = None,
    key: Key = None,
    delimiter: Delimiter = None,
    scratch: Scratch = None,
    threads: Threads = None,
    no_sync: NoSync = False,
    no_proof: NoProof = False,
    no_resume: NoResume = False,
    tls: Annotated[bool, typer.Option("--tls/--no-tls", help="Encrypt the connections between processes.")] = False,
    registration: Registration = None,
    heartbeat: Heartbeat = None,
    heartbeat_lost: HeartbeatLost = None,
    worker_grace: WorkerGrace = None,
    master_grace: MasterGrace = None,
    lock_wait: LockWait = None,
    report: ReportFile = None,
    history: History = False,
    as_json: Json = False,
) -> None:
    """Sort on this machine."""
    page_file = report_file(report)
    # Before other imports: the process from which workers are forked imports the same modules in parallel.
    from torpor.sort.worker.fork_server import ForkServer

    with translate_sort_errors(interrupted="run the same command again to continue"), ForkServer() as fork_server:
        from torpor.cli.sort.progress import progress_view
        from torpor.sort.job.options import LocalOptions
        from torpor.sort.record import GENSORT
        from torpor.sort.sizes import MIN_SHARE, parse_size

        form = format_from_options(format_, key, delimiter)
        options = LocalOptions(
            inputs=tuple(inputs),
            output=output,
            workers=workers,
            min_share=MIN_SHARE if min_share is None else parse_size(min_share, "--min-share"),
            memory=parse_size(memory),
            format=form or GENSORT,
            scratch=scratch,
            threads=threads,
            proof=not no_proof,
            sync=not no_sync,
            resume=not no_resume,
            tls=tls,
            deadlines=deadlines(
                registration=registration,
                heartbeat=heartbeat,
                heartbeat_lost=heartbeat_lost,
                worker_grace=worker_grace,
                master_grace=master_grace,
                lock=lock_wait,
            ),
        )
        with fast_imports():
            from torpor.sort.job.local import run as run_here

        if form is None:
            options = replace(options, format=detected_format(inputs))
        with progress_view() as follow:
            done = run_here(replace(options, follow=follow), fork_server)
    show_report(done, page_file, history=history, as_json=as_json)


@app.command()
def master(
    workers: Annotated[int, typer.Option("--workers", min=1, help="The number of workers.", show_default=False)],
    state: Annotated[
        Path,
        typer.Option(
            "--state", metavar="DIR", help="The directory of its journal, and of join.json for the workers.", show_default=False
        ),
    ],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="The address to listen on; port 0 chooses a free one.")
    ] = "127.0.0.1:0",
    join: Annotated[
        Path | None,
        typer.Option("--join", metavar="FILE", help="A file from `torpor sort join` (default: created in --state)."),
    ] = None,
    format_: FormatText = None,
    key: Key = None,
    delimiter: Delimiter = None,
    no_sync: NoSync = False,
    no_proof: NoProof = False,
    tls: Tls = None,
    registration: Registration = None,
    heartbeat: Heartbeat = None,
    heartbeat_lost: HeartbeatLost = None,
    worker_grace: WorkerGrace = None,
    lock_wait: LockWait = None,
    hold: HoldText = None,
    report: ReportFile = None,
    history: History = False,
    as_json: Json = False,
) -> None:
    """Coordinate a sort on several machines.

    Prints its address, then the workers in the order of their ranges.
    """
    page_file = report_file(report)
    # As the first process of a container, it would ignore this signal otherwise.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with translate_sort_errors(interrupted="run the same command again to continue; its workers wait for it"):
        from torpor.cli.sort.progress import progress_view, status_poller
        from torpor.sort.debug_breakpoints import parse_breakpoint
        from torpor.sort.job.options import MasterOptions
        from torpor.sort.machine.states import MasterState

        options = MasterOptions(
            workers=workers,
            state=state,
            listen=address(listen, "--listen"),
            join=join,
            format=format_from_options(format_, key, delimiter),
            proof=not no_proof,
            sync=not no_sync,
            tls=tls,
            deadlines=deadlines(
                registration=registration,
                heartbeat=heartbeat,
                heartbeat_lost=heartbeat_lost,
                worker_grace=worker_grace,
                lock=lock_wait,
            ),
            hold=None if hold is None else parse_breakpoint(hold, frozenset(MasterState)),
        )
        from torpor.sort.master.program import serve_job

        # With --json, standard output has only the report.
        with progress_view(say if as_json else show_line) as follow, status_poller(follow) as begin:
            done = serve_job(replace(options, say=follow.tell), started=lambda service: begin(service.status))
    show_report(done, page_file, history=history, as_json=as_json)


@app.command()
def worker(
    master: Master,
    join: Annotated[Path, typer.Option("--join", metavar="FILE", help="The master's join.json.", show_default=False)],
    output: Output,
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", metavar="DIR", help="An input directory; can be repeated.", show_default=False),
    ] = None,
    scratch: Scratch = None,
    memory: Memory = MEMORY,
    index: Annotated[
        int | None,
        typer.Option(
            "--index", metavar="K", min=0, help="The number of this worker (default: by name, once all have registered)."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="The address to listen on (default: the one that reaches the master)."
        ),
    ] = None,
    threads: Threads = None,
    no_resume: NoResume = False,
    heartbeat: Heartbeat = None,
    heartbeat_lost: HeartbeatLost = None,
    master_grace: MasterGrace = None,
    lock_wait: LockWait = None,
    hold: HoldText = None,
    history: History = False,
) -> None:
    """Sort one part: a worker with its own input, scratch and output."""
    if not inputs:
        raise usage("no input was given", "use --input DIR")
    with translate_sort_errors(interrupted="run the same command again to continue"):
        from torpor.sort.debug_breakpoints import parse_breakpoint
        from torpor.sort.job.options import WorkerOptions
        from torpor.sort.machine.states import WorkerState
        from torpor.sort.sizes import parse_size

        options = WorkerOptions(
            master=address(master, "MASTER"),
            join=join,
            inputs=tuple(inputs),
            output=output,
            scratch=scratch,
            memory=parse_size(memory),
            index=index,
            listen=None if listen is None else address(listen, "--listen"),
            threads=threads,
            resume=not no_resume,
            deadlines=deadlines(heartbeat=heartbeat, heartbeat_lost=heartbeat_lost, master_grace=master_grace, lock=lock_wait),
            hold=None if hold is None else parse_breakpoint(hold, frozenset(WorkerState)),
            history=history,
        )
        from torpor.sort.worker.program import release_output, run_worker

        left = run_worker(options)
        if left.ending:
            raise CommandError(ExitCode(left.ending), f"the worker failed: {left.reason}", code="worker_failed")
        release_output(options)
    # Exit at once: if a worker is killed after it released its output, the next one cannot know how it ended.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.OK)


@app.command()
def status(
    master: Annotated[
        str,
        typer.Argument(
            metavar="MASTER",
            help="The HOST:PORT of the master or of a worker, the master's --state directory or join.json,"
            " or the output directory of a `run`.",
            show_default=False,
        ),
    ],
    join: JoinFile = None,
    as_json: Json = False,
) -> None:
    """Show the status of a sort, or of one worker."""
    with translate_sort_errors():
        from torpor.cli.sort import render
        from torpor.sort.job.client import ask_status
        from torpor.sort.job.status import JobStatus

        found = ask_status(master, join)
        if isinstance(found, JobStatus):
            show_json(render.plain(found)) if as_json else show(render.status_view(found))
        else:
            show_json(render.plain_worker(found)) if as_json else show(render.worker_status_view(found))


@app.command()
def abort(
    master: Annotated[
        str,
        typer.Argument(
            metavar="MASTER",
            help="The master's --state directory or join.json, its HOST:PORT with --join, or the output directory of a `run`.",
            show_default=False,
        ),
    ],
    join: JoinFile = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason that master and workers report.")
    ] = "aborted by the user",
    as_json: Json = False,
) -> None:
    """End a sort for its master and all its workers.

    Workers remove their scratch and output; inputs stay. An aborted job cannot be continued.
    """
    with translate_sort_errors():
        from torpor.sort.job.client import abort_job

        job = abort_job(master, join, reason)
    show_json({"job": job, "aborted": True}) if as_json else show_line(
        f"job {job} is aborted; its workers remove their scratch and output"
    )


@app.command()
def join(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.", show_default=False)],
    tls: Annotated[bool, typer.Option("--tls/--no-tls", help="Encrypt the connections between processes.")] = True,
) -> None:
    """Create the secret of a job, for deployments that hand it to all processes.

    Every process that can read the file can take part in the job.
    """
    with translate_sort_errors():
        from torpor.sort.wire.credentials import make_secret

        job = make_secret(file, tls=tls)
    say(f"{file}: the token{' and the certificate' if tls else ''} of job {job}; only its owner may read it")


@app.command()
def generate(
    records: Annotated[int, typer.Argument(metavar="RECORDS", min=0, help="The number of records.", show_default=False)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.", show_default=False)],
    as_ascii: Annotated[bool, typer.Option("--ascii", help="Printable records, one per line.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Start at record N.")] = 0,
    skew: Annotated[bool, typer.Option("--skew", help="Half of the keys are equal, the others Zipf-distributed.")] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Generate records as the public benchmark does (gensort)."""
    with translate_sort_errors():
        from torpor.cli.sort.progress import progress_counter
        from torpor.sort.data.generate import generate as make
        from torpor.sort.record import GENSORT

        with progress_counter("generating", records * GENSORT.length) as progress:
            made = make(records, file, ascii=as_ascii, first=seed, skew=skew, threads=threads, progress=progress)
    plain = {"file": str(file), "records": made.records, "size_bytes": made.size}
    show_json(plain) if as_json else show_line(f"{file}: {made.records:,} records, {made.size:,} bytes")


@app.command()
def validate(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Files or output directories, in order.", show_default=False)
    ],
    format_: FormatText = None,
    key: Key = None,
    delimiter: Delimiter = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check the order of records, and count them. Exit code 1 if they are not in order.

    Counts and checksums are those of the public benchmark's validator (valsort).
    """
    with translate_sort_errors():
        from torpor.cli.sort.progress import progress_counter
        from torpor.sort.data.validate import summary
        from torpor.sort.data.validate import validate as check

        form = format_from_options(format_, key, delimiter) or detected_format(paths)
        total = sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else None
        with progress_counter("validating", total) as progress:
            found = check(paths, form, threads=threads, progress=progress)
    plain = {
        "in_order": found.in_order,
        "records": found.records,
        "size_bytes": found.size,
        "checksum": f"{found.checksum:x}",
        "duplicate_keys": found.duplicate_keys,
        "unordered": found.unordered,
        "first_unordered": found.first_unordered,
        "first_key": None if found.first_key is None else found.first_key.hex(),
        "last_key": None if found.last_key is None else found.last_key.hex(),
    }
    show_json(plain) if as_json else show_text(f"{summary(found).rstrip()}\n")
    raise typer.Exit(ExitCode.OK if found.in_order else ExitCode.REFUSED)


def show_report(report: "JobReport", page_file: Path | None, *, history: bool, as_json: bool) -> None:
    from torpor.sort.job.report import SortOutcome, as_plain, as_summary, as_text

    written = _write_page(report, page_file)
    if not as_json:
        # After a failure the history is always shown: it shows where the sort failed, and is not stored.
        is_long = history or report.outcome is SortOutcome.FAILED
        show_text(as_text(report) if is_long else as_summary(report))
    if report.outcome is SortOutcome.FAILED:
        raise CommandError(
            ExitCode.ENDED_IN_ERROR,
            f"the sort failed: {report.reason}",
            code="sort_failed",
            advice="the history shows where",
            context={"report": as_plain(report)},
        )
    if as_json:
        show_json(as_plain(report))
    if not written:
        raise typer.Exit(ExitCode.REFUSED)


def _write_page(report: "JobReport", page_file: Path | None) -> bool:
    """Whether the page was written. If not, the sort still succeeds, with another exit code."""
    if page_file is None:
        return True
    from torpor.sort.job.report_page import page

    try:
        page_file.write_text(page(report), encoding="utf-8")
    except OSError as error:
        say(f"torpor: the report cannot be written: {page_file}: {error.strerror}")
        return False
    return True
