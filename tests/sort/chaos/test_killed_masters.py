"""After a kill of the master in any state the job ends as without the kill."""

import itertools
from collections.abc import Callable

import pytest

from tests.sort.chaos.cluster import LAZY, SPILLED, Data, Undisturbed, cluster, until
from tests.sort.chaos.stands import kill_master

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]

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
def test_a_killed_master_is_started_again(name: str, data: Data, undisturbed: Undisturbed) -> None:
    memory, deaths = STORIES[name]
    reference = undisturbed.of(memory)
    with cluster(data.inputs, memory=memory) as here:
        here.start({"master": deaths[0]})
        for hold, following in zip(deaths, (*deaths[1:], None), strict=True):
            kill_master(here, hold)
            here.start_master(*(["--hold", following] if following else []))
        report = here.ends_as(reference)
        assert [worker["attempts"] for worker in report["workers"]] == [1, 1, 1]


# The journal of a killed master after a crash of its machine or on a bad disk.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "cut in its first line": lambda good: good[:30],
    "cut in the middle": lambda good: good[: len(good) // 2],
    "without its end": lambda good: good[:-3],
    "one byte is another": lambda good: good[:-20] + bytes([good[-20] ^ 1]) + good[-19:],
    "zeros": lambda good: b"\0" * len(good),
}
TORN = {
    "early": (LAZY, ("WaitingForWorkers:after-save", "Sampling:after-send", "Configuring:midway")),
    "while records move": (SPILLED, ("Sorting:midway", "Shuffling:after-save", "Merging:after-save")),
    "at the end": (SPILLED, ("Completed:before-save", "Completed:after-save")),
}


@pytest.mark.parametrize("name", TORN)
def test_a_damaged_journal_counts_as_lost_and_the_job_begins_again(name: str, data: Data, undisturbed: Undisturbed) -> None:
    """The workers go on: each registers again by itself, with a later attempt, and keeps its files."""
    memory, deaths = TORN[name]
    reference = undisturbed.of(memory)
    damage = itertools.cycle(DAMAGE.values())
    with cluster(data.inputs, memory=memory) as here:
        here.start({"master": deaths[0]})
        for hold, following in zip(deaths, (*deaths[1:], None), strict=True):
            kill_master(here, hold)
            journal = here.state / "journal"
            journal.write_bytes(next(damage)(journal.read_bytes()))
            here.start_master(*(["--hold", following] if following else []))
        report = here.ends_as(reference)
        assert here.master.log.read_text().count("the job begins again") == len(deaths)
        assert all(worker["attempts"] > 1 for worker in report["workers"])


@pytest.mark.parametrize("how", DAMAGE)
def test_any_damage_of_the_journal_counts_as_lost(how: str, data: Data, undisturbed: Undisturbed) -> None:
    """A worker that is killed meanwhile, and one that was completed, come back to a master without its journal."""
    reference = undisturbed.of(LAZY)
    with cluster(data.inputs, memory=LAZY) as here:
        here.start({"master": "Completed:before-save"})
        kill_master(here, "Completed:before-save")
        until("the second worker is completed", lambda: here.state_of(1) == "Completed")
        here.workers[1].kill()
        journal = here.state / "journal"
        journal.write_bytes(DAMAGE[how](journal.read_bytes()))
        here.start_master()
        here.workers[1].start()
        report = here.ends_as(reference)
        assert [worker["attempts"] for worker in report["workers"]] == [2, 2, 2]


def test_a_master_killed_during_registration_keeps_registered_workers(data: Data, undisturbed: Undisturbed) -> None:
    """Workers that have registered need not register again."""
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
