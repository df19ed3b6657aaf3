"""Who has been idle long enough to go down a step?

From RUNNING to STANDBY, from STANDBY to ARCHIVED, and only where that is what is wished and nothing speaks against it. What
is not known speaks against it: nobody is put to sleep because something was forgotten.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from torpor.domain.before_sleep import sleeps_by_itself
from torpor.domain.records import Workspace
from torpor.domain.states import HealthStatus, Operation, Phase, Stage, Wish


@dataclass(frozen=True, slots=True)
class WorkLease:
    """Somebody keeps a workspace awake, for a reason, until a time."""

    id: str
    workspace_id: str
    reason: str
    created_by: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UseReport:
    """How a workspace is used, as far as the bus remembers, and how far that is."""

    connections: int
    idle_timer_s: float | None
    memory_s: float
    busy: str = ""
    """What its processes are busy with, in words for people; empty: with nothing."""


class AwakeReason(StrEnum):
    """What keeps a workspace where it is."""

    NO_STEP = "NO_STEP"
    IN_TROUBLE = "IN_TROUBLE"
    UNDER_WAY = "UNDER_WAY"
    HELD = "HELD"
    CONNECTED = "CONNECTED"
    BUSY = "BUSY"
    IDLE_TIMER = "IDLE_TIMER"
    USED_LATELY = "USED_LATELY"
    BUS_OUT = "BUS_OUT"
    BUS_FORGOT = "BUS_FORGOT"


@dataclass(frozen=True, slots=True)
class StayAwake:
    why: AwakeReason
    words: str
    until: datetime | None = None
    """None: nobody can tell."""


@dataclass(frozen=True, slots=True)
class GoToSleep:
    to: Wish
    why: str


@dataclass(frozen=True, slots=True)
class IdleFacts:
    workspace: Workspace
    leases: Sequence[WorkLease]
    bus: UseReport | None
    """None: it cannot be asked."""
    lease_s: float
    """How long a connection is remembered whose proxy died."""
    now: datetime


# Where each step down leads. The others have none: ARCHIVED is the bottom, and the rest stand outside the order.
STEP_DOWN: Mapping[Phase, Wish] = {Phase.RUNNING: Wish.STANDBY, Phase.STANDBY: Wish.ARCHIVED}


def decide(facts: IdleFacts) -> StayAwake | GoToSleep:
    reasons = reasons_to_stay(facts)
    if reasons:
        return reasons[0]
    workspace = facts.workspace
    to = STEP_DOWN[workspace.phase]
    return GoToSleep(to, WHY_DOWN[to](workspace))


def reasons_to_stay(facts: IdleFacts) -> tuple[StayAwake, ...]:
    """All of them, the weightiest first; none: it goes down."""
    workspace = facts.workspace
    if not has_step_down(workspace):
        return (StayAwake(AwakeReason.NO_STEP, f"it is {workspace.phase}, and {workspace.desired_state} is wished"),)
    return tuple(reason for rung in LADDER[STEP_DOWN[workspace.phase]] for reason in rung(facts))


def has_step_down(workspace: Workspace) -> bool:
    """Whether there is a step that time alone may take."""
    return workspace.phase in STEP_DOWN and workspace.phase.value == workspace.desired_state.value


def is_about_to_sleep(workspace: Workspace) -> bool:
    """It is to be stopped because it was not used, and nothing of it has been stopped yet."""
    is_untouched = workspace.operation is Operation.NONE or workspace.stage is Stage.BEFORE_SLEEP
    return is_untouched and sleeps_by_itself(workspace)


def has_outlived_ttl(workspace: Workspace, idle_timer_s: float) -> bool:
    """Whether an idle timer was started when the TTL was longer than it is now."""
    return idle_timer_s > workspace.standby_ttl_s


def _in_trouble(facts: IdleFacts) -> Iterator[StayAwake]:
    # A wish, even this one, would clear the error before anybody has seen it.
    if facts.workspace.error is not None or facts.workspace.health_status is not HealthStatus.OK:
        yield StayAwake(AwakeReason.IN_TROUBLE, "something is wrong with it, and it is left as it is until that is settled")


def _under_way(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.workspace.operation is not Operation.NONE:
        yield StayAwake(AwakeReason.UNDER_WAY, f"{facts.workspace.operation} is under way")


def _held(facts: IdleFacts) -> Iterator[StayAwake]:
    for lease in facts.leases:
        if lease.expires_at > facts.now:
            yield StayAwake(AwakeReason.HELD, f"{lease.created_by} holds it awake: {lease.reason}", lease.expires_at)


def _connected(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is not None and facts.bus.connections > 0:
        count = facts.bus.connections
        yield StayAwake(
            AwakeReason.CONNECTED, "a connection to it is in use" if count == 1 else f"{count} connections are in use"
        )


def _busy(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is not None and facts.bus.busy:
        yield StayAwake(AwakeReason.BUSY, facts.bus.busy)


def _idle_timer(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is not None and facts.bus.idle_timer_s is not None:
        left_s = min(facts.bus.idle_timer_s, facts.workspace.standby_ttl_s)
        until = facts.now + timedelta(seconds=left_s)
        yield StayAwake(AwakeReason.IDLE_TIMER, f"it was used lately; its idle timer runs for another {left_s:.0f} s", until)


def _running_lately(facts: IdleFacts) -> Iterator[StayAwake]:
    workspace = facts.workspace
    last = max(workspace.last_access_at, workspace.phase_changed_at, workspace.wished_at)
    until = last + timedelta(seconds=workspace.standby_ttl_s)
    if facts.now < until:
        words = f"it was used, wished or started less than {workspace.standby_ttl_s} s ago"
        yield StayAwake(AwakeReason.USED_LATELY, words, until)


def _standing_by_lately(facts: IdleFacts) -> Iterator[StayAwake]:
    workspace = facts.workspace
    last = max(workspace.last_access_at, workspace.phase_changed_at)
    until = last + timedelta(seconds=workspace.archive_ttl_s)
    if facts.now <= until:
        words = f"it was used or stopped less than {workspace.archive_ttl_s} s ago"
        yield StayAwake(AwakeReason.USED_LATELY, words, until)


def _bus_out(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is None:
        yield StayAwake(AwakeReason.BUS_OUT, "whether somebody uses it cannot be asked just now, because the bus is out")


def _bus_forgot(facts: IdleFacts) -> Iterator[StayAwake]:
    # Whoever is connected says so again within a lease, and what was used before the loss is not long ago before the TTL.
    needed_s = facts.workspace.standby_ttl_s + facts.lease_s
    if facts.bus is not None and facts.bus.memory_s <= needed_s:
        words = f"the bus remembers only the last {facts.bus.memory_s:.0f} s, and that is too little to tell whether it is used"
        yield StayAwake(AwakeReason.BUS_FORGOT, words, facts.now + timedelta(seconds=needed_s - facts.bus.memory_s))


Rung: TypeAlias = Callable[[IdleFacts], Iterator[StayAwake]]

LADDER: Mapping[Wish, tuple[Rung, ...]] = {
    Wish.STANDBY: (_in_trouble, _under_way, _held, _connected, _busy, _idle_timer, _running_lately, _bus_out, _bus_forgot),
    # Nothing runs there, so nobody can be connected to it.
    Wish.ARCHIVED: (_in_trouble, _under_way, _standing_by_lately),
}

WHY_DOWN: Mapping[Wish, Callable[[Workspace], str]] = {
    Wish.STANDBY: lambda workspace: f"nobody used it for {workspace.standby_ttl_s} s",
    Wish.ARCHIVED: lambda workspace: f"it had been standing by, unused, for {workspace.archive_ttl_s} s",
}
