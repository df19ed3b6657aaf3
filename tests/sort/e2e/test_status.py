"""`status` reports a sort while it runs, and that the master is not reachable otherwise."""

import json
import signal
from pathlib import Path

import pytest

from tests.sort.e2e.commands import cluster, running, torpor_sort, wait_for
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]


def test_the_status_is_available_from_beginning_to_end(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(fixed_records(2_000, GENSORT, seed=3))
    with cluster(tmp_path, 1) as job:
        begun = torpor_sort("status", job.state, "--json").json
        assert (begun["state"], begun["expected_workers"], begun["workers"]) == ("WaitingForWorkers", 1, [])
        assert begun["address"] == job.address

        with running(*job.worker(0, tmp_path / "in", "--hold", "Sorting:after-send", "--threads", 1)) as worker:
            worker.wait_until_held()
            wait_for(lambda: torpor_sort("status", job.state, "--json").json["state"] == "Sorting", "Sorting")
            told = [torpor_sort("status", master, "--json") for master in (job.state, job.join, job.address)]
            assert [done.code for done in told] == [0, 0, 0]
            for done in told:
                assert done.json["job"] == begun["job"]
                assert done.json["verdict"] is None
                assert [step["to"] for step in done.json["history"]] == ["Sampling", "Configuring", "Sorting"]
                (found,) = done.json["workers"]
                assert (found["index"], found["attempt"], found["size_in_bytes"]) == (0, 1, 200_000)
            text = torpor_sort("status", job.state)
            assert text.code == 0
            said = text.out.decode()
            assert said.startswith("Sorting: workers sort their inputs")
            assert begun["job"] in said
            assert job.address in said
            worker.send(signal.SIGCONT)
            assert worker.ended().code == 0
        assert job.master.ended().json["outcome"] == "valid"

    gone = torpor_sort("status", job.state)
    assert gone.code == 6
    assert job.address in gone.said
    problem = torpor_sort("status", job.join, "--json")
    assert (problem.code, json.loads(problem.out)["code"]) == (6, "unreachable")


def test_the_status_of_an_unknown_master_is_an_error(tmp_path: Path) -> None:
    assert torpor_sort("status", tmp_path).code == 1
    assert torpor_sort("status", "nowhere").code == 2


@pytest.mark.parametrize("tls", [False, True], ids=["open", "TLS"])
def test_the_status_of_one_worker_is_available(tmp_path: Path, tls: bool) -> None:
    """The other worker does not come, so that this one stays in its state."""
    (tmp_path / "in").write_bytes(fixed_records(2_000, GENSORT, seed=3))
    with cluster(tmp_path, 2, *(["--tls"] if tls else [])) as job, running(*job.worker(0, tmp_path / "in")):
        (found,) = wait_for(lambda: torpor_sort("status", job.state, "--json").json["workers"], "the worker")
        words = (found["control_address"], *(("--join", job.join) if tls else ()))
        told = torpor_sort("status", *words, "--json")
        assert told.code == 0, told.err.decode()
        assert (told.json["identity"], told.json["state"]) == (found["identity"], "Initializing")
        assert (told.json["phase"], told.json["progress"], told.json["counters"]["records"]) == ("INITIALIZING", 0, 0)
        text = torpor_sort("status", *words)
        assert text.code == 0
        assert text.out.decode().startswith("Initializing: registering")
        assert found["identity"] in "".join(text.out.decode().split())
        if tls:
            assert torpor_sort("status", found["control_address"]).code == 6
