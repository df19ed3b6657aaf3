"""Define how a state reacts to an event: it takes effect, it is known already, or it is refused."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from torpor.sort.errors import SortRefused


class Reaction(StrEnum):
    LEGAL = "legal"
    """It takes effect."""
    REPEATED = "repeated"
    """It is acknowledged and has no effect, because it was known or no longer matters."""
    REFUSED = "refused"
    """It is not allowed in this state. The sender gets an error that names the state."""


class WrongState(SortRefused):
    """A request that the present state does not allow."""

    def __init__(self, message: str) -> None:
        super().__init__("wrong_state", message)


class IllegalTransition(WrongState):
    def __init__(self, source: str, target: str) -> None:
        super().__init__(f"invalid state transition: {source} -> {target}")


State = TypeVar("State", bound=StrEnum)
Row = Mapping[State, Reaction]


def row(
    way: tuple[State, ...], legal: set[State], *, failed: tuple[State, Reaction], after: Reaction = Reaction.REPEATED
) -> Row[State]:
    """Legal in some states, refused in the states before the first of them, and `after` in the states behind it."""
    first = min(way.index(state) for state in legal)
    cells = {state: Reaction.REFUSED if place < first else after for place, state in enumerate(way)}
    return {**cells, **dict.fromkeys(legal, Reaction.LEGAL), failed[0]: failed[1]}
