"""Arguments and options that the commands of the sort share.

A time limit that is not given is None: the defaults have one place, `torpor.sort.job.options`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import usage
from torpor.cli.output.console import say

if TYPE_CHECKING:
    from torpor.sort.job.options import Deadlines
    from torpor.sort.record import Format

Master = Annotated[str, typer.Argument(metavar="MASTER", help="The HOST:PORT that the master printed.", show_default=False)]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="DIR", help="The directory for the sorted files; empty or new.", show_default=False),
]
JoinFile = Annotated[
    Path | None,
    typer.Option("--join", metavar="FILE", help="The master's join.json, if MASTER is a HOST:PORT.", show_default=False),
]
Scratch = Annotated[
    Path | None,
    typer.Option("--scratch", metavar="DIR", help="The directory for temporary files (default: in the output directory)."),
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="The maximum memory, with K, M, G or T.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="The number of threads (default: one per core, at most eight).")
]

FORMATS = "gensort, fixed:LENGTH:KEY_OFFSET:KEY_LENGTH or lines (of at most 16 MiB)"
FormatText = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"{FORMATS}; default: lines if the input is UTF-8 text, else gensort.",
        show_default=False,
    ),
]
Key = Annotated[
    int | None,
    typer.Option("--key", metavar="FIELD", help="lines: the field to sort by, counted from 1 (default: the whole line)."),
]
Delimiter = Annotated[str | None, typer.Option("--delimiter", metavar="CHARACTER", help="lines: the character between fields.")]

NoSync = Annotated[
    bool, typer.Option("--no-sync", help="Do not flush files to disk: faster, but a power failure may lose them.")
]
NoProof = Annotated[bool, typer.Option("--no-proof", help="Compute no checksums: faster, but the result is `unproven`.")]
NoResume = Annotated[bool, typer.Option("--no-resume", help="After a restart, start from the beginning.")]
Tls = Annotated[
    bool | None, typer.Option("--tls/--no-tls", help="Encrypt the connections between processes (default: except on loopback).")
]

Registration = Annotated[
    float | None,
    typer.Option("--registration-timeout", metavar="SECONDS", min=0, help="How long to wait for all workers (default: 300)."),
]
Heartbeat = Annotated[
    float | None, typer.Option("--heartbeat", metavar="SECONDS", help="The time between heartbeats of a worker (default: 1).")
]
HeartbeatLost = Annotated[
    float | None,
    typer.Option(
        "--heartbeat-lost", metavar="SECONDS", help="A worker without a heartbeat for this time is lost (default: 15)."
    ),
]
WorkerGrace = Annotated[
    float | None,
    typer.Option("--worker-grace", metavar="SECONDS", min=0, help="How long to wait for a lost worker (default: 600)."),
]
MasterGrace = Annotated[
    float | None,
    typer.Option("--master-grace", metavar="SECONDS", min=0, help="How long to wait for a lost master (default: 600)."),
]

LockWait = Annotated[
    float | None,
    typer.Option(
        "--lock-wait",
        metavar="SECONDS",
        min=0,
        help="How long to wait for a directory that another process uses (default: 30).",
    ),
]

ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write a page with a chart of all phases over time.")
]
History = Annotated[
    bool, typer.Option("--history", help="At the end, also print all state changes, and the figures of each worker.")
]
HoldText = Annotated[
    str | None,
    typer.Option(
        "--hold",
        metavar="STATE[:MOMENT]",
        help="For tests: stop there (SIGSTOP). Moments: before-save, after-save, after-send, midway.",
    ),
]


def format_from_options(text: str | None, key: int | None, delimiter: str | None) -> "Format | None":
    """The format that the options set; None without options. A key field implies lines."""
    from torpor.sort.record import parse

    if text is None and key is None and delimiter is None:
        return None
    return parse("lines" if text is None else text, key=key, delimiter=delimiter)


def detected_format(paths: Sequence[Path]) -> "Format":
    """The format of the input, detected from its content; a message names it."""
    from torpor.sort.data.format_detection import detect, format_message

    found = detect(paths)
    say(format_message(found))
    return found


def deadlines(
    *,
    registration: float | None = None,
    heartbeat: float | None = None,
    heartbeat_lost: float | None = None,
    worker_grace: float | None = None,
    master_grace: float | None = None,
    lock: float | None = None,
) -> "Deadlines":
    from torpor.sort.job.options import Deadlines

    given = {
        "registration": registration,
        "heartbeat": heartbeat,
        "heartbeat_lost": heartbeat_lost,
        "worker_grace": worker_grace,
        "master_grace": master_grace,
        "lock": lock,
    }
    chosen = Deadlines(**{name: value for name, value in given.items() if value is not None})
    if not 0 < chosen.heartbeat < chosen.heartbeat_lost:
        raise usage(
            f"--heartbeat {chosen.heartbeat:g} does not fit --heartbeat-lost {chosen.heartbeat_lost:g}",
            "--heartbeat must be more than 0 and less than --heartbeat-lost",
        )
    return chosen


def address(text: str, what: str) -> str:
    """The text if it is HOST:PORT; CommandError otherwise."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise usage(f"{what} {text!r} is not HOST:PORT", "such as 127.0.0.1:7000, [::1]:7000 or sorter.example:7000")
    return text


def report_file(path: Path | None) -> Path | None:
    """Check that the report can be written before the sort starts, not after an hour."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise usage(f"--report {path} cannot be written", "use a file in an existing directory")
    return path
