"""Sample sorts for the tests of the reports."""

from itertools import pairwise

from torpor.sort.job.report import JobReport, SortOutcome, WorkerReport
from torpor.sort.machine.history import Transition, durations
from torpor.sort.machine.states import MASTER_WAY, WORKER_WAY
from torpor.sort.proof import Proof

BEGAN = 1_700_000_000.0
SECONDS = 2.0


def way(*, attempt: int = 1, begins: float = 0.0, step: float = 0.25) -> tuple[Transition, ...]:
    """The transitions of a worker without failures."""
    return tuple(
        Transition(source, target, BEGAN + begins + step * number, f"{source} is done", attempt)
        for number, (source, target) in enumerate(pairwise(WORKER_WAY))
    )


def killed_once() -> tuple[Transition, ...]:
    first = way(step=0.125)[:3]
    return (
        *first,
        Transition("Sorting", "Failed", BEGAN + 0.5, "killed", 1),
        Transition("Failed", "Initializing", BEGAN + 0.5, "started again", 1),
        *way(attempt=2, begins=0.625, step=0.125),
    )


def worker(index: int, records: int, history: tuple[Transition, ...] = way()) -> WorkerReport:
    proof = Proof(records, records * 100, 7)
    attempts = history[-1].attempt if history else 1
    spent = durations(history, BEGAN + SECONDS) if history else {}
    return WorkerReport(index, f"host-{index}", attempts, Proof(300, 30_000, 7), proof, spent, retries=1, history=history)


def job(
    outcome: SortOutcome = SortOutcome.VALID, reason: str = "", workers: tuple[WorkerReport, ...] | None = None
) -> JobReport:
    told = (worker(0, 250), worker(1, 350, killed_once())) if workers is None else workers
    master = tuple(
        Transition(source, target, BEGAN + 0.75 + 0.25 * number, "all are there")
        for number, (source, target) in enumerate(pairwise(MASTER_WAY))
    )
    written = sum(one.written.records for one in told)
    return JobReport(
        job="a1b2",
        outcome=outcome,
        format="gensort",
        partitions=4,
        seconds=SECONDS,
        reason=reason,
        proof=Proof(written, written * 100, 0xAB),
        durations=durations(master, BEGAN + 2),
        history=master,
        workers=told,
    )
