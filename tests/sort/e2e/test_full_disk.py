"""A sort on a full disk fails with a clear message, and the same command succeeds once there is space."""

import subprocess
from pathlib import Path

import pytest

from tests.sort.e2e.commands import ALL_WORKERS, by_key, cluster, contents, joined, sorted_well, torpor_sort
from tests.sort.workers import fixed_records
from tests.support.small_disk import small_disk
from torpor.sort.record import GENSORT

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]

RECORDS = fixed_records(60_000, GENSORT, seed=9)
SORTED = by_key(RECORDS)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)


@pytest.mark.parametrize("full", ["output", "scratch"])
def test_a_full_disk_fails_cleanly_and_with_space_the_same_command_succeeds(tmp_path: Path, full: str) -> None:
    (tmp_path / "in").write_bytes(RECORDS)
    with small_disk(tmp_path / "disk", "4m") as disk:
        places = {"output": tmp_path / "out", "scratch": tmp_path / "scratch", full: disk / full}
        # So little memory that everything is spilled.
        words = ("--output", places["output"], "--scratch", places["scratch"], "--workers", 2, *ALL_WORKERS, "--memory", "8M")
        done = torpor_sort("run", tmp_path / "in", *words)
        assert done.code == 3
        assert "no space is left on the device" in done.said
        assert str(disk) in done.said
        assert contents(disk) == {}
        assert contents(tmp_path) == {"in": RECORDS}

        enlarge(disk)
        sorted_well(tmp_path / "in", *words)
        assert joined(places["output"]) == SORTED
        assert contents(places["scratch"]) == {}


def test_a_worker_with_a_full_disk_fails_the_job_with_the_reason(tmp_path: Path) -> None:
    """State, scratch and output of a worker on one full disk; the master has its own."""
    (tmp_path / "in").write_bytes(RECORDS)
    with small_disk(tmp_path / "disk", "4m") as disk, cluster(tmp_path, 1) as job:
        words = job.worker(0, tmp_path / "in")
        words[words.index("--output") + 1] = disk / "out"
        words[words.index("--scratch") + 1] = disk / "scratch"
        worker = torpor_sort(*words)
        done = job.master.ended()
        assert worker.code == 3
        assert "no space is left on the device" in worker.said
        assert done.code == 3
        assert "no space is left on the device" in done.json["detail"]
        assert contents(disk / "out") == {}
