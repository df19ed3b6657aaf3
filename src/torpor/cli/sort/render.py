"""Turn the status of a sort into tables, bars and JSON. Pure: the result is a value, which the caller prints."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torpor.cli.output.wording import NOTHING, duration, escaped, size
from torpor.cli.sort.progress import name_of, sorted_bytes, state_words
from torpor.sort.job.report import plain_history
from torpor.sort.job.status import JobStatus, WorkerStatus
from torpor.sort.wire.requests import OwnStatus

BAR_WIDTH = 30

STATE_STYLE: Mapping[str, str] = {
    "Sampling": "magenta",
    "Sorting": "blue",
    "Shuffling": "yellow",
    "Merging": "green",
    "Completed": "bold green",
    "Failed": "bold red",
}


def bars(status: JobStatus, speeds: Mapping[str, float]) -> RenderableType:
    """One bar for each worker; `speeds` in bytes per second, by identity."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for worker in status.workers:
        grid.add_row(
            _text(name_of(worker)),
            _state(worker),
            ProgressBar(total=100, completed=worker.progress, width=BAR_WIDTH, complete_style="cyan", finished_style="green"),
            Text(f"{worker.progress:3.0f} %"),
            _text(_amount(worker)),
            _text(_speed(speeds.get(worker.identity))),
        )
    return Group(_headline(status), grid)


def status_view(status: JobStatus) -> RenderableType:
    """The status of a job as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("WORKER", "STATE", "PROGRESS", "INPUT", "SEEN", "ADDRESS", "IDENTITY", "MESSAGE"):
        table.add_column(Text(name), justify="right" if name in ("PROGRESS", "INPUT", "SEEN") else "left", overflow="fold")
    for worker in status.workers:
        table.add_row(
            _text(NOTHING if worker.index is None else worker.index),
            _state(worker),
            Text(f"{worker.progress:.0f} %"),
            Text(size(worker.size)),
            Text(f"{duration(worker.seen_seconds_ago)} ago"),
            _text(worker.control),
            _text(worker.identity),
            _text(worker.message or NOTHING),
        )
    spent = ", ".join(f"{state} {duration(seconds)}" for state, seconds in status.durations.items())
    facts = {
        "job": status.job,
        "address": status.address,
        "format": status.format or "not known yet",
        "spent": spent,
        "verdict": status.verdict,
    }
    parts: list[RenderableType] = [_headline(status), Text(), _facts(facts)]
    if status.workers:
        parts += [Text(), table]
    return Group(*parts)


def worker_status_view(status: OwnStatus) -> RenderableType:
    """The status that one worker reports about itself."""
    line = Text(escaped(status.state), STATE_STYLE.get(status.state, "bold"))
    line.append(escaped(f": {status.message}") if status.message else "", "")
    facts = {
        "worker": NOTHING if status.index is None else str(status.index),
        "identity": status.identity,
        "job": status.job,
        "attempt": str(status.attempt),
        "progress": f"{status.progress:.0f} %",
        "spent": ", ".join(f"{state} {duration(seconds)}" for state, seconds in status.durations.items()),
        "sorted": f"{status.counters.get('records', 0):,} records, {size(status.counters.get('bytes', 0))}",
        "retries": str(status.counters.get("retries", 0)),
        "resent": f"{status.counters.get('resent_parts', 0)} parts",
    }
    return Group(line, Text(), _facts(facts))


def plain_worker(status: OwnStatus) -> dict[str, Any]:
    """The status as JSON; its names are stable."""
    return {
        "job": status.job,
        "index": status.index,
        "identity": status.identity,
        "attempt": status.attempt,
        "state": status.state,
        "phase": status.phase,
        "progress": status.progress,
        "message": status.message,
        "durations_s": dict(status.durations),
        "counters": dict(status.counters),
        "history": plain_history(status.history),
    }


def plain(status: JobStatus) -> dict[str, Any]:
    """The status as JSON; its names are stable."""
    return {
        "job": status.job,
        "state": status.state,
        "message": status.message,
        "reason": status.reason,
        "verdict": status.verdict or None,
        "address": status.address,
        "format": status.format,
        "expected_workers": status.expected,
        "durations_s": dict(status.durations),
        "history": plain_history(status.history),
        "workers": [
            {
                "index": worker.index,
                "identity": worker.identity,
                "attempt": worker.attempt,
                "control_address": worker.control,
                "data_address": worker.data,
                "state": worker.state,
                "phase": worker.phase,
                "progress": worker.progress,
                "message": worker.message,
                "seen_seconds_ago": worker.seen_seconds_ago,
                "size_in_bytes": worker.size,
            }
            for worker in status.workers
        ],
    }


def _facts(facts: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value:
            grid.add_row(Text(name, "dim"), _text(value))
    return grid


def _headline(status: JobStatus) -> Text:
    line = Text(escaped(status.state), STATE_STYLE.get(status.state, "bold"))
    why = status.reason or status.message
    line.append(escaped(f": {why}") if why else "", "")
    if len(status.workers) < status.expected:
        line.append(f" ({len(status.workers)} of {status.expected} workers have registered)", "dim")
    return line


def _state(worker: WorkerStatus) -> Text:
    return _text(state_words(worker), STATE_STYLE.get(worker.state, "dim"))


def _amount(worker: WorkerStatus) -> str:
    done = sorted_bytes(worker)
    return size(worker.size) if done is None else f"{size(int(done))} of {size(worker.size)}"


def _speed(bytes_per_second: float | None) -> str:
    return "" if bytes_per_second is None else f"{bytes_per_second / 1e6:,.0f} MB/s"


def _text(value: object, style: str = "") -> Text:
    return Text(escaped(value), style)
