"""Run work in several threads, and end all of them when one fails."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 8
"""With more threads, memory is the limit."""


def default_threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def _always() -> None:
    return


def parallel_map(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int, go_on: Callable[[], None] = _always
) -> list[Result]:
    """The results of `work` for each item, in order. The first error is raised after all threads have ended.

    `go_on` is called before each item, and raises to stop.
    """
    results: dict[int, Result] = {}
    troubles: list[BaseException] = []
    numbers = iter(range(len(items)))
    lock = threading.Lock()

    def run(over: threading.Event) -> None:
        try:
            while not troubles:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                go_on()
                results[number] = work(items[number])
        except BaseException as trouble:
            troubles.append(trouble)
        finally:
            over.set()

    overs = [threading.Event() for _ in range(min(threads, len(items)) - 1)]
    others = [threading.Thread(target=run, args=(over,), daemon=True) for over in overs]
    try:
        for thread in others:
            thread.start()
        run(threading.Event())
        for thread in others:
            thread.join()
    except BaseException as trouble:
        # An interruption can reach this thread anywhere, and the other threads must not go on. Python regards a thread as ended
        # if the join for it was interrupted, so events are used instead.
        troubles.append(trouble)
        for thread, over in zip(others, overs, strict=True):
            if thread.ident is not None:
                over.wait()
    if troubles:
        raise troubles[0]
    return [results[number] for number in range(len(items))]
