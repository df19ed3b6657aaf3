"""`torpor sort run` survives the end of its fork server at any moment, and the output stays the same."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sort.e2e.commands import (
    ALL_WORKERS,
    FAST,
    Ended,
    Process,
    by_key,
    contents,
    has_reached,
    joined,
    kill,
    pid_of,
    process_state,
    running,
    stop_midway,
    wait_for,
)
from tests.sort.workers import fixed_records
from torpor.sort.record import GENSORT

pytestmark = pytest.mark.e2e

RECORDS = fixed_records(50_000, GENSORT, seed=12)
SORTED = by_key(RECORDS)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(tmp_path: Path, output: Path) -> Iterator[Process]:
    (tmp_path / "in").write_bytes(RECORDS)
    words = (tmp_path / "in", "--output", output, "--workers", 2, *ALL_WORKERS, "--memory", "16M", "--json", *FAST)
    with running("run", *words) as process:
        yield process


def fork_server(run: Process) -> int:
    """The process that forks the workers of this run; one that has ended does not count."""

    def found() -> int | None:
        assert run.is_running(), run.ended().err.decode()
        children = Path(f"/proc/{run.pid}/task").glob("*/children")
        pids = [int(pid) for listed in children for pid in _text(listed).split()]
        return next((pid for pid in pids if "torpor.sort.worker.fork_server" in _text(Path(f"/proc/{pid}/cmdline"))), None)

    return wait_for(found, "a fork server")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def assert_sorted(ended: Ended, output: Path) -> None:
    assert ended.code == 0, ended.err.decode() + ended.out.decode()
    assert ended.json["outcome"] == "valid"
    assert joined(output) == SORTED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_server_that_ends_before_workers_are_requested_is_replaced(
    run: Process, output: Path, number: signal.Signals
) -> None:
    os.kill(fork_server(run), number)
    assert_sorted(run.ended(), output)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_server_that_ends_while_workers_run_is_replaced(run: Process, output: Path, number: signal.Signals) -> None:
    stop_midway(output)
    workers = [pid_of(output, index) for index in range(2)]
    os.kill(fork_server(run), number)
    wait_for(lambda: all(process_state(worker) == "Z" for worker in workers), "the end of its workers")
    ended = run.ended()
    assert_sorted(ended, output)
    assert [worker["attempts"] for worker in ended.json["workers"]] == [2, 2]


@pytest.mark.parametrize("state", ["Sampling", "Shuffling", "Merging", "Completed"])
def test_a_fork_server_killed_in_each_phase_is_replaced(run: Process, output: Path, state: str) -> None:
    server = fork_server(run)
    wait_for(lambda: has_reached(output, 0, state) or not run.is_running(), f"a worker in {state}")
    if run.is_running():
        os.kill(server, signal.SIGKILL)
    assert_sorted(run.ended(), output)


def test_a_fork_server_killed_before_it_replaces_a_worker_is_replaced(run: Process, output: Path) -> None:
    stopped = stop_midway(output)
    server = fork_server(run)
    # A stopped server cannot report the end of worker 0.
    os.kill(server, signal.SIGSTOP)
    kill(pid_of(output, 0))
    kill(server)
    wait_for(lambda: process_state(stopped) == "Z", "the end of worker 1")
    assert_sorted(run.ended(), output)


def test_workers_finish_while_the_fork_server_is_stopped(run: Process, output: Path) -> None:
    stopped = stop_midway(output)
    os.kill(fork_server(run), signal.SIGSTOP)
    os.kill(stopped, signal.SIGCONT)
    ended = run.ended()
    assert_sorted(ended, output)
    assert [worker["attempts"] for worker in ended.json["workers"]] == [1, 1]


def test_a_server_that_ends_each_time_ends_the_sort(run: Process, output: Path) -> None:
    for _ in range(4):
        kill(fork_server(run))
    ended = run.ended()
    assert ended.code == 3
    said = "the fork server, which starts the workers, was started again 3 times and ended each time"
    assert f"{said}; the last time it was ended by SIGKILL" in ended.json["detail"]
    assert ended.json["report"]["outcome"] == "failed"
    assert contents(output) == {}
