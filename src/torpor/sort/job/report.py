"""Describe the result of a sort: outcome, speed, and the share of each worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torpor.sort.machine.history import Transition, lines
from torpor.sort.machine.states import MASTER_TERMINAL, WORKING
from torpor.sort.proof import Proof


class SortOutcome(StrEnum):
    VALID = "valid"
    """Every record that was read was written, and all records are in order."""
    UNPROVEN = "unproven"
    """The sort ended without checks, because of `--no-proof`."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    index: int
    identity: str
    attempts: int = 1
    read: Proof = field(default_factory=Proof)
    written: Proof = field(default_factory=Proof)
    durations: Mapping[str, float] = field(default_factory=dict)
    """Seconds in each state, over all attempts."""
    retries: int = 0
    resent: int = 0
    """Parts sent again, because their receiver had lost them."""
    history: tuple[Transition, ...] = ()


@dataclass(frozen=True, slots=True)
class JobReport:
    job: str
    outcome: SortOutcome
    format: str
    partitions: int
    seconds: float
    """From the master's start to its end."""
    reason: str = ""
    """Why it failed."""
    proof: Proof = field(default_factory=Proof)
    """Of everything that was written. The checksum is valid only if the outcome is valid."""
    durations: Mapping[str, float] = field(default_factory=dict)
    """Seconds in each of the master's states."""
    history: tuple[Transition, ...] = ()
    """The master's history."""
    workers: tuple[WorkerReport, ...] = ()
    not_started: int = 0
    """Workers that `run` was allowed to start and did not, because the input is too small for them."""

    @property
    def working_seconds(self) -> float:
        """Counted from when all workers were registered, because the time to start them does not depend on the sort."""
        return self.history[-1].at - self.history[0].at if len(self.history) > 1 else self.seconds

    @property
    def waited_seconds(self) -> float:
        """How long the master waited for workers."""
        return max(0.0, self.seconds - self.working_seconds)

    @property
    def megabytes_per_second(self) -> float:
        return self.proof.size / 1e6 / self.working_seconds if self.working_seconds > 0 else 0.0

    @property
    def skew(self) -> float:
        """The largest share."""
        return max((self.share(worker) for worker in self.workers), default=0.0)

    def share(self, worker: WorkerReport) -> float:
        """What a worker wrote, relative to an equal share. In bytes, because lines differ in length."""
        written = sum(one.written.size for one in self.workers)
        return worker.written.size * len(self.workers) / written if written else 0.0


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_summary(report: JobReport) -> str:
    """Three lines for a sort that succeeded."""
    not_started = f", {_not_started(report)}" if report.not_started else ""
    skew = f", skew {report.skew:.2f}" if report.proof.records else ""
    return (
        f"job {report.job}, format {report.format}, checksum {checksum_text(report)}\n"
        f"sorted by {_sorted_by(report)}{skew}{not_started}\n"
        f"{verdict(report)}\n"
    )


def as_text(report: JobReport) -> str:
    """The verdict comes last, because the end of the output stays visible."""
    blocks = [
        *(_history(name, history) for name, history in histories(report) if history),
        _table(report) if report.workers else [],
        [f"{name:<10}{value}" for name, value in facts(report)],
        [verdict(report)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict(report: JobReport) -> str:
    match report.outcome:
        case SortOutcome.FAILED:
            return f"failed after {seconds_text(report.seconds)}: {report.reason or 'no reason was given'}"
        case SortOutcome.VALID | SortOutcome.UNPROVEN:
            amount = f"{count_text(report.proof.records, 'record')}, {size_text(report.proof.size)}"
            speed = f"{seconds_text(report.working_seconds)} ({report.megabytes_per_second:,.0f} MB/s)"
            waited = f", after waiting {seconds_text(report.waited_seconds)} for workers" if report.waited_seconds else ""
            return f"{report.outcome.value}: {amount} in {speed}{waited}"


def facts(report: JobReport) -> list[tuple[str, str]]:
    told = [("job", report.job), ("format", report.format or "unknown")]
    told.append(("sorted by", _sorted_by(report)))
    if report.not_started:
        told.append(("allowed", _not_started(report)))
    if report.proof.records:
        told.append(("skew", f"{report.skew:.2f} (the largest share; 1 is an equal share)"))
    told.append(("checksum", checksum_text(report)))
    phases = [f"{state} {seconds_text(spent)}" for state, spent in report.durations.items() if state not in MASTER_TERMINAL]
    if phases:
        told.append(("master", ", ".join(phases)))
    return told


def _sorted_by(report: JobReport) -> str:
    return f"{count_text(len(report.workers), 'worker')}, in {count_text(report.partitions, 'partition')}"


def _not_started(report: JobReport) -> str:
    return f"{count_text(report.not_started, 'worker')} more, not started: the input is too small (--min-share)"


def histories(report: JobReport) -> list[tuple[str, tuple[Transition, ...]]]:
    return [("master", report.history), *((f"worker {worker.index}", worker.history) for worker in report.workers)]


HEADINGS = (
    "worker",
    "attempts",
    "read",
    "written",
    "share",
    *(state.value for state in WORKING),
    "retries",
    "resent",
    "identity",
)


def cells(report: JobReport, worker: WorkerReport) -> tuple[str, ...]:
    """One worker in the order of the headings."""
    return (
        str(worker.index),
        str(worker.attempts),
        f"{worker.read.records:,}",
        f"{worker.written.records:,}",
        f"{report.share(worker):.2f}",
        *(seconds_text(worker.durations[state]) if state in worker.durations else "-" for state in WORKING),
        str(worker.retries),
        str(worker.resent),
        worker.identity,
    )


def _table(report: JobReport) -> list[str]:
    rows = [HEADINGS, *(cells(report, worker) for worker in report.workers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Numbers are aligned to the right. The identity is last, because it can have any length.
    return ["  ".join([*(cell.rjust(width) for cell, width in zip(row, widths[:-1], strict=False)), row[-1]]) for row in rows]


def _history(name: str, history: Sequence[Transition]) -> list[str]:
    return [f"history of {name}", *(f"  {line}" for line in lines(history))]


def checksum_text(report: JobReport) -> str:
    return checksum(report) or "not taken"


def checksum(report: JobReport) -> str | None:
    """Only if the outcome is valid: the sum of a part of the records could be mistaken for the sum of all."""
    return f"{report.proof.checksum:#018x}" if report.outcome is SortOutcome.VALID else None


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def seconds_text(seconds: float) -> str:
    """`0.012 s`, `1.63 s`, `75.2 s`, `1,234 s`: three or four digits, because a measurement is not more exact."""
    places = 3 if seconds < 1 else 2 if seconds < 10 else 1 if seconds < 1000 else 0
    return f"{seconds:,.{places}f} s"


def size_text(size: int) -> str:
    """In powers of ten, like the speed."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size} B"


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_plain(report: JobReport) -> dict[str, Any]:
    """The report for JSON; the names are a promise. Checksums are text, because some JSON readers lose bits of 64-bit
    numbers."""
    return {
        "job": report.job,
        "outcome": report.outcome.value,
        "reason": report.reason,
        "format": report.format,
        "records": report.proof.records,
        "size_bytes": report.proof.size,
        "checksum": checksum(report),
        "partitions": report.partitions,
        "workers_not_started": report.not_started,
        "seconds": report.seconds,
        "working_s": report.working_seconds,
        "waited_s": report.waited_seconds,
        "megabytes_per_second": report.megabytes_per_second,
        "skew": report.skew,
        "durations_s": dict(report.durations),
        "history": plain_history(report.history),
        "workers": [
            {
                "index": worker.index,
                "identity": worker.identity,
                "attempts": worker.attempts,
                "records_in": worker.read.records,
                "size_in_bytes": worker.read.size,
                "records_out": worker.written.records,
                "size_out_bytes": worker.written.size,
                "share": report.share(worker),
                "durations_s": dict(worker.durations),
                "retries": worker.retries,
                "resent_parts": worker.resent,
                "history": plain_history(worker.history),
            }
            for worker in report.workers
        ],
    }


def plain_history(history: Sequence[Transition]) -> list[dict[str, Any]]:
    return [
        {"from": one.source, "to": one.target, "at": one.at, "reason": one.reason, "attempt": one.attempt} for one in history
    ]
