"""Limit how many streams one user has open in this process, so that one user cannot take them all."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from torpor.domain.errors import Refused
from torpor.store.user_store import User


class StreamLimit:
    """`streams`: what they are, in words for users."""

    def __init__(self, most: int, streams: str, *, retry_after_s: int) -> None:
        self._most = most
        self._streams = streams
        self._retry_after_s = retry_after_s
        self._open: Counter[str] = Counter()

    def admit(self, user: User) -> None:
        """Refused `too_many_streams` if the user has as many as allowed. Call `release` at the end."""
        if self._open[user.id] >= self._most:
            message = f"{user.username} has {self._most} {self._streams} open already; close some of them"
            raise Refused("too_many_streams", message, retry_after_s=self._retry_after_s)
        self._open[user.id] += 1

    def release(self, user: User) -> None:
        self._open[user.id] -= 1
        if not self._open[user.id]:
            del self._open[user.id]

    @contextlib.contextmanager
    def of(self, user: User) -> Iterator[None]:
        self.admit(user)
        try:
            yield
        finally:
            self.release(user)
