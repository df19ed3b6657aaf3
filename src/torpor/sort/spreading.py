"""How is work shared out among threads, and how does it end when one of them fails?"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item], threads: int, go_on: Callable[[], None]) -> list[Result]:
    """What `work` makes of each item, in order. The first thing that goes wrong is raised, once all threads have ended."""
    results: list[Result | None] = [None] * len(items)
    troubles: list[BaseException] = []
    numbers = iter(range(len(items)))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number = None if troubles else next(numbers, None)
            if number is None:
                return
            try:
                go_on()
                results[number] = work(items[number])
            except BaseException as trouble:
                with lock:
                    troubles.append(trouble)

    others = [threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(items)) - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if troubles:
        raise troubles[0]
    return [result for result in results if result is not None]
