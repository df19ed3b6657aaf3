"""`abort` ends a sort everywhere, and leaves only the inputs."""

import os
import signal
from pathlib import Path

import pytest

from tests.sort.e2e.commands import (
    ALL_WORKERS,
    FAST,
    by_key,
    cluster,
    contents,
    running,
    sorted_well,
    stop_midway,
    torpor_sort,
    wait_for,
)
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]

RECORDS = fixed_records(5_000, GENSORT, seed=4)


@pytest.fixture
def input_(tmp_path: Path) -> Path:
    (tmp_path / "in").write_bytes(RECORDS)
    return tmp_path / "in"


@pytest.mark.parametrize("tls", [False, True], ids=["open", "TLS"])
def test_an_abort_ends_master_and_workers_and_keeps_only_the_input(tmp_path: Path, input_: Path, tls: bool) -> None:
    with (
        cluster(tmp_path, 2, "--heartbeat-lost", 60, *(["--tls"] if tls else [])) as job,
        running(*job.worker(0, input_, "--index", 0)) as first,
        running(*job.worker(1, input_, "--index", 1, "--hold", "Merging:after-save")) as second,
    ):
        second.wait_until_held()
        workers = torpor_sort("status", job.state, "--json").json["workers"]
        no_token = torpor_sort("abort", job.address)
        assert no_token.code == 1
        assert "--join needs the master's join.json" in no_token.said
        a_worker = torpor_sort("abort", workers[0]["control_address"], "--join", job.join)
        assert a_worker.code == 1
        assert "is not a master" in a_worker.said

        aborted = torpor_sort("abort", job.address, "--join", job.join, "--reason", "wrong input", "--json")
        assert aborted.code == 0, aborted.err.decode()
        assert aborted.json["aborted"] is True
        second.send(signal.SIGCONT)
        ended = [process.ended() for process in (first, second)]
        done = job.master.ended()
    assert [one.code for one in (*ended, done)] == [3, 3, 3]
    assert all("wrong input" in one.said for one in ended)
    assert "wrong input" in done.json["detail"]
    assert input_.read_bytes() == RECORDS
    for index in range(2):
        assert contents(tmp_path / f"output.{index}") == {}
        assert contents(tmp_path / f"scratch.{index}") == {}
    assert torpor_sort("abort", job.state).code == 6


def test_a_job_without_workers_is_aborted(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as job:
        assert torpor_sort("abort", job.state).code == 0
        done = job.master.ended()
    assert (done.code, done.json["report"]["reason"]) == (3, "aborted by the user")


def test_a_completed_job_is_not_aborted(tmp_path: Path, input_: Path) -> None:
    # While a worker is held, the master must not count it as lost and end.
    with (
        cluster(tmp_path, 1, "--heartbeat-lost", 60) as job,
        running(*job.worker(0, input_, "--hold", "Completed:after-send")) as worker,
    ):
        worker.wait_until_held()
        wait_for(lambda: torpor_sort("status", job.state, "--json").json["state"] == "Completed", "Completed")
        late = torpor_sort("abort", job.state)
        assert late.code == 1
        assert "is completed" in late.said
        worker.send(signal.SIGCONT)
        assert (worker.ended().code, job.master.ended().code) == (0, 0)
    assert job.output(1) == by_key(RECORDS)


def test_a_run_is_aborted_by_its_output_directory(tmp_path: Path, input_: Path) -> None:
    output = tmp_path / "out"
    words = (input_, "--output", output, "--workers", 2, *ALL_WORKERS, "--memory", "16M", *FAST)
    with running("run", *words, "--json") as run:
        stopped = stop_midway(output)
        assert torpor_sort("status", output, "--json").json["expected_workers"] == 2
        assert torpor_sort("abort", output).code == 0
        os.kill(stopped, signal.SIGCONT)
        ended = run.ended()
    assert ended.code == 3
    assert "aborted by the user" in ended.json["detail"]
    assert contents(output) == {}
    assert sorted_well(*words)["records"] == 5_000
