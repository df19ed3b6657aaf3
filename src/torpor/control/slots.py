"""Decide how many effects of each kind run at once, and share the slots between owners (`torpor.domain.fairness`).

Archives, copies, restores, commands of users and all other effects have separate slots: no restore or start waits for an
archive.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum

from torpor.domain.effects import (
    AcceptHome,
    BeforeSleep,
    CopyArchive,
    DropHome,
    Effect,
    MakeHome,
    Pack,
    PackEmpty,
    Remove,
    Restore,
    Start,
    Stop,
)
from torpor.domain.fairness import Claim, next_owner


class SlotPool(StrEnum):
    """Effects that share slots."""

    ARCHIVES = "archives"
    COPIES = "copies"
    RESTORES = "restores"
    COMMANDS = "commands"
    QUICK = "quick"


POOL_OF: Mapping[type[Effect], SlotPool] = {
    Pack: SlotPool.ARCHIVES,
    CopyArchive: SlotPool.COPIES,
    Restore: SlotPool.RESTORES,
    BeforeSleep: SlotPool.COMMANDS,
    MakeHome: SlotPool.QUICK,
    AcceptHome: SlotPool.QUICK,
    Start: SlotPool.QUICK,
    Stop: SlotPool.QUICK,
    PackEmpty: SlotPool.QUICK,
    DropHome: SlotPool.QUICK,
    Remove: SlotPool.QUICK,
}
# A command works inside its workspace; here its effect only waits.
SLOTS_PER_PARALLEL: Mapping[SlotPool, int] = {
    SlotPool.ARCHIVES: 1,
    SlotPool.RESTORES: 1,
    SlotPool.COMMANDS: 16,
    SlotPool.QUICK: 4,
}
COPY_SLOTS = 4
"""A copy is read back in this process, so there are few at once, also with a large `reconciler_parallel`."""


def capacity(pool: SlotPool, parallel: int) -> int:
    return COPY_SLOTS if pool is SlotPool.COPIES else SLOTS_PER_PARALLEL[pool] * parallel


class Slots:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers = itertools.count()
        self._running: Counter[str] = Counter()
        self._last_turns: dict[str, int] = {}
        self._waiting: dict[str, dict[int, asyncio.Future[None]]] = {}
        """The tickets of each waiting owner, the oldest first."""

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot and keep it during the block. A waiter that is canceled returns a slot that it may have got."""
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
            if not given.done():  # a waiter that was just canceled returns the slot
                given.set_result(None)
        if not self._waiting:  # turns matter only while owners wait, so the memory stays bounded
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
