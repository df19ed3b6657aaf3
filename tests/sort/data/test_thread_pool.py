"""Work is done once, results are in order of the items, and an error ends all threads."""

import signal
import threading
import time

import pytest

from torpor.sort.data.thread_pool import parallel_map


@pytest.mark.parametrize("threads", [1, 3, 50])
def test_results_are_in_the_order_of_items(threads: int) -> None:
    assert parallel_map(lambda item: item * item, range(20), threads) == [item * item for item in range(20)]


def test_no_items_give_no_results() -> None:
    assert parallel_map(str, [], 4) == []


def test_several_threads_work_at_once() -> None:
    all_here = threading.Barrier(3)
    assert len(parallel_map(lambda _: all_here.wait(20), range(3), 3)) == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_ends_the_map(threads: int) -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 5:
            raise KeyError(item)
        return item

    before = threading.active_count()
    with pytest.raises(KeyError):
        parallel_map(work, range(10_000), threads)
    assert len(begun) < 10_000
    assert threading.active_count() == before


def test_none_is_a_valid_result() -> None:
    assert parallel_map(lambda item: item or None, range(4), 2) == [None, 1, 2, 3]


def test_an_interrupt_waits_for_the_other_threads() -> None:
    both, ended = threading.Barrier(2), threading.Event()
    caller = threading.get_ident()

    def work(_: int) -> None:
        both.wait(20)
        if threading.get_ident() != caller:
            signal.pthread_kill(caller, signal.SIGINT)
            time.sleep(0.1)
            ended.set()

    # A shell makes background processes ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel_map(work, range(2), 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_the_stop_check_is_called_before_each_item() -> None:
    asked = 0

    def until_three() -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise InterruptedError

    done: list[int] = []

    def work(item: int) -> int:
        done.append(item)
        return item

    with pytest.raises(InterruptedError):
        parallel_map(work, range(100), 1, until_three)
    assert done == [0, 1, 2]
