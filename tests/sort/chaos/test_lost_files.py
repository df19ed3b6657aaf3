"""A job survives the loss of scratch, of output, and of several processes at once."""

import os

import pytest

from tests.sort.chaos.cluster import LAZY, SPILLED, Cluster, Data, Undisturbed, cluster, go_on, until
from tests.sort.chaos.stands import kill_worker
from torpor.sort.data.worker_directory import WorkerDirectory

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]


def test_two_workers_are_killed_and_one_loses_its_scratch_twice(data: Data, undisturbed: Undisturbed) -> None:
    """One keeps its scratch; the other loses it, twice."""
    reference = undisturbed.of(SPILLED)
    with cluster(data.inputs, memory=SPILLED, indexed=False) as here:
        here.start({0: "Shuffling:after-send", 1: "WaitingForShuffleSignal:after-save"})
        kill_worker(here, 1, "WaitingForShuffleSignal:after-save")
        here.workers[1].start("--hold", "Shuffling:midway")
        here.wait_held(here.workers[0], "Shuffling", "after-send")
        here.wait_held(here.workers[1], "Shuffling", "midway")
        here.workers[0].kill()
        here.workers[1].kill()
        here.lose_scratch(0)
        here.workers[1].start()
        here.workers[0].start("--hold", "Merging:after-save")
        kill_worker(here, 0, "Merging:after-save")
        here.lose_scratch(0)
        here.workers[0].start()
        report = here.ends_as(reference)
        assert [worker["attempts"] for worker in report["workers"]] == [3, 3, 1]


def test_completed_workers_that_lost_their_files_sort_again(data: Data, undisturbed: Undisturbed) -> None:
    """A file of the output, the scratch, or only the runs in memory is lost; then the worker sorts again for those that lost
    more."""
    reference = undisturbed.of(LAZY)
    with cluster(data.inputs, memory=LAZY) as here:
        here.start({0: "Completed:after-send", 1: "Merging:after-save", 2: "Completed:after-send"})
        here.wait_held(here.workers[1], "Merging", "after-save")
        kill_worker(here, 0, "Completed:after-send")
        kill_worker(here, 2, "Completed:after-send")
        (here.output(0) / reference[0][0][0]).unlink()
        here.lose_scratch(2)
        here.workers[0].start("--hold", "Sampling:after-save")
        # While it is held, the job cannot end before the others come back.
        here.wait_held(here.workers[0], "Sampling", "after-save")
        go_on(here.workers[1])
        until("the third worker is completed", lambda: here.state_of(1) == "Completed")
        here.workers[1].kill()
        here.workers[1].start()
        here.workers[2].start()
        go_on(here.workers[0])
        report = here.ends_as(reference)
        assert [worker["attempts"] for worker in report["workers"]] == [2, 2, 2]
        assert here.workers[1].said().count("sorts its input again") == 1


@pytest.mark.parametrize("left", [0, 200], ids=["empty", "cut"])
def test_a_damaged_journal_counts_as_lost_scratch(data: Data, undisturbed: Undisturbed, left: int) -> None:
    reference = undisturbed.of(SPILLED)
    with cluster(data.inputs, memory=SPILLED) as here:
        here.start({0: "WaitingForMergeSignal:after-save"})
        kill_worker(here, 0, "WaitingForMergeSignal:after-save")
        os.truncate(here.scratch(0) / "journal", left)
        here.workers[0].start()
        report = here.ends_as(reference)
        assert report["workers"][0]["attempts"] == 2
        assert here.workers[0].said().count("this counts as lost scratch") == 1


def test_scratch_lost_when_the_job_is_over_does_no_harm(data: Data, undisturbed: Undisturbed) -> None:
    """No worker is left that could send its parts again, so the output must stay."""
    reference = undisturbed.of(LAZY)
    with cluster(data.inputs, memory=LAZY, heartbeat_lost_s=5.0) as here:
        here.start({0: "Completed:after-send", 1: "Merging:after-save", "master": "Completed:after-save"})
        here.wait_held(here.workers[1], "Merging", "after-save")
        kill_worker(here, 0, "Completed:after-send")
        here.lose_scratch(0)
        go_on(here.workers[1])
        here.wait_held(here.master, "Completed", "after-save")
        here.workers[0].start("--no-resume")
        go_on(here.master)
        here.ends_as(reference)
        # A worker that is started once more finds no master and needs none.
        here.workers[2].start()
        here.ends_as(reference)


def runs_of(here: Cluster, index: int) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (here.scratch(index) / "runs").iterdir()}


def test_runs_are_kept_unless_no_resume_is_given(data: Data, undisturbed: Undisturbed) -> None:
    reference = undisturbed.of(SPILLED)
    with cluster(data.inputs, memory=SPILLED) as here:
        here.start({0: "WaitingForShuffleSignal:after-send", 1: "WaitingForMergeSignal:before-save"})
        kill_worker(here, 0, "WaitingForShuffleSignal:after-send")
        kept = runs_of(here, 0)
        here.workers[0].start("--hold", "WaitingForShuffleSignal:after-save")
        here.wait_held(here.workers[0], "WaitingForShuffleSignal", "after-save")
        assert runs_of(here, 0) == kept
        go_on(here.workers[0])
        kill_worker(here, 1, "WaitingForMergeSignal:before-save")
        gone = runs_of(here, 1)
        here.workers[1].start("--no-resume", "--hold", "WaitingForShuffleSignal:after-save")
        here.wait_held(here.workers[1], "WaitingForShuffleSignal", "after-save")
        again = runs_of(here, 1)
        assert again.keys() == gone.keys()
        assert all(again[name] > gone[name] for name in gone)
        go_on(here.workers[1])
        here.ends_as(reference)


def test_an_input_changed_during_a_restart_fails_the_job(data: Data) -> None:
    with cluster(data.inputs, memory=SPILLED, heartbeat_lost_s=3.0) as here:
        here.start({1: "Completed:after-save"})
        kill_worker(here, 1, "Completed:after-save")
        file = data.inputs[1] / "a"
        times = file.stat()
        try:
            file.touch()
            here.workers[1].start()
            codes = here.wait()
        finally:
            # All tests share this input.
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert 0 not in codes.values(), codes
        assert str(file) in here.master.said()
        assert str(file) in here.workers[1].said()
        here.has_left_nothing()


def test_a_worker_that_lost_its_scratch_after_the_end_needs_no_master(data: Data, undisturbed: Undisturbed) -> None:
    """Master and journal are gone by then; the marker in the output says that the job is completed."""
    reference = undisturbed.of(SPILLED)
    with cluster(data.inputs, memory=SPILLED) as here:
        here.start()
        here.end_well()
        saved = here.saved_worker(0)
        assert saved is not None
        # The state while the worker ends, which is too short to be hit.
        WorkerDirectory(here.scratch(0), here.output(0)).finish_output(saved.job, saved.identity)
        here.lose_scratch(0)
        here.workers[0].start()
        here.ends_as(reference)
        assert "looking for the master" not in here.workers[0].said()
