"""The same command goes on after a sort was killed or interrupted, or lost its workers."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.sort.e2e.commands import (
    ALL_WORKERS,
    FAST,
    by_key,
    contents,
    joined,
    kill,
    pid_of,
    process_state,
    running,
    sorted_well,
    stop_midway,
    torpor_sort,
    wait_for,
)
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.long]

RECORDS = fixed_records(50_000, GENSORT, seed=11)
SORTED = by_key(RECORDS)


@pytest.fixture
def words(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "in").write_bytes(RECORDS)
    return (tmp_path / "in", "--output", tmp_path / "out", "--workers", 2, *ALL_WORKERS, "--memory", "16M", *FAST)


def job_of(output: Path) -> str:
    return str(json.loads((output / ".torpor-sort.json").read_text())["job"])


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)], ids=["killed", "interrupted"]
)
def test_the_same_command_continues_after_a_kill(
    tmp_path: Path, words: tuple[object, ...], number: signal.Signals, code: int
) -> None:
    output = tmp_path / "out"
    with running("run", *words) as run:
        stop_midway(output)
        workers, job = [pid_of(output, index) for index in range(2)], job_of(output)
        run.send(number)
        ended = run.ended()
    assert ended.code == code
    wait_for(lambda: all(process_state(worker) == "Z" for worker in workers), "the end of its workers")
    assert number is signal.SIGKILL or ended.said == "interrupted (run the same command again to continue)"
    assert not [name for name in contents(output) if name.startswith("partition.")]

    if number is signal.SIGKILL:
        other = torpor_sort("run", words[0], "--output", output, "--workers", 1)
        assert other.code == 1
        assert "holds an unfinished sort of other inputs or settings" in other.said

    report = sorted_well(*words)
    assert report["job"] == job
    assert [worker["attempts"] for worker in report["workers"]] == [2, 2]
    assert joined(output) == SORTED
    assert (tmp_path / "in").read_bytes() == RECORDS


@pytest.mark.parametrize("torn", ["plan", "master/journal", "worker.0/journal"])
@pytest.mark.parametrize("apart", [False, True], ids=["state in the output", "state in --scratch"])
def test_a_damaged_journal_does_not_prevent_the_same_command(
    tmp_path: Path, words: tuple[object, ...], torn: str, apart: bool
) -> None:
    output = tmp_path / "out"
    places = ("--scratch", tmp_path / "scratch") if apart else ()
    state = (tmp_path / "scratch" if apart else output) / ".torpor-sort"
    with running("run", *words, *places) as run:
        stop_midway(state.parent)
        workers = [pid_of(state.parent, index) for index in range(2)]
        run.send(signal.SIGKILL)
        run.ended()
    wait_for(lambda: all(process_state(worker) == "Z" for worker in workers), "the end of its workers")
    # As after a kill while the workers write their output.
    (output / "partition.00000").write_bytes(b"half")
    os.truncate(state / torn, 100)

    sorted_well(*words, *places)
    assert joined(output) == SORTED


def test_a_worker_that_dies_is_started_again(tmp_path: Path, words: tuple[object, ...]) -> None:
    output = tmp_path / "out"
    with running("run", *words, "--json") as run:
        stopped = stop_midway(output)
        kill(pid_of(output, 0))
        os.kill(stopped, signal.SIGCONT)
        ended = run.ended()
    assert ended.code == 0, ended.err.decode()
    assert ended.json["outcome"] == "valid"
    first = ended.json["workers"][0]
    assert first["attempts"] == 2
    assert "killed" in [step["reason"] for step in first["history"]]
    assert joined(output) == SORTED


def test_a_worker_that_dies_each_time_ends_the_sort(tmp_path: Path, words: tuple[object, ...]) -> None:
    output = tmp_path / "out"
    with running("run", *words, "--json") as run:
        stop_midway(output)
        for _ in range(4):
            wait_for(lambda: process_state(pid_of(output, 0)) not in "ZX", "a worker")
            kill(pid_of(output, 0))
        ended = run.ended()
    assert ended.code == 3
    said = "was started again 3 times and ended each time; the last time it was ended by SIGKILL"
    assert said in ended.json["detail"]
    assert ended.json["report"]["outcome"] == "failed"
    assert contents(output) == {}
