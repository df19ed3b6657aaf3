"""Define the tables of operations: which one comes next, when it is done, and when it may be canceled.

Every cell is filled; tests prove that the tables are total.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from torpor.domain.records import Verdict, Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish


class DetailedPhase(StrEnum):
    """A phase with the other facts that decide the next operation."""

    PENDING = "PENDING"
    PENDING_COPY = "PENDING, its home is a copy of an archive of another workspace"
    ARCHIVED = "ARCHIVED"
    ADRIFT = "PENDING or ARCHIVED, container present"
    STANDBY = "STANDBY, no container present"
    STANDBY_OCCUPIED = "STANDBY, container present but not ready"
    RUNNING = "RUNNING"
    ERROR = "ERROR"
    DELETING_OCCUPIED = "DELETING, container present"
    DELETING_UNSAVED = "DELETING, ready volume not archived and not purged"
    DELETING = "DELETING, nothing left to save"
    DELETED = "DELETED"


def detailed_phase(workspace: Workspace, verdict: Verdict) -> DetailedPhase:
    match verdict.phase:
        case Phase.PENDING | Phase.ARCHIVED if verdict.container_present:
            return DetailedPhase.ADRIFT
        case Phase.PENDING if workspace.awaits_copy:
            return DetailedPhase.PENDING_COPY
        case Phase.STANDBY if verdict.container_present:
            return DetailedPhase.STANDBY_OCCUPIED
        case Phase.DELETING if verdict.container_present:
            return DetailedPhase.DELETING_OCCUPIED
        case Phase.DELETING if verdict.volume_ready and not workspace.is_archived and not workspace.purge:
            return DetailedPhase.DELETING_UNSAVED
        case phase:
            # By name: each phase has a member with its name.
            return DetailedPhase[phase.name]


def _row(*, ARCHIVED: Operation, STANDBY: Operation, RUNNING: Operation, DELETED: Operation) -> Mapping[Wish, Operation]:  # noqa: N803 - the columns are the wishes
    return {Wish.ARCHIVED: ARCHIVED, Wish.STANDBY: STANDBY, Wish.RUNNING: RUNNING, Wish.DELETED: DELETED}


def _same(operation: Operation) -> Mapping[Wish, Operation]:
    return dict.fromkeys(Wish, operation)


_O = Operation

# The operation to begin, by detailed phase and requested state.
NEXT_OPERATION: Mapping[DetailedPhase, Mapping[Wish, Operation]] = {
    DetailedPhase.PENDING: _row(
        ARCHIVED=_O.CREATE_EMPTY_ARCHIVE, STANDBY=_O.PROVISIONING, RUNNING=_O.PROVISIONING, DELETED=_O.DELETING
    ),
    DetailedPhase.PENDING_COPY: _row(ARCHIVED=_O.COPYING, STANDBY=_O.COPYING, RUNNING=_O.COPYING, DELETED=_O.DELETING),
    DetailedPhase.ARCHIVED: _row(ARCHIVED=_O.NONE, STANDBY=_O.RESTORING, RUNNING=_O.RESTORING, DELETED=_O.DELETING),
    # A container without a whole home is always stopped first; it was started from outside, or its home was lost.
    DetailedPhase.ADRIFT: _same(_O.STOPPING),
    DetailedPhase.STANDBY: _row(ARCHIVED=_O.ARCHIVING, STANDBY=_O.NONE, RUNNING=_O.STARTING, DELETED=_O.ARCHIVING),
    DetailedPhase.STANDBY_OCCUPIED: _row(ARCHIVED=_O.STOPPING, STANDBY=_O.STOPPING, RUNNING=_O.STARTING, DELETED=_O.STOPPING),
    DetailedPhase.RUNNING: _row(ARCHIVED=_O.STOPPING, STANDBY=_O.STOPPING, RUNNING=_O.NONE, DELETED=_O.STOPPING),
    # A new wish or a recovery clears the error; then the observed resources decide.
    DetailedPhase.ERROR: _same(_O.NONE),
    # A workspace with deleted_at has the wish DELETED; the other cells are never used.
    DetailedPhase.DELETING_OCCUPIED: _row(ARCHIVED=_O.NONE, STANDBY=_O.NONE, RUNNING=_O.NONE, DELETED=_O.STOPPING),
    DetailedPhase.DELETING_UNSAVED: _row(ARCHIVED=_O.NONE, STANDBY=_O.NONE, RUNNING=_O.NONE, DELETED=_O.ARCHIVING),
    DetailedPhase.DELETING: _row(ARCHIVED=_O.NONE, STANDBY=_O.NONE, RUNNING=_O.NONE, DELETED=_O.DELETING),
    DetailedPhase.DELETED: _same(_O.NONE),
}


# Here no home exists that an older archive could replace before it is archived.
REPLACES_HOME_IN = frozenset({DetailedPhase.PENDING, DetailedPhase.ARCHIVED})


# An operation is done when the observation shows it.
DONE_WHEN: Mapping[Operation, Callable[[Workspace, Verdict], bool]] = {
    _O.NONE: lambda _workspace, _verdict: True,
    _O.PROVISIONING: lambda _workspace, verdict: verdict.volume_ready,
    _O.RESTORING: lambda _workspace, verdict: verdict.volume_ready,
    _O.ACCEPTING: lambda _workspace, verdict: verdict.volume_ready,
    _O.STARTING: lambda _workspace, verdict: verdict.volume_ready and verdict.container_ready,
    # Not "not ready": a process that does not answer may still write.
    _O.STOPPING: lambda _workspace, verdict: not verdict.container_present,
    _O.ARCHIVING: lambda workspace, verdict: workspace.is_archived and not verdict.home_present,
    _O.COPYING: lambda workspace, _verdict: workspace.is_archived,
    _O.CREATE_EMPTY_ARCHIVE: lambda workspace, _verdict: workspace.is_archived,
    _O.DELETING: lambda _workspace, verdict: not verdict.container_present and not verdict.volume_present,
}


# The same as words, for the error of an operation that was executed but is not observed as done.
EXPECTS: Mapping[Operation, Mapping[str, bool]] = {
    _O.NONE: {},
    _O.PROVISIONING: {"volume_ready": True},
    _O.RESTORING: {"volume_ready": True},
    _O.ACCEPTING: {"volume_ready": True},
    _O.STARTING: {"volume_ready": True, "container_ready": True},
    _O.STOPPING: {"container_present": False},
    _O.ARCHIVING: {"archived": True, "home_present": False},
    _O.COPYING: {"archived": True},
    _O.CREATE_EMPTY_ARCHIVE: {"archived": True},
    _O.DELETING: {"container_present": False, "volume_present": False},
}


def _home_is_lost(workspace: Workspace, verdict: Verdict) -> bool:
    return workspace.expects_volume and not verdict.volume_ready


# The precondition of an operation. If it no longer holds, the operation is dropped and the table of operations decides again.
# (The judge reports a lost home as DataLost, but not for a deleted workspace.)
STANDS_ON: Mapping[Operation, Callable[[Workspace, Verdict], bool]] = {
    _O.NONE: lambda _workspace, _verdict: True,
    _O.PROVISIONING: lambda workspace, verdict: not _home_is_lost(workspace, verdict),
    _O.RESTORING: lambda workspace, verdict: workspace.archive is not None and not _home_is_lost(workspace, verdict),
    _O.ACCEPTING: lambda _workspace, verdict: verdict.home_present,
    # A start needs a revision that no archive holds.
    _O.STARTING: lambda workspace, verdict: verdict.volume_ready and not workspace.is_archived,
    _O.STOPPING: lambda _workspace, _verdict: True,
    # Not while a container runs, which may write.
    _O.ARCHIVING: lambda workspace, verdict: not verdict.container_present and (verdict.volume_ready or workspace.is_archived),
    # Otherwise the copy or the empty archive would replace a home that appeared late.
    _O.COPYING: lambda workspace, verdict: (
        (workspace.awaits_copy or workspace.is_archived) and not verdict.volume_ready and not workspace.expects_volume
    ),
    _O.CREATE_EMPTY_ARCHIVE: lambda workspace, verdict: not verdict.volume_ready and not workspace.expects_volume,
    # A home that was not observed when DELETING began, or was opened since, is not archived; after undelete nothing is removed.
    _O.DELETING: lambda workspace, verdict: (
        workspace.deleted_at is not None
        and (
            workspace.purge
            or not verdict.home_present
            or (workspace.is_archived and not verdict.container_present)
            or not (verdict.volume_ready or workspace.home_seen)
        )
    ),
}


class SafePoint(StrEnum):
    """When an operation in progress may be canceled for a wish."""

    NEVER = "runs to its end"
    AT_ONCE = "at once"
    DURING_BEFORE_SLEEP = "while before_sleep runs"
    UNTIL_ARCHIVED = "until archive_key is stored"
    UNTIL_ARCHIVED_IF_PURGED = "until archive_key is stored, when purged"


_T = SafePoint

# The safe points. ARCHIVING also serves the wish DELETED (the archive is kept for undelete), unless the workspace is purged.
TURNS: Mapping[Operation, Mapping[Wish, SafePoint]] = {
    _O.NONE: dict.fromkeys(Wish, _T.NEVER),
    _O.PROVISIONING: dict.fromkeys(Wish, _T.NEVER),
    _O.RESTORING: {Wish.RUNNING: _T.NEVER, Wish.STANDBY: _T.NEVER, Wish.ARCHIVED: _T.NEVER, Wish.DELETED: _T.AT_ONCE},
    # The home of a deleted workspace is accepted first, so that its last state can be archived.
    _O.ACCEPTING: {
        Wish.RUNNING: _T.NEVER,
        Wish.STANDBY: _T.NEVER,
        Wish.ARCHIVED: _T.NEVER,
        Wish.DELETED: _T.UNTIL_ARCHIVED_IF_PURGED,
    },
    _O.STARTING: {Wish.RUNNING: _T.NEVER, Wish.STANDBY: _T.AT_ONCE, Wish.ARCHIVED: _T.AT_ONCE, Wish.DELETED: _T.AT_ONCE},
    # Until the stop itself begins, a new wish RUNNING keeps the workspace running.
    _O.STOPPING: {
        Wish.RUNNING: _T.DURING_BEFORE_SLEEP,
        Wish.STANDBY: _T.NEVER,
        Wish.ARCHIVED: _T.NEVER,
        Wish.DELETED: _T.NEVER,
    },
    _O.ARCHIVING: {
        Wish.RUNNING: _T.UNTIL_ARCHIVED,
        Wish.STANDBY: _T.UNTIL_ARCHIVED,
        Wish.ARCHIVED: _T.NEVER,
        Wish.DELETED: _T.UNTIL_ARCHIVED_IF_PURGED,
    },
    _O.COPYING: {Wish.RUNNING: _T.NEVER, Wish.STANDBY: _T.NEVER, Wish.ARCHIVED: _T.NEVER, Wish.DELETED: _T.AT_ONCE},
    _O.CREATE_EMPTY_ARCHIVE: dict.fromkeys(Wish, _T.NEVER),
    _O.DELETING: dict.fromkeys(Wish, _T.NEVER),
}


def may_cancel(workspace: Workspace) -> bool:
    """Whether the wish no longer matches the operation in progress, at a point where it is safe to cancel."""
    match TURNS[workspace.operation][workspace.heads_for]:
        case SafePoint.NEVER:
            return False
        case SafePoint.AT_ONCE:
            return True
        case SafePoint.DURING_BEFORE_SLEEP:
            return workspace.stage is Stage.BEFORE_SLEEP
        case SafePoint.UNTIL_ARCHIVED:
            return not workspace.is_archived
        case SafePoint.UNTIL_ARCHIVED_IF_PURGED:
            return workspace.purge and not workspace.is_archived


# Operations whose attempts each fill a new volume, so that a late writer of an earlier attempt does not touch the current one.
MAKES_GENERATION = frozenset({_O.PROVISIONING, _O.RESTORING})
