"""Decide which workspaces are idle long enough to stop or to archive.

The steps are RUNNING to STANDBY and STANDBY to ARCHIVED. A step needs a workspace that is in its requested state, and no reason
against it. Missing knowledge is such a reason: no workspace is stopped because the bus lost its data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from torpor.domain.before_sleep import sleeps_by_itself
from torpor.domain.records import Workspace
from torpor.domain.states import HealthStatus, Operation, Phase, Stage, Wish
from torpor.domain.status import STATUS_OF_OPERATION, STATUS_OF_PHASE


@dataclass(frozen=True, slots=True)
class Ttls:
    """The idle times of a new workspace."""

    standby_s: int
    """Without use for this long, a running workspace is stopped."""
    archive_s: int
    """Stopped for this long, it is archived."""


@dataclass(frozen=True, slots=True)
class WorkLease:
    """A user keeps a workspace awake, for a reason, until a time."""

    id: str
    workspace_id: str
    reason: str
    created_by: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UseReport:
    """How a workspace is used, according to the bus, and since when the bus has recorded that (`memory_s`)."""

    connections: int
    idle_timer_s: float | None
    memory_s: float
    busy: str = ""
    """What its processes are busy with, in words for users; empty: they are not busy."""


class AwakeReason(StrEnum):
    """What prevents the automatic step."""

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
    """None: not known."""


@dataclass(frozen=True, slots=True)
class GoToSleep:
    to: Wish
    why: str


@dataclass(frozen=True, slots=True)
class IdleFacts:
    workspace: Workspace
    leases: Sequence[WorkLease]
    bus: UseReport | None
    """None: the bus does not answer."""
    lease_s: float
    """How long the bus keeps a connection after its proxy died."""
    now: datetime


# The state that each automatic step requests. The other phases have no automatic step.
STEP_DOWN: Mapping[Phase, Wish] = {Phase.RUNNING: Wish.STANDBY, Phase.STANDBY: Wish.ARCHIVED}


def decide(facts: IdleFacts) -> StayAwake | GoToSleep:
    reasons = reasons_to_stay(facts)
    if reasons:
        return reasons[0]
    workspace = facts.workspace
    to = STEP_DOWN[workspace.phase]
    return GoToSleep(to, WHY_DOWN[to](workspace))


def reasons_to_stay(facts: IdleFacts) -> tuple[StayAwake, ...]:
    """Return all reasons against the automatic step, the most important first."""
    workspace = facts.workspace
    if not has_step_down(workspace):
        status, requested = STATUS_OF_PHASE[workspace.phase], STATUS_OF_PHASE[Phase(workspace.desired_state)]
        words = f"its status is {status}, its requested state is {requested}"
        return (StayAwake(AwakeReason.NO_STEP, words),)
    return tuple(reason for rung in LADDER[STEP_DOWN[workspace.phase]] for reason in rung(facts))


def has_step_down(workspace: Workspace) -> bool:
    """Whether there is an automatic step from here."""
    return workspace.phase in STEP_DOWN and workspace.phase.value == workspace.heads_for.value


def is_about_to_sleep(workspace: Workspace) -> bool:
    """Its automatic stop is requested, and nothing is stopped yet."""
    is_untouched = workspace.operation is Operation.NONE or workspace.stage is Stage.BEFORE_SLEEP
    return is_untouched and sleeps_by_itself(workspace)


def has_outlived_ttl(workspace: Workspace, idle_timer_s: float) -> bool:
    """Whether the idle timer was started when the TTL was longer than it is now."""
    return idle_timer_s > workspace.standby_ttl_s


def _in_trouble(facts: IdleFacts) -> Iterator[StayAwake]:
    # Every wish clears the error, and its owner may not have seen it yet.
    if facts.workspace.error is not None or facts.workspace.health_status is not HealthStatus.OK:
        yield StayAwake(AwakeReason.IN_TROUBLE, "it has an error, and it stays as it is until the error is resolved")


def _under_way(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.workspace.operation is not Operation.NONE:
        yield StayAwake(AwakeReason.UNDER_WAY, f"an operation is in progress: {STATUS_OF_OPERATION[facts.workspace.operation]}")


def _held(facts: IdleFacts) -> Iterator[StayAwake]:
    for lease in facts.leases:
        if lease.expires_at > facts.now:
            yield StayAwake(AwakeReason.HELD, f"{lease.created_by} keeps it awake: {lease.reason}", lease.expires_at)


def _connected(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is not None and facts.bus.connections > 0:
        count = facts.bus.connections
        yield StayAwake(AwakeReason.CONNECTED, "1 connection is in use" if count == 1 else f"{count} connections are in use")


def _busy(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is not None and facts.bus.busy:
        yield StayAwake(AwakeReason.BUSY, facts.bus.busy)


def _idle_timer(facts: IdleFacts) -> Iterator[StayAwake]:
    if facts.bus is not None and facts.bus.idle_timer_s is not None:
        left_s = min(facts.bus.idle_timer_s, facts.workspace.standby_ttl_s)
        until = facts.now + timedelta(seconds=left_s)
        yield StayAwake(AwakeReason.IDLE_TIMER, f"it was used recently; its idle timer ends in {left_s:.0f} s", until)


def _running_lately(facts: IdleFacts) -> Iterator[StayAwake]:
    workspace = facts.workspace
    last = max(workspace.last_access_at, workspace.phase_changed_at, workspace.wished_at)
    until = last + timedelta(seconds=workspace.standby_ttl_s)
    if facts.now < until:
        words = f"it was used, requested or started less than {workspace.standby_ttl_s} s ago"
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
        yield StayAwake(AwakeReason.BUS_OUT, "it is not known whether it is in use, because the bus (Redis) does not respond")


def _bus_forgot(facts: IdleFacts) -> Iterator[StayAwake]:
    # Every open connection is reported again within a lease, and a use before the loss counts until the TTL has passed.
    needed_s = facts.workspace.standby_ttl_s + facts.lease_s
    if facts.bus is not None and facts.bus.memory_s <= needed_s:
        words = f"use has been recorded for only {facts.bus.memory_s:.0f} s, which is too short to tell whether it is in use"
        yield StayAwake(AwakeReason.BUS_FORGOT, words, facts.now + timedelta(seconds=needed_s - facts.bus.memory_s))


AwakeCheck: TypeAlias = Callable[[IdleFacts], Iterator[StayAwake]]

LADDER: Mapping[Wish, tuple[AwakeCheck, ...]] = {
    Wish.STANDBY: (_in_trouble, _under_way, _held, _connected, _busy, _idle_timer, _running_lately, _bus_out, _bus_forgot),
    # A stopped workspace has no connections.
    Wish.ARCHIVED: (_in_trouble, _under_way, _standing_by_lately),
}

WHY_DOWN: Mapping[Wish, Callable[[Workspace], str]] = {
    Wish.STANDBY: lambda workspace: f"it was not used for {workspace.standby_ttl_s} s",
    Wish.ARCHIVED: lambda workspace: f"it was stopped and not used for {workspace.archive_ttl_s} s",
}
