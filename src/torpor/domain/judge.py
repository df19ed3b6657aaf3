"""What does that which was seen amount to?

A short ladder, ordered by priority. The order is the rule: deletion before errors, errors before resources.
"""

from dataclasses import replace
from datetime import datetime

from torpor.domain.disk import PAUSED_MEANS
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason
from torpor.domain.records import (
    PAUSED,
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

# Condition reasons that remember a first look, so that a second one can confirm it.
MISSING = "Missing"
UNMARKED = "Unmarked"
WITHOUT_VOLUME = "WithoutVolume"
# What it means when the expected home is confirmed to be so.
LOSS_MEANS = {MISSING: Reason.DATA_LOST, UNMARKED: Reason.MARKER_UNREADABLE}


def judge(workspace: Workspace, seen: Observation, now: datetime) -> Verdict:
    live = seen.container if seen.container is not None and seen.container.ended is None else None
    whole = whole_homes(workspace.id, seen)
    present = frozenset(volume.generation for volume in seen.volumes)
    volume_ready = workspace.generation in whole
    container_ready = live is not None and live.ready and live.generation == workspace.generation

    home = next((volume for volume in seen.volumes if volume.generation == workspace.generation), None)
    missed = _missed(workspace, home, volume_ready=volume_ready)
    is_missing = missed is not None
    is_adrift = live is not None and not present
    missing_confirmed = is_missing and workspace.conditions.volume_ready.reason == missed
    adrift_confirmed = is_adrift and workspace.conditions.container_ready.reason == WITHOUT_VOLUME

    error = _standing_error(workspace, volume_ready=volume_ready)
    # A home that was whole and no longer looks it is not removed with the rest: it may be all there, behind a bad sector.
    is_unsavable = is_missing and workspace.deleted_at is not None and not workspace.purge and workspace.generation in present
    is_told = is_unsavable or (workspace.deleted_at is None and not is_adrift)
    if missing_confirmed and is_told and _is_of_another_loss(error, missed):
        error = None  # the home disappeared altogether since, or came back without its marker: told anew below
    # A failure that is still being retried must not hide a loss: the next attempt would fill a fresh home in its place.
    if not _is_terminal(error):
        if is_unsavable and missing_confirmed:
            error = _lost(workspace, home, now, then="its last state cannot be archived; undelete or purge the workspace")
        elif workspace.deleted_at is None and adrift_confirmed and not _is_stopping(workspace, seen_twice=True):
            error = _error(
                workspace, Reason.CONTAINER_WITHOUT_VOLUME, "a container runs, but its home volume is not there", now
            )
        elif workspace.deleted_at is None and missing_confirmed and not is_adrift:
            error = _lost(workspace, home, now, then="no archive holds its last state")
    in_doubt = (is_unsavable and not missing_confirmed) or (
        workspace.deleted_at is None
        and (
            (is_missing and not missing_confirmed)
            or (is_adrift and not adrift_confirmed and not _is_stopping(workspace, seen_twice=False))
        )
    )
    if in_doubt and error is None and _is_terminal(workspace.error):
        # In doubt nothing is lifted yet: phase ERROR is never without its error, and both go at the second look.
        error = workspace.error

    conditions = _with_transition_times(
        workspace,
        Conditions(
            volume_ready=_volume_condition(workspace, home, missed, volume_ready=volume_ready),
            archive_ready=_archive_condition(workspace, error),
            container_ready=_container_condition(seen.container, container_ready=container_ready, is_adrift=is_adrift),
            healthy=_health_condition(workspace, error),
        ),
        now,
    )
    return Verdict(
        phase=_phase(
            workspace,
            error,
            anything_present=live is not None or bool(present),
            volume_ready=volume_ready,
            container_ready=container_ready,
            archive_ready=conditions.archive_ready.status,
            stays=in_doubt or _is_being_accepted(workspace, home, volume_ready=volume_ready),
        ),
        conditions=conditions,
        is_certain=not in_doubt,
        error=error,
        container_present=live is not None,
        container_ready=container_ready,
        volume_present=bool(present),
        volume_ready=volume_ready,
        home_present=workspace.generation in present,
        half_made=frozenset(volume.generation for volume in seen.volumes if volume.marker is None and not volume.is_illegible),
        ended=seen.container.ended
        if seen.container is not None
        and seen.container.generation == workspace.generation
        and seen.container.revision == workspace.revision
        else None,
    )


def whole_homes(workspace_id: str, seen: Observation) -> frozenset[int]:
    """The generations of which a volume carries its marker."""
    return frozenset(
        volume.generation
        for volume in seen.volumes
        if volume.marker is not None
        and volume.marker.workspace_id == workspace_id
        and volume.marker.generation == volume.generation
    )


def is_missed(verdict: Verdict) -> bool:
    """A home that should be there was not seen whole."""
    return verdict.conditions.volume_ready.reason in LOSS_MEANS


def _missed(workspace: Workspace, home: ObservedVolume | None, *, volume_ready: bool) -> str | None:
    """What is wrong with the home that the row expects: it is not there, or it is there without its marker."""
    if not workspace.expects_volume or volume_ready:
        return None
    if home is None or not home.has_home:
        return MISSING
    return None if workspace.operation is Operation.ACCEPTING else UNMARKED


def _is_being_accepted(workspace: Workspace, home: ObservedVolume | None, *, volume_ready: bool) -> bool:
    return workspace.operation is Operation.ACCEPTING and home is not None and not volume_ready


def _phase(
    workspace: Workspace,
    error: WorkspaceError | None,
    *,
    anything_present: bool,
    volume_ready: bool,
    container_ready: bool,
    archive_ready: bool,
    stays: bool,
) -> Phase:
    if workspace.deleted_at is not None:
        return Phase.DELETING if anything_present else Phase.DELETED
    if _is_terminal(error):
        return Phase.ERROR
    if stays:
        return workspace.phase
    if volume_ready:
        return Phase.RUNNING if container_ready else Phase.STANDBY
    return Phase.ARCHIVED if archive_ready else Phase.PENDING


def _standing_error(workspace: Workspace, *, volume_ready: bool) -> WorkspaceError | None:
    """The row's error, unless a later wish, a deletion or reality itself has lifted it."""
    error = workspace.error
    if error is None:
        return None
    if error.reason in ASKS_HOW_TO_GO_ON and error.context.get("absent") and volume_ready:
        return None
    if error.reason in ASKS_HOW_TO_GO_ON and workspace.deleted_at is None:
        # It asks which way to go on: a recovery says so (the planner carries it out), or the volume is seen again.
        return error
    return None if error.wish_version < workspace.wish_version else error


def _is_of_another_loss(error: WorkspaceError | None, missed: str | None) -> bool:
    """Only among those that the judge found: an archive that was lost in RESTORING is another matter."""
    return (
        error is not None
        and missed is not None
        and bool(error.context.get("absent"))
        and error.reason is not LOSS_MEANS[missed]
    )


def _is_stopping(workspace: Workspace, *, seen_twice: bool) -> bool:
    """The container without volume is already on its way out, or was just ordered there by a new wish."""
    if workspace.operation in (Operation.STOPPING, Operation.DELETING):
        return True
    error = workspace.error
    if error is None or not error.is_terminal or error.wish_version >= workspace.wish_version:
        return False
    # Any error may have stood before it (STOPPING failed, say); what was seen twice by now must not ask for one wish more.
    return seen_twice or error.reason is Reason.CONTAINER_WITHOUT_VOLUME


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


def _lost(workspace: Workspace, home: ObservedVolume | None, now: datetime, *, then: str) -> WorkspaceError:
    where: dict[str, object] = {"generation": workspace.generation, "revision": workspace.revision, "absent": True}
    if home is None:
        gone = f"the home volume (generation {workspace.generation}) is gone"
        return _error(workspace, Reason.DATA_LOST, f"{gone}, and {then}", now, archive_key=None, detail=gone, **where)
    if not home.has_home:
        empty = f"the home volume (generation {workspace.generation}) is there, but {home.fault}"
        return _error(workspace, Reason.DATA_LOST, f"{empty}, and {then}", now, archive_key=None, detail=empty, **where)
    there = f"the home is there, {home.fault}; {then}"
    return _error(workspace, Reason.MARKER_UNREADABLE, there, now, **where, home=home.home_at)


def _volume_condition(
    workspace: Workspace, home: ObservedVolume | None, missed: str | None, *, volume_ready: bool
) -> WorkspaceCondition:
    if volume_ready:
        return WorkspaceCondition(True, "Ready")
    if missed is not None:
        fault = home.fault if home is not None else "it was not seen"
        return WorkspaceCondition(False, missed, f"generation {workspace.generation} is expected: {fault}")
    if _is_being_accepted(workspace, home, volume_ready=volume_ready):
        return WorkspaceCondition(False, "Accepting", "a new marker is being written")
    if home is not None:
        return WorkspaceCondition(False, "HalfMade", "the volume does not carry its marker yet")
    return WorkspaceCondition(False, "Absent")


def _health_condition(workspace: Workspace, error: WorkspaceError | None) -> WorkspaceCondition:
    if error is not None and error.is_terminal:
        return WorkspaceCondition(False, error.reason.value, error.message)
    healthy = workspace.conditions.healthy
    if healthy.outage is Outage.ARCHIVE_STORE and workspace.operation is not Operation.NONE:
        return healthy  # it is over when an attempt says so (`settle`); that of the runtime is over, since it was seen
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


def _container_condition(container: ObservedContainer | None, *, container_ready: bool, is_adrift: bool) -> WorkspaceCondition:
    if container is None:
        return WorkspaceCondition(False, "Absent")
    if container.ended is not None:
        return WorkspaceCondition(False, "Ended", f"exit code {container.ended.exit_code}")
    if is_adrift:
        return WorkspaceCondition(False, WITHOUT_VOLUME, "a container is present without any volume")
    if container.is_paused:
        return WorkspaceCondition(container_ready, PAUSED, PAUSED_MEANS)
    return (
        WorkspaceCondition(True, "Ready")
        if container_ready
        else WorkspaceCondition(False, "NotReady", "its port does not answer yet")
    )


def _with_transition_times(workspace: Workspace, seen: Conditions, now: datetime) -> Conditions:
    """The same conditions with the time of their last transition; one that did not change stays as it was, to the letter."""

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
