"""Does a master that is killed in any state end as if it had not been?"""

import pytest

from tests.sort.chaos.cluster import LAZY, SPILLED, Data, Undisturbed, cluster, until
from tests.sort.chaos.stands import kill_master

pytestmark = pytest.mark.e2e

STORIES = {
    "before anything is sorted": (
        LAZY,
        (
            "WaitingForWorkers:before-save",
            "WaitingForWorkers:after-save",
            "Sampling:before-save",
            "Sampling:after-send",
            "Configuring:after-save",
            "Configuring:midway",
        ),
    ),
    "between two workers' boundaries, and later": (
        SPILLED,
        ("Sorting:midway", "Shuffling:before-save", "Merging:after-save", "Completed:before-save", "Completed:after-save"),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_killed_and_started_again(name: str, data: Data, undisturbed: Undisturbed) -> None:
    memory, deaths = STORIES[name]
    reference = undisturbed.of(memory)
    with cluster(data.inputs, memory=memory) as here:
        here.start({"master": deaths[0]})
        for hold, following in zip(deaths, (*deaths[1:], None), strict=True):
            kill_master(here, hold)
            here.start_master(*(["--hold", following] if following else []))
        report = here.ends_as(reference)
        assert [worker["attempts"] for worker in report["workers"]] == [1, 1, 1]


def test_killed_while_some_workers_are_here(data: Data, undisturbed: Undisturbed) -> None:
    """Those who have come need not come again."""
    reference = undisturbed.of(LAZY)
    with cluster(data.inputs, memory=LAZY, indexed=False) as here:
        here.start_master()
        here.workers[1].start()

        def is_known() -> bool:
            master = here.saved_master()
            return master is not None and len(master.members) == 1

        until("the first worker is known", is_known)
        here.master.kill()
        here.start_master()
        here.workers[0].start()
        here.workers[2].start()
        report = here.ends_as(reference)
        assert [worker["attempts"] for worker in report["workers"]] == [1, 1, 1]
