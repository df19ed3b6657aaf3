"""Run calls that may never return in daemon threads.

They do not use the event loop's threads, which other code needs, and the interpreter does not wait for them at exit.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, TypeVar

from torpor.domain.errors import Unavailable

Answer = TypeVar("Answer")
Call = tuple["Future[Any]", Callable[[], Any]]


def run_in_thread(work: Callable[[], Answer]) -> "Future[Answer]":
    """Start at once. The call cannot be cancelled, because several callers may share its answer."""
    future: Future[Answer] = Future()
    future.set_running_or_notify_cancel()
    Thread(target=_answer, args=(future, work), name="archives-look", daemon=True).start()
    return future


class Threads:
    """A pool of at most `most` threads. A thread ends when no call waits; a cancelled waiting call is not made."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._waiting: deque[Call] = deque()
        self._lock = Lock()
        self._is_closed = False

    def submit(self, work: Callable[[], Answer]) -> "Future[Answer]":
        future: Future[Answer] = Future()
        with self._lock:
            if self._is_closed:
                raise Unavailable("the archives are closed")
            self._waiting.append((future, work))
            if self._running < self._most:
                self._running += 1
                Thread(target=self._work, name="archives", daemon=True).start()
        return future

    def close(self) -> None:
        """Start no further call. Running calls continue."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            future.cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                _answer(future, work)
            del future, work


def _answer(future: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        answer = work()
    except BaseException as error:  # raised where the answer is awaited
        future.set_exception(error)
    else:
        future.set_result(answer)
