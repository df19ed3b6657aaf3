"""A job whose workers, master or inputs are lost for good fails."""

import signal
from pathlib import Path

import pytest

from tests.sort.e2e.commands import cluster, contents, running, torpor_sort
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]


@pytest.fixture
def input_(tmp_path: Path) -> Path:
    (tmp_path / "in").write_bytes(fixed_records(1_000, GENSORT, seed=6))
    return tmp_path / "in"


def test_the_registration_timeout_fails_the_job(tmp_path: Path) -> None:
    with cluster(tmp_path, 2, "--registration-timeout", 0.5) as job:
        done = job.master.ended()
    assert done.code == 3
    assert "0 of 2 workers registered within 0.5 s: none" in done.json["detail"]
    # The same command fails again: a failed job stays failed, and a new sort needs a new job.
    again = torpor_sort("master", "--workers", 2, "--state", job.state)
    assert again.code == 3
    assert "0 of 2 workers registered" in again.said


def test_a_master_that_is_started_again_after_the_end_reports_no_negative_time(tmp_path: Path) -> None:
    with cluster(tmp_path, 2, "--registration-timeout", 0.5) as job:
        job.master.ended()
    report = torpor_sort("master", "--workers", 2, "--state", job.state, "--json").json["report"]
    assert min(report["seconds"], report["working_s"], report["waited_s"]) >= 0


def test_a_master_ends_when_it_is_asked_to_and_the_same_command_continues(tmp_path: Path, input_: Path) -> None:
    with cluster(tmp_path, 1) as job:
        job.master.send(signal.SIGTERM)
        assert job.master.ended().code == 130
        with running("master", "--workers", 1, "--state", job.state, "--json") as again, running(*job.worker(0, input_)) as one:
            assert (one.ended().code, again.ended().code) == (0, 0)


def test_an_input_changed_during_the_sort_fails_the_job(tmp_path: Path, input_: Path) -> None:
    with cluster(tmp_path, 1) as job, running(*job.worker(0, input_, "--hold", "Sorting")) as worker:
        worker.wait_until_held()
        with input_.open("r+b") as file:
            file.write(b"changed")
        worker.send(signal.SIGCONT)
        ended, done = worker.ended(), job.master.ended()
    for said in (ended.said, done.json["detail"]):
        assert f"the input file {input_} was changed during the sort" in said
    assert (ended.code, done.code) == (3, 3)
    assert contents(tmp_path / "output.0") == {}
    assert contents(tmp_path / "scratch.0") == {}
