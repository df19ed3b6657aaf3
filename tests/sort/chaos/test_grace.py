"""A worker or a master that does not come back is waited for only so long."""

import pytest

from tests.sort.chaos.cluster import SPILLED, Data, Undisturbed, cluster
from tests.sort.chaos.stands import kill_master, kill_worker
from torpor.sort.data.worker_directory import MARKER

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]


def test_a_worker_that_stays_away_fails_the_job(data: Data) -> None:
    with cluster(data.inputs, memory=SPILLED, heartbeat_lost_s=1.0, master_options=("--worker-grace", "3")) as here:
        here.start({2: "Merging:before-save"})
        kill_worker(here, 2, "Merging:before-save")
        codes = here.wait()
        assert 0 not in codes.values(), codes
        assert "worker 2 (index 2) sent no heartbeat for" in here.master.said()
        assert "worker 2 (index 2) sent no heartbeat for" in here.workers[0].said()
        here.has_left_nothing(0, 1)
        # The killed worker could not clean up, but its files are marked as those of an unfinished job.
        assert (here.output(2) / MARKER).exists()


def test_a_master_that_stays_away_fails_the_workers(data: Data, undisturbed: Undisturbed) -> None:
    """The workers fail until the master comes back; then they come back, and the job goes on."""
    reference = undisturbed.of(SPILLED)
    with cluster(data.inputs, memory=SPILLED, heartbeat_lost_s=3.0, worker_options=("--master-grace", "2")) as here:
        here.start({"master": "Shuffling:after-save"})
        kill_master(here, "Shuffling:after-save")
        for worker in here.workers:
            assert worker.wait() != 0
            assert "the master was not reachable for 2 s" in worker.said()
        here.start_master()
        for worker in here.workers:
            worker.start("--master-grace", "60")
        here.ends_as(reference)
