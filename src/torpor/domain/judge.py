"""Map an observation to a phase, conditions and an error.

`classify` is a short ladder: deletion comes before errors, errors come before resources. `RULINGS` maps each of its classes
to the phase and the error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from torpor.domain.disk import PAUSED_MEANS
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason
from torpor.domain.records import (
    PAUSED,
    STOPPED_OUTSIDE,
    STOPPED_OUTSIDE_MEANS,
    WAITING,
    Conditions,
    Observation,
    ObservedContainer,
    ObservedVolume,
    Verdict,
    Workspace,
    WorkspaceCondition,
    WorkspaceError,
)
from torpor.domain.states import Operation, Outage, Phase

# Condition reasons that record a first observation, so that a second one can confirm it.
MISSING = "Missing"
UNMARKED = "Unmarked"
WITHOUT_VOLUME = "WithoutVolume"
# The error when a second observation confirms this state of the expected home.
LOSS_MEANS = {MISSING: Reason.DATA_LOST, UNMARKED: Reason.MARKER_UNREADABLE}


class ObservationClass(StrEnum):
    """All observations that lead to the same phase and error."""

    DELETED = "deleted, no resource is left"
    DELETING = "deleted, resources are left"
    DELETING_IN_DOUBT = "deleted, the home to archive is damaged: first observation"
    DELETING_DAMAGED = "deleted, the home to archive is damaged: confirmed"
    IN_DOUBT = "the home is missing, or a container has no volume: first observation"
    ADRIFT_IN_DOUBT = "a container has no volume: confirmed; the home is missing: first observation"
    ADRIFT = "a container has no volume: confirmed"
    HOME_LOST = "the home is missing, or its marker is: confirmed"
    ACCEPTING = "the home gets a new marker"
    RUNNING = "the home is whole, its container is ready"
    STANDBY = "the home is whole, no container is ready"
    ARCHIVED = "no home, an archive"
    PENDING = "no home, no archive"


@dataclass(frozen=True, slots=True)
class ObservedFacts:
    """An observation, compared with what the row expects."""

    home: ObservedVolume | None
    """The volume of the row's generation, whole or not."""
    live: ObservedContainer | None
    volume_present: bool
    volume_ready: bool
    container_ready: bool
    missed: str | None
    """`MISSING` or `UNMARKED`, if the row expects a home and it is not whole."""
    is_confirmed: bool
    """The observation before showed the same `missed`."""

    @property
    def is_adrift(self) -> bool:
        return self.live is not None and not self.volume_present

    @property
    def is_in_doubt(self) -> bool:
        return self.missed is not None and not self.is_confirmed


def judge(workspace: Workspace, seen: Observation, now: datetime) -> Verdict:
    facts = compare(workspace, seen)
    ruling = RULINGS[classify(workspace, facts)]
    error = _error_by(ruling, workspace, facts, now)
    conditions = Conditions(
        volume_ready=_volume_condition(workspace, facts),
        archive_ready=_archive_condition(workspace, error),
        container_ready=_container_condition(seen.container, facts),
        healthy=_health_condition(workspace, error),
    )
    phase = ruling.phase_in_error if _is_terminal(error) else ruling.phase
    return Verdict(
        phase=workspace.phase if phase is None else phase,
        conditions=_with_transition_times(workspace, conditions, now),
        is_certain=ruling.is_certain,
        error=error,
        container_present=facts.live is not None,
        container_ready=facts.container_ready,
        location=facts.live.location if facts.live is not None else None,
        volume_present=facts.volume_present,
        volume_ready=facts.volume_ready,
        home_present=facts.home is not None,
        half_made=frozenset(volume.generation for volume in seen.volumes if volume.marker is None and not volume.is_illegible),
        ended=seen.container.ended
        if seen.container is not None
        and seen.container.generation == workspace.generation
        and seen.container.revision == workspace.revision
        else None,
    )


def whole_homes(workspace_id: str, seen: Observation) -> frozenset[int]:
    """The generations whose volume has its marker."""
    return frozenset(
        volume.generation
        for volume in seen.volumes
        if volume.marker is not None
        and volume.marker.workspace_id == workspace_id
        and volume.marker.generation == volume.generation
    )


def is_missed(verdict: Verdict) -> bool:
    """The observation did not show the expected home as whole."""
    return verdict.conditions.volume_ready.reason in LOSS_MEANS


def compare(workspace: Workspace, seen: Observation) -> ObservedFacts:
    home = next((volume for volume in seen.volumes if volume.generation == workspace.generation), None)
    live = seen.container if seen.container is not None and seen.container.ended is None else None
    volume_ready = workspace.generation in whole_homes(workspace.id, seen)
    missed = None if volume_ready else _missed(workspace, home)
    return ObservedFacts(
        home=home,
        live=live,
        volume_present=bool(seen.volumes),
        volume_ready=volume_ready,
        container_ready=live is not None and live.ready and live.generation == workspace.generation,
        missed=missed,
        is_confirmed=missed is not None and workspace.conditions.volume_ready.reason == missed,
    )


def _missed(workspace: Workspace, home: ObservedVolume | None) -> str | None:
    if not workspace.expects_volume:
        return None
    if home is None or not home.has_home:
        return MISSING
    return None if workspace.operation is Operation.ACCEPTING else UNMARKED


# ── the ladder ────────────────────────────────────────────────────────────────────────────────────────────────────────


def classify(workspace: Workspace, facts: ObservedFacts) -> ObservationClass:
    if workspace.deleted_at is not None:
        # A damaged home is not removed with the rest: it may be complete, behind a bad sector.
        if facts.missed is not None and facts.home is not None and not workspace.purge:
            return ObservationClass.DELETING_IN_DOUBT if facts.is_in_doubt else ObservationClass.DELETING_DAMAGED
        is_anything_left = facts.live is not None or facts.volume_present
        return ObservationClass.DELETING if is_anything_left else ObservationClass.DELETED
    if facts.is_adrift:
        is_seen_twice = workspace.conditions.container_ready.reason == WITHOUT_VOLUME
        if not _is_stopping(workspace, is_seen_twice=is_seen_twice):
            if not is_seen_twice:
                return ObservationClass.IN_DOUBT
            return ObservationClass.ADRIFT_IN_DOUBT if facts.is_in_doubt else ObservationClass.ADRIFT
    if facts.is_in_doubt:
        return ObservationClass.IN_DOUBT
    if facts.missed is not None and not facts.is_adrift:
        return ObservationClass.HOME_LOST
    if _is_being_accepted(workspace, facts):
        return ObservationClass.ACCEPTING
    if facts.volume_ready:
        return ObservationClass.RUNNING if facts.container_ready else ObservationClass.STANDBY
    has_archive = _archive_condition(workspace, _standing_error(workspace, facts)).status
    return ObservationClass.ARCHIVED if has_archive else ObservationClass.PENDING


def _is_being_accepted(workspace: Workspace, facts: ObservedFacts) -> bool:
    return workspace.operation is Operation.ACCEPTING and facts.home is not None and not facts.volume_ready


def _is_stopping(workspace: Workspace, *, is_seen_twice: bool) -> bool:
    """The container without a volume is being stopped already, or a new wish has just asked for that."""
    if workspace.operation in (Operation.STOPPING, Operation.DELETING):
        return True
    error = workspace.error
    if error is None or not error.is_terminal or error.wish_version >= workspace.wish_version:
        return False
    # The error before may be another one (a failed STOPPING, for example); a container that was observed twice must not need
    # one more wish.
    return is_seen_twice or error.reason is Reason.CONTAINER_WITHOUT_VOLUME


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _error_by(ruling: "Ruling", workspace: Workspace, facts: ObservedFacts, now: datetime) -> WorkspaceError | None:
    error = _standing_error(workspace, facts)
    if ruling.found is not None:
        if _is_of_another_loss(error, facts, ruling):
            error = None  # the home has disappeared since, or is back without its marker
        # An error that is still being retried must not hide a loss: the next attempt would fill a new home in its place.
        if not _is_terminal(error):
            return ruling.found(workspace, facts, now)
    if not ruling.is_certain and error is None and _is_terminal(workspace.error):
        # In doubt no error is lifted: phase ERROR always has its error, and the second observation ends both.
        return workspace.error
    return error


def _standing_error(workspace: Workspace, facts: ObservedFacts) -> WorkspaceError | None:
    """The row's error, unless a later wish, a deletion or the observation has lifted it."""
    error = workspace.error
    if error is None:
        return None
    if error.reason in ASKS_HOW_TO_GO_ON and error.context.get("absent") and facts.volume_ready:
        return None
    if error.reason in ASKS_HOW_TO_GO_ON and workspace.deleted_at is None:
        # It ends with a recovery (which the planner carries out), or when the volume is observed again.
        return error
    return None if error.wish_version < workspace.wish_version else error


def _is_of_another_loss(error: WorkspaceError | None, facts: ObservedFacts, ruling: "Ruling") -> bool:
    """Only losses that the judge found count: an archive that was lost during RESTORING is a different loss."""
    return (
        ruling.is_loss
        and error is not None
        and facts.missed is not None
        and bool(error.context.get("absent"))
        and error.reason is not LOSS_MEANS[facts.missed]
    )


def _is_terminal(error: WorkspaceError | None) -> bool:
    return error is not None and error.is_terminal


def _error(workspace: Workspace, reason: Reason, message: str, now: datetime, **context: object) -> WorkspaceError:
    return WorkspaceError(
        reason=reason,
        message=message,
        is_terminal=True,
        operation=workspace.operation,
        error_count=workspace.error_count,
        occurred_at=now,
        wish_version=workspace.wish_version,
        context=context,
    )


def _without_volume(workspace: Workspace, _facts: ObservedFacts, now: datetime) -> WorkspaceError:
    return _error(workspace, Reason.CONTAINER_WITHOUT_VOLUME, "a container runs without its home volume", now)


def _home_lost(workspace: Workspace, facts: ObservedFacts, now: datetime) -> WorkspaceError:
    return _lost(workspace, facts.home, now, then="no archive holds its last state")


def _cannot_archive(workspace: Workspace, facts: ObservedFacts, now: datetime) -> WorkspaceError:
    return _lost(workspace, facts.home, now, then="its last state cannot be archived; undelete or purge the workspace")


def _lost(workspace: Workspace, home: ObservedVolume | None, now: datetime, *, then: str) -> WorkspaceError:
    where: dict[str, object] = {"generation": workspace.generation, "revision": workspace.revision, "absent": True}
    if home is None:
        gone = f"the home volume (generation {workspace.generation}) is missing"
        return _error(workspace, Reason.DATA_LOST, f"{gone}, and {then}", now, archive_key=None, detail=gone, **where)
    if not home.has_home:
        empty = f"the home volume (generation {workspace.generation}) exists, but {home.fault}"
        return _error(workspace, Reason.DATA_LOST, f"{empty}, and {then}", now, archive_key=None, detail=empty, **where)
    there = f"the home exists, but {home.fault}; {then}"
    return _error(workspace, Reason.MARKER_UNREADABLE, there, now, **where, home=home.home_at)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ruling:
    phase: Phase | None
    """None: the row's phase stays."""
    found: Callable[[Workspace, ObservedFacts, datetime], WorkspaceError] | None = None
    """The new error, unless a terminal one stands already."""
    phase_in_error: Phase = Phase.ERROR
    """The phase while a terminal error stands. A deleted workspace keeps its phase."""
    is_certain: bool = True
    """False: no step is taken before a second observation."""

    @property
    def is_loss(self) -> bool:
        return self.found in (_home_lost, _cannot_archive)


_C = ObservationClass

RULINGS: Mapping[ObservationClass, Ruling] = {
    _C.DELETED: Ruling(Phase.DELETED, phase_in_error=Phase.DELETED),
    _C.DELETING: Ruling(Phase.DELETING, phase_in_error=Phase.DELETING),
    _C.DELETING_IN_DOUBT: Ruling(Phase.DELETING, phase_in_error=Phase.DELETING, is_certain=False),
    _C.DELETING_DAMAGED: Ruling(Phase.DELETING, found=_cannot_archive, phase_in_error=Phase.DELETING),
    _C.IN_DOUBT: Ruling(None, is_certain=False),
    _C.ADRIFT_IN_DOUBT: Ruling(Phase.ERROR, found=_without_volume, is_certain=False),
    _C.ADRIFT: Ruling(Phase.ERROR, found=_without_volume),
    _C.HOME_LOST: Ruling(Phase.ERROR, found=_home_lost),
    _C.ACCEPTING: Ruling(None),
    _C.RUNNING: Ruling(Phase.RUNNING),
    _C.STANDBY: Ruling(Phase.STANDBY),
    _C.ARCHIVED: Ruling(Phase.ARCHIVED),
    _C.PENDING: Ruling(Phase.PENDING),
}


# ── conditions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _volume_condition(workspace: Workspace, facts: ObservedFacts) -> WorkspaceCondition:
    if facts.volume_ready:
        return WorkspaceCondition(True, "Ready")
    if facts.missed is not None:
        fault = facts.home.fault if facts.home is not None else "the volume is missing"
        return WorkspaceCondition(False, facts.missed, f"generation {workspace.generation} is expected: {fault}")
    if _is_being_accepted(workspace, facts):
        return WorkspaceCondition(False, "Accepting", "a new marker is being written")
    if facts.home is not None:
        return WorkspaceCondition(False, "HalfMade", "the volume has no marker yet")
    return WorkspaceCondition(False, "Absent")


def _health_condition(workspace: Workspace, error: WorkspaceError | None) -> WorkspaceCondition:
    if error is not None and error.is_terminal:
        return WorkspaceCondition(False, error.reason.value, error.message)
    healthy = workspace.conditions.healthy
    if healthy.outage is Outage.ARCHIVE_STORE and workspace.operation is not Operation.NONE:
        # Only an attempt ends it (`settle`). An outage of the runtime has ended, because the runtime gave this observation.
        return healthy
    return WorkspaceCondition(True, "Healthy")


def _archive_condition(workspace: Workspace, error: WorkspaceError | None) -> WorkspaceCondition:
    if workspace.archive is None:
        return WorkspaceCondition(False, "NoArchive")
    if (
        error is not None
        and error.reason is Reason.DATA_LOST
        and error.context.get("archive_key") == str(workspace.archive.key)
    ):
        return WorkspaceCondition(False, "Lost", error.message)
    return WorkspaceCondition(True, "Proven")


def _container_condition(container: ObservedContainer | None, facts: ObservedFacts) -> WorkspaceCondition:
    if container is None:
        return WorkspaceCondition(False, "Absent")
    if container.ended is not None and container.ended.is_stopped_outside:
        return WorkspaceCondition(False, STOPPED_OUTSIDE, STOPPED_OUTSIDE_MEANS)
    if container.ended is not None:
        return WorkspaceCondition(False, "Ended", f"exit code {container.ended.exit_code}")
    if facts.is_adrift:
        return WorkspaceCondition(False, WITHOUT_VOLUME, "a container runs without a volume")
    if container.is_paused:
        return WorkspaceCondition(facts.container_ready, PAUSED, PAUSED_MEANS)
    if container.waiting and not facts.container_ready:
        return WorkspaceCondition(False, WAITING, container.waiting)
    return (
        WorkspaceCondition(True, "Ready")
        if facts.container_ready
        else WorkspaceCondition(False, "NotReady", "its port does not respond yet")
    )


def _with_transition_times(workspace: Workspace, seen: Conditions, now: datetime) -> Conditions:
    """The same conditions with the time of their last transition; a condition that did not change stays the same object."""

    def since(before: WorkspaceCondition, after: WorkspaceCondition) -> WorkspaceCondition:
        if before.status == after.status and before.outage is after.outage and before.last_transition_time:
            if before.reason == after.reason and before.message == after.message:
                return before
            return replace(after, last_transition_time=before.last_transition_time)
        return replace(after, last_transition_time=now)

    old = workspace.conditions
    return Conditions(
        volume_ready=since(old.volume_ready, seen.volume_ready),
        archive_ready=since(old.archive_ready, seen.archive_ready),
        container_ready=since(old.container_ready, seen.container_ready),
        healthy=since(old.healthy, seen.healthy),
    )
