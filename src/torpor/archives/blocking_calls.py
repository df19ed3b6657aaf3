"""Where does a call wait that may never come back?

In a thread that nobody has to wait for: neither the event loop's own threads, which others need, nor the interpreter's end.
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
    """Begun at once, and not to be cancelled: those who share the answer cannot take it from each other."""
    future: Future[Answer] = Future()
    future.set_running_or_notify_cancel()
    Thread(target=_answer, args=(future, work), name="archives-look", daemon=True).start()
    return future


class Threads:
    """At most so many threads, each for as long as there is work; a call that is cancelled before its turn is not made."""

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
        """Nothing begins any more. What has begun is left to itself."""
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
    except BaseException as error:  # whoever waits for the answer judges it
        future.set_exception(error)
    else:
        future.set_result(answer)
