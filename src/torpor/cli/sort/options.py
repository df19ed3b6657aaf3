"""Which arguments and options do the sort's commands share?

A deadline that is not said is None: the defaults stand in one place, with the sort's options.
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

Master = Annotated[str, typer.Argument(metavar="MASTER", help="The master's HOST:PORT, as it said.", show_default=False)]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Where the sorted files go; empty or new.", show_default=False)
]
JoinFile = Annotated[
    Path | None,
    typer.Option("--join", metavar="FILE", help="The master's join.json, if you name a HOST:PORT.", show_default=False),
]
Scratch = Annotated[
    Path | None,
    typer.Option("--scratch", metavar="DIR", help="Where runs and parts lie meanwhile (default: in the output directory)."),
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="How much to use at most, with K, M, G or T.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="How many at once (default: one for each core, at most eight).")
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
    int | None, typer.Option("--key", metavar="FIELD", help="lines: by which field, counted from 1 (default: the whole line).")
]
Delimiter = Annotated[str | None, typer.Option("--delimiter", metavar="CHARACTER", help="lines: what stands between fields.")]

NoSync = Annotated[
    bool, typer.Option("--no-sync", help="Do not flush files to the disk: faster, and a power cut may cost them.")
]
NoProof = Annotated[bool, typer.Option("--no-proof", help="Take no checksums: faster, and the answer is `unproven`.")]
NoResume = Annotated[bool, typer.Option("--no-resume", help="After a restart keep nothing of what was done before.")]
Tls = Annotated[
    bool | None, typer.Option("--tls/--no-tls", help="Encrypt what goes between processes (default: except on the loopback).")
]

Registration = Annotated[
    float | None,
    typer.Option("--registration-timeout", metavar="SECONDS", min=0, help="Until all workers are there (default: 300)."),
]
Heartbeat = Annotated[
    float | None, typer.Option("--heartbeat", metavar="SECONDS", help="How often a worker tells how it is (default: 1).")
]
HeartbeatLost = Annotated[
    float | None,
    typer.Option("--heartbeat-lost", metavar="SECONDS", help="Without one for so long it counts as vanished (default: 15)."),
]
WorkerGrace = Annotated[
    float | None,
    typer.Option("--worker-grace", metavar="SECONDS", min=0, help="How long a vanished worker is waited for (default: 600)."),
]
MasterGrace = Annotated[
    float | None,
    typer.Option("--master-grace", metavar="SECONDS", min=0, help="How long a vanished master is looked for (default: 600)."),
]

LockWait = Annotated[
    float | None,
    typer.Option(
        "--lock-wait",
        metavar="SECONDS",
        min=0,
        help="How long to wait for a directory that another process holds (default: 30).",
    ),
]

ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write a page with a picture of all phases over time.")
]
History = Annotated[
    bool, typer.Option("--history", help="At the end also show every change of state, and the figures of each worker.")
]
HoldText = Annotated[
    str | None,
    typer.Option(
        "--hold",
        metavar="STATE[:MOMENT]",
        help="Stop there (SIGSTOP), to show a failure: before-save, after-save, after-send or midway.",
    ),
]


def format_from_options(text: str | None, key: int | None, delimiter: str | None) -> "Format | None":
    """What the options say; None if they say nothing. A field needs lines."""
    from torpor.sort.record import parse

    if text is None and key is None and delimiter is None:
        return None
    return parse("lines" if text is None else text, key=key, delimiter=delimiter)


def detected_format(paths: Sequence[Path]) -> "Format":
    """By what the input looks like; one line says what was chosen."""
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

    said = {
        "registration": registration,
        "heartbeat": heartbeat,
        "heartbeat_lost": heartbeat_lost,
        "worker_grace": worker_grace,
        "master_grace": master_grace,
        "lock": lock,
    }
    chosen = Deadlines(**{name: value for name, value in said.items() if value is not None})
    if not 0 < chosen.heartbeat < chosen.heartbeat_lost:
        raise usage(
            f"with a heartbeat every {chosen.heartbeat:g} s none can be lost after {chosen.heartbeat_lost:g} s",
            "--heartbeat is more than 0 and less than --heartbeat-lost",
        )
    return chosen


def address(text: str, what: str) -> str:
    """HOST:PORT, or Ended."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise usage(f"{what} {text!r} is not HOST:PORT", "such as 127.0.0.1:7000, [::1]:7000 or sorter.example:7000")
    return text


def report_file(path: Path | None) -> Path | None:
    """Where a report can be written, or Ended: better now than after an hour of sorting."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise usage(f"--report {path} cannot be written", "name a file in a directory that is there")
    return path
