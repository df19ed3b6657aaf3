"""Processes of a job: their answers, their errors, and their end."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from torpor.archives.packs.crew import Handlers, InlineCrew, ProcessCrew, abandon_calls, crew_of, finish_calls
from torpor.domain.errors import Code, Failed


def changed() -> None:
    raise Failed(Code.HOME_CHANGED, "the home changed", path="file")


def full() -> None:
    raise Failed(Code.DISK_FULL, "the disk is full")


def handlers(member: int, size: int) -> Handlers:
    return {"who": lambda: (member, size), "echo": lambda value: value, "pid": os.getpid, "changed": changed, "full": full}


def first_byte_to(answers: list[int]) -> Callable[[bytes], None]:
    return lambda value: answers.append(value[0])


@pytest.fixture
def crew() -> Iterator[ProcessCrew]:
    made = ProcessCrew(handlers, size=2)
    yield made
    made.close()


def test_answers_come_in_order(crew: ProcessCrew) -> None:
    found: tuple[list[int], list[int]] = [], []
    who: list[tuple[int, int]] = []
    for number in range(50):
        # Longer than what a pipe holds, in both directions.
        crew.call(number % 2, "echo", bytes([number]) * 300_000, then=first_byte_to(found[number % 2]))
    crew.call(1, "who", then=who.append)
    finish_calls(crew)
    assert found == (list(range(0, 50, 2)), list(range(1, 50, 2)))
    assert who == [(1, 2)]


def test_an_error_is_raised_with_its_code_and_context(crew: ProcessCrew) -> None:
    crew.call(0, "changed")
    with pytest.raises(Failed) as caught:
        finish_calls(crew)
    assert (caught.value.code, caught.value.context) == (Code.HOME_CHANGED, {"path": "file"})


def test_calls_are_abandoned_but_other_errors_are_not_lost(crew: ProcessCrew) -> None:
    for _ in range(3):
        crew.call(0, "changed")
    abandon_calls(crew)
    crew.call(0, "changed")
    crew.call(1, "full")
    crew.call(1, "who")
    with pytest.raises(Failed) as caught:
        abandon_calls(crew)
    assert caught.value.code is Code.DISK_FULL
    assert not any(map(crew.waiting, range(2)))


def test_a_killed_process_is_an_error_and_no_call_waits_for_it(crew: ProcessCrew) -> None:
    pids: list[int] = []
    crew.call(0, "pid", then=pids.append)
    finish_calls(crew)
    os.kill(pids[0], signal.SIGKILL)
    crew.call(0, "who")
    crew.call(0, "who")
    crew.call(1, "who")
    with pytest.raises(Failed, match="ended unexpectedly"):
        abandon_calls(crew)


def test_without_processes_the_job_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may limit the number of processes."""
    forked: list[int] = []
    fork = os.fork

    def fork_once() -> int:
        if forked:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        pid = fork()
        if pid:
            forked.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", fork_once)
    with closing(crew_of(handlers)) as crew:
        assert isinstance(crew, InlineCrew)
        found: list[object] = []
        crew.call(0, "who", then=found.append)
        crew.call(0, "pid", then=found.append)
        finish_calls(crew)
        assert found == [(0, 1), os.getpid()]
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], 0)  # the process that was forked is gone
