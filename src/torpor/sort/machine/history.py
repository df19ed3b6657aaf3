"""Record the transitions of a machine, and add up the time in each state."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transition:
    source: str
    target: str
    at: float
    """Seconds since 1970."""
    reason: str
    attempt: int = 0


def monotonic_time(history: Sequence[Transition], now: float) -> float:
    """Now, but not before the last transition: the clock may have been set back between two processes."""
    return max(now, history[-1].at) if history else now


def durations(history: Sequence[Transition], now: float) -> dict[str, float]:
    """Seconds spent in each state that was entered, over all attempts. The present state counts until now."""
    spent: dict[str, float] = {}
    ends = [*(left.at for left in history[1:]), now]
    for entered, until in zip(history, ends, strict=False):
        spent[entered.target] = spent.get(entered.target, 0.0) + max(0.0, until - entered.at)
    return spent


def lines(history: Sequence[Transition]) -> list[str]:
    """Text lines: each transition with its time since the first."""
    return [
        f"[+{transition.at - history[0].at:.3f} s] {transition.source} -> {transition.target}: {transition.reason}"
        + (f" (attempt {transition.attempt})" if transition.attempt else "")
        for transition in history
    ]
