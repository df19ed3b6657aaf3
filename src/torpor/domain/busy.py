"""Decide whether the processes of a workspace are at work.

A workspace is busy while a foreground command of a terminal was active within `foreground_ttl`, or while its processes use
more than a part of one core on average. The history is a value, so that every rule here is pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

CPU_WINDOW_S = 60.0
CPU_SHARE = 0.05
"""Of one core."""
LONGEST_COMMAND = 60


@dataclass(frozen=True, slots=True)
class Foreground:
    """The command that has a terminal's keyboard. A shell at its prompt is none."""

    terminal: int
    group: int
    command: str
    cpu_s: float
    quiet_s: float | None
    """Since the last input or output of its terminal; None: not known."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the processes of one container have done so far."""

    template: str
    cpu_s: float
    foregrounds: tuple[Foreground, ...] = ()
    is_paused: bool = False
    """Its processes wait for disk space: they were at work, and continue later."""


@dataclass(frozen=True, slots=True)
class SeenForeground:
    cpu_s: float
    active_at: float


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """The observed work of one container, oldest first. Times are monotonic seconds of the observing process."""

    cpu_s: float | None = None
    """The kernel's count at the last check."""
    used: tuple[tuple[float, float], ...] = ()
    """Pairs of time and CPU seconds used until then, as far back as the window reaches."""
    foregrounds: Mapping[tuple[int, int], SeenForeground] = field(default_factory=lambda: MappingProxyType({}))


def with_observation(history: WorkHistory, work: Work, now: float) -> WorkHistory:
    """Return the history with the current observation."""
    # The count falls when a container was restarted, or when a process without a waiting parent ended.
    more_s = max(0.0, work.cpu_s - history.cpu_s) if history.cpu_s is not None else 0.0
    used_s = (history.used[-1][1] if history.used else 0.0) + more_s
    before = [one for one in history.used if one[0] <= now - CPU_WINDOW_S]
    within = [one for one in history.used if one[0] > now - CPU_WINDOW_S]
    foregrounds = {(one.terminal, one.group): _seen(one, history, now) for one in work.foregrounds}
    return WorkHistory(work.cpu_s, (*before[-1:], *within, (now, used_s)), MappingProxyType(foregrounds))


def busy_with(history: WorkHistory, work: Work, now: float, *, foreground_ttl_s: float, counts_cpu: bool = True) -> str | None:
    """Return what the workspace is busy with, in words for users; None if it is not busy."""
    if work.is_paused:
        return "its processes wait for disk space"
    for one in work.foregrounds:
        seen = history.foregrounds[one.terminal, one.group]
        if now - seen.active_at < foreground_ttl_s:
            return f"the command {_short(one.command)!r} runs in a terminal"
    share = cpu_share(history)
    if counts_cpu and share > CPU_SHARE:
        return f"its programs use {share:.0%} of a core"
    return None


def cpu_share(history: WorkHistory) -> float:
    """Return the part of one core that was used on average. Time before the first check counts as unused."""
    if not history.used:
        return 0.0
    (began, first), (now, last) = history.used[0], history.used[-1]
    return (last - first) / max(CPU_WINDOW_S, now - began)


def _seen(one: Foreground, history: WorkHistory, now: float) -> SeenForeground:
    before = history.foregrounds.get((one.terminal, one.group))
    # A new command is active when it starts.
    active_at = now if before is None or one.cpu_s > before.cpu_s else before.active_at
    if one.quiet_s is not None:
        active_at = max(active_at, now - max(0.0, one.quiet_s))
    return SeenForeground(one.cpu_s, active_at)


def _short(command: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in command).strip()
    return plain if len(plain) <= LONGEST_COMMAND else plain[: LONGEST_COMMAND - 1] + "…"
