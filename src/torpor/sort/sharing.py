"""Which thread does the next piece of work, and what becomes of the others when one fails?"""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import count
from threading import Event

MOST_THREADS = 8
"""Beyond it memory is the limit, not threads."""


def default_threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def share(pieces: int, threads: int, prepare: Callable[[], Callable[[int], None]]) -> None:
    """Each thread prepares once, which gives what it calls for each piece that it takes; the first failure ends all."""
    following = count()
    ended = Event()

    def work() -> None:
        do = prepare()
        # next() on a count is one step for all threads, so no piece is taken twice.
        while not ended.is_set() and (piece := next(following)) < pieces:
            do(piece)

    with ThreadPoolExecutor(max_workers=max(1, min(threads, pieces)), thread_name_prefix="sharing") as pool:
        working = [pool.submit(work) for _ in range(max(1, min(threads, pieces)))]
        try:
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            ended.set()
    for one in working:
        one.result()
