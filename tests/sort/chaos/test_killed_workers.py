"""After a kill of a worker in any state the job ends as without the kill.

Each story holds its workers in states that wait for each other, so that one sort survives several kills.
"""

from dataclasses import dataclass

import pytest

from tests.sort.chaos.cluster import LAZY, SPILLED, Data, Undisturbed, cluster
from tests.sort.chaos.stands import kill_worker

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]


@dataclass(frozen=True, slots=True)
class Story:
    memory: str
    indexed: bool
    deaths: tuple[tuple[int, str], ...]
    """Which worker is killed where, in order of time. A worker that is named twice is killed twice."""


# A worker that is killed after its report is killed while another is held; otherwise the answer might come first.
STORIES = {
    "until boundaries are known": Story(
        LAZY,
        indexed=True,
        deaths=(
            (0, "Initializing:after-save"),
            (2, "WaitingForPartitionConfig:after-send"),
            (1, "Sampling:before-save"),
            (1, "Sampling:after-save"),
        ),
    ),
    "sorting to files": Story(
        SPILLED,
        indexed=False,
        deaths=((0, "Sorting:midway"), (1, "WaitingForShuffleSignal:before-save"), (2, "Shuffling:after-save")),
    ),
    "shuffling in memory": Story(
        LAZY,
        indexed=False,
        deaths=(
            (0, "Sorting:after-send"),
            (2, "Shuffling:midway"),
            (1, "WaitingForMergeSignal:after-send"),
            (2, "WaitingForMergeSignal:after-save"),
            (2, "Completed:before-save"),
        ),
    ),
    "merging from files": Story(
        SPILLED,
        indexed=True,
        deaths=((0, "WaitingForMergeSignal:before-save"), (2, "Completed:after-save"), (1, "Merging:midway")),
    ),
    "failed, and failing again": Story(
        LAZY,
        indexed=True,
        deaths=(
            (0, "Initializing:after-send"),
            (1, "WaitingForShuffleSignal:after-send"),
            (2, "Sorting:before-save"),
            (1, "Failed:before-save"),
            (1, "Failed:after-save"),
            (2, "Completed:after-send"),
            (0, "Merging:after-send"),
        ),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_killed_worker_is_started_again(name: str, data: Data, undisturbed: Undisturbed) -> None:
    story = STORIES[name]
    reference = undisturbed.of(story.memory)
    holds = {index: [hold for one, hold in story.deaths if one == index] for index in range(len(data.inputs))}
    deaths = {index: len(places) for index, places in holds.items()}
    with cluster(data.inputs, memory=story.memory, indexed=story.indexed) as here:
        here.start({index: places.pop(0) for index, places in holds.items() if places})
        for index, hold in story.deaths:
            kill_worker(here, index, hold)
            here.workers[index].start(*(["--hold", holds[index].pop(0)] if holds[index] else []))
        report = here.ends_as(reference)
        for worker in report["workers"]:
            # A process that ends before it has registered is not an attempt.
            assert 1 <= worker["attempts"] <= 1 + deaths[worker["index"]]
