"""A sort stays within its memory for any input."""

import json
import re
from pathlib import Path

import pytest

from tests.sort.e2e.commands import generated, pid_of, process_state, running, wait_for

pytestmark = pytest.mark.e2e

MIB = 1 << 20
MEMORY = 32 * MIB
BESIDES = 130 * MIB
"""Python, NumPy and gRPC, and what they allocate once."""


def peak(pid: int) -> int:
    """The most bytes that a process has had in memory so far; 0 if it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found else 0


def peaks(tmp_path: Path, records: int) -> tuple[int, int]:
    """The peaks of the master and of its worker, measured until the worker is gone."""
    made = generated(tmp_path / f"in.{records}", records)
    output = tmp_path / f"out.{records}"
    words = ("--output", output, "--memory", MEMORY, "--no-sync", "--json")
    with running("run", made, *words) as run:
        worker = pid_of(output, 0)
        most = [0, 0]

        def look() -> bool:
            most[:] = max(most[0], peak(run.pid)), max(most[1], peak(worker))
            return process_state(worker) == "Z"

        wait_for(look, "the end of the worker")
        ended = run.ended()
    assert json.loads(ended.out)["outcome"] == "valid"
    assert json.loads(ended.out)["records"] == records
    return most[0], most[1]


def test_a_worker_stays_within_its_memory_and_a_master_does_not_grow(tmp_path: Path) -> None:
    small_master, _ = peaks(tmp_path, 100_000)
    master, worker = peaks(tmp_path, 2_000_000)
    assert worker < MEMORY + BESIDES, f"{worker // MIB} MB"
    assert master < small_master + 16 * MIB, f"{small_master // MIB} MB, then {master // MIB} MB"
