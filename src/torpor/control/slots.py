"""Hand out a limited number of slots fairly between owners; the rule is `torpor.domain.fairness`."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator

from torpor.domain.fairness import Claim, next_owner


class Slots:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers = itertools.count()
        self._running: Counter[str] = Counter()
        self._last_turns: dict[str, int] = {}
        self._waiting: dict[str, dict[int, asyncio.Future[None]]] = {}
        """Of each owner that waits: its tickets, the oldest first."""

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot and keep it. One that is cancelled while it waits gives back what it may have been given."""
        ticket, given = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[ticket] = given
        self._hand_out()
        try:
            await given
        except asyncio.CancelledError:
            if ticket in self._waiting.get(owner, ()):
                self._leave_queue(owner, ticket)
            else:
                self._give_back(owner)
            raise
        try:
            yield
        finally:
            self._give_back(owner)

    def _hand_out(self) -> None:
        while (owner := self._next_owner()) is not None:
            given = self._leave_queue(owner, self._first_ticket(owner))
            self._running[owner] += 1
            self._last_turns[owner] = next(self._numbers)
            if not given.done():  # one that was cancelled just now gives it back
                given.set_result(None)
        if not self._waiting:  # turns count among those who wait: no owner is remembered for ever
            self._last_turns = {owner: turn for owner, turn in self._last_turns.items() if owner in self._running}

    def _next_owner(self) -> str | None:
        claims = {
            owner: Claim(self._running[owner], self._last_turns.get(owner, -1), self._first_ticket(owner))
            for owner in self._waiting
        }
        return next_owner(claims, taken=self._running.total(), capacity=self._capacity)

    def _first_ticket(self, owner: str) -> int:
        return next(iter(self._waiting[owner]))

    def _leave_queue(self, owner: str, ticket: int) -> "asyncio.Future[None]":
        tickets = self._waiting[owner]
        given = tickets.pop(ticket)
        if not tickets:
            del self._waiting[owner]
        return given

    def _give_back(self, owner: str) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._hand_out()
