"""A worker that wakes up beside its successor is refused and does no harm."""

import shutil

import pytest

from tests.sort.chaos.cluster import LAZY, SPILLED, Data, Undisturbed, cluster, go_on

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]


@pytest.mark.parametrize("asleep", ["Shuffling:after-save", "Merging:midway"])
def test_a_successor_in_other_directories_takes_over(asleep: str, data: Data, undisturbed: Undisturbed) -> None:
    reference = undisturbed.of(SPILLED)
    state, _, moment = asleep.partition(":")
    with cluster(data.inputs, memory=SPILLED) as here:
        here.start({1: asleep})
        first = here.workers[1]
        here.wait_held(first, state, moment)
        other = here.folder / "other"
        second = here.another("successor", 1, scratch=other / "scratch", output=other / "output")
        second.start("--hold", "Merging:after-save")
        here.wait_held(second, "Merging", "after-save")
        go_on(first)
        assert first.wait() != 0
        assert "attempt 1 of worker 1 is over" in first.said()
        go_on(second)
        codes = here.wait()
        assert {name for name, code in codes.items() if code} == {first.name}
        report = here.report()
        assert report["outcome"] == "valid"
        assert [worker["attempts"] for worker in report["workers"]] == [1, 2, 1]
        # The files of the first process in its own directory do not count; the sorted data is with its successor.
        shutil.rmtree(here.output(1))
        (other / "output").rename(here.output(1))
        assert here.outputs() == reference


def test_a_successor_in_the_same_directories_is_refused(data: Data, undisturbed: Undisturbed) -> None:
    reference = undisturbed.of(LAZY)
    with cluster(data.inputs, memory=LAZY) as here:
        here.start({1: "Shuffling:after-send"})
        first = here.workers[1]
        here.wait_held(first, "Shuffling", "after-send")
        second = here.another("successor", 1, scratch=here.scratch(1), output=here.output(1))
        second.start("--lock-wait", "0.2")
        assert second.wait() != 0
        assert f"in use by process {first.pid};" in second.said()
        go_on(first)
        codes = here.wait()
        assert {name for name, code in codes.items() if code} == {second.name}
        report = here.report()
        assert report["outcome"] == "valid"
        assert here.outputs() == reference
        assert [worker["attempts"] for worker in report["workers"]] == [1, 1, 1]
