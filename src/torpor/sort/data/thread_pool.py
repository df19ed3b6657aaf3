"""How is work shared out among threads, and how does it end when one of them fails?"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 8
"""Beyond it memory is the limit, not threads."""


def default_threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def _always() -> None:
    return


def parallel_map(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int, go_on: Callable[[], None] = _always
) -> list[Result]:
    """What `work` makes of each item, in order. The first thing that goes wrong is raised, once all threads have ended.

    `go_on` is called before each item, and raises if there is to be an end.
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
        # An interruption finds this thread wherever it stands, and the others must not work on behind its back. Whom a join
        # was waiting for when it was interrupted, Python takes for ended.
        troubles.append(trouble)
        for thread, over in zip(others, overs, strict=True):
            if thread.ident is not None:
                over.wait()
    if troubles:
        raise troubles[0]
    return [results[number] for number in range(len(items))]
