"""Decide which owner gets the next slot.

One owner never has more than half of the slots, so that another owner's effect need not wait for the end of one that takes
minutes. A free slot goes to the waiting owner with the fewest slots, and among those to the one that got its last slot longest
ago: while an owner without a slot waits, each other owner gets at most one more, however many of its effects wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """An owner with an effect that waits for a slot."""

    running: int
    """How many slots it has."""
    last_turn: int
    """Turns are counted; -1: it got none so far."""
    ticket: int
    """Of its effect that waits longest: tickets are numbered in the order in which they were drawn."""


def most_of_one_owner(capacity: int) -> int:
    """Half of the slots, rounded up: all of them where there is only one."""
    return (capacity + 1) // 2


def next_owner(claims: Mapping[str, Claim], *, taken: int, capacity: int) -> str | None:
    """Return the owner who gets the next slot; None if no slot is free, or no waiting owner may have it."""
    if taken >= capacity:
        return None
    most = most_of_one_owner(capacity)
    entitled = [owner for owner, claim in claims.items() if claim.running < most]
    return min(entitled, key=lambda owner: _rank(claims[owner]), default=None)


def _rank(claim: Claim) -> tuple[int, int, int]:
    return claim.running, claim.last_turn, claim.ticket
