"""Measure the speed of `sort generate` and `sort validate` beside `cp` of the same file.

Interleaved: in each round `cp`, generate and validate run on the same bytes in turn, each in its own process as a user would
start it. The ratio is taken within the round, and the median of the rounds counts. Everything stays in the page cache if there
is room for it. The bar is 0.4 of the speed of `cp`, at 4 GB.

    python bench/sort_tools.py [--gb 4] [--rounds 5] [--folder DIR] [--json]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

BAR = 0.4
RECORD = 100
PYTHON = (sys.executable, "-c")
GENERATE = (
    "import sys, pathlib; from torpor.sort.data.generate import generate; generate(int(sys.argv[1]), pathlib.Path(sys.argv[2]))"
)
VALIDATE = """
import sys, pathlib
from torpor.sort.data.validate import validate
found = validate([pathlib.Path(sys.argv[2])])
assert found.records == int(sys.argv[1]), found
"""


@dataclass(frozen=True)
class Taken:
    wall_s: float
    cpu_s: float
    foreign_cpu_s: float
    """The CPU seconds of all other processes of the machine in that time."""


@dataclass(frozen=True)
class Result:
    tool: str
    wall_s_best: float
    wall_s_median: float
    cpu_s_per_gb: float
    speed_of_cp: float
    """The median of the ratios within each round."""
    speed_of_cp_worst: float
    speed_of_cp_best: float
    foreign_cores: float
    """The cores that other processes used on average in that time."""


def busy_s() -> float:
    """All processes, since the machine started."""
    user, nice, system = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def taken(command: tuple[str, ...], instead_of: Path | None) -> Taken:
    # Pages of the last turn that are still to be written must not count for this one.
    os.sync()
    if instead_of is not None:
        # Only now: pages that have just become free are equally fast for every writer, while pages that were free for a while
        # may first have to be fetched from the host.
        instead_of.unlink()
    busy, own, began = busy_s(), children_s(), time.perf_counter()
    subprocess.run(command, check=True)
    wall_s = time.perf_counter() - began
    cpu_s = children_s() - own
    return Taken(wall_s, cpu_s, max(0.0, busy_s() - busy - cpu_s))


def result(tool: str, all_taken: list[Taken], beside: list[Taken], gb: float) -> Result:
    ratios = [cp.wall_s / one.wall_s for one, cp in zip(all_taken, beside, strict=True)]
    walls = [one.wall_s for one in all_taken]
    return Result(
        tool=tool,
        wall_s_best=round(min(walls), 2),
        wall_s_median=round(statistics.median(walls), 2),
        cpu_s_per_gb=round(statistics.median(one.cpu_s for one in all_taken) / gb, 2),
        speed_of_cp=round(statistics.median(ratios), 2),
        speed_of_cp_worst=round(min(ratios), 2),
        speed_of_cp_best=round(max(ratios), 2),
        foreign_cores=round(sum(one.foreign_cpu_s for one in all_taken) / sum(walls), 2),
    )


def measure(folder: Path, gb: float, rounds: int) -> list[Result]:
    records = str(int(gb * 1e9) // RECORD)
    original, written = folder / "original", folder / "written"
    subprocess.run((*PYTHON, GENERATE, records, str(original)), check=True)
    subprocess.run(("cp", str(original), str(written)), check=True)
    turns: dict[str, Callable[[], Taken]] = {
        "cp": lambda: taken(("cp", str(original), str(written)), written),
        "generate": lambda: taken((*PYTHON, GENERATE, records, str(written)), written),
        "validate": lambda: taken((*PYTHON, VALIDATE, records, str(original)), None),
    }
    found: dict[str, list[Taken]] = {tool: [] for tool in turns}
    for number in range(rounds):
        # No tool is always the first.
        for tool in [*list(turns)[number % len(turns) :], *list(turns)[: number % len(turns)]]:
            found[tool].append(turns[tool]())
        print({tool: round(found[tool][-1].wall_s, 2) for tool in turns}, file=sys.stderr, flush=True)
    return [result(tool, all_taken, found["cp"], gb) for tool, all_taken in found.items()]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gb", type=float, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="torpor-bench-", dir=chosen.folder) as folder:
        measured = measure(Path(folder), chosen.gb, chosen.rounds)
    if chosen.json:
        print(json.dumps([asdict(one) for one in measured]))
    else:
        columns = [field.name for field in fields(Result)]
        print(" | ".join(columns))
        for one in measured:
            print(" | ".join(str(getattr(one, column)).rjust(len(column)) for column in columns))
