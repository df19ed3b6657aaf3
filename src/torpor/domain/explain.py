"""Explain the status of a workspace: why it is so, what happens next, and what its user can do.

Possible actions are verbs: the API and the command line word them (`api/action_words.py`).
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from torpor.domain.disk import size
from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason
from torpor.domain.home_size import size_excess
from torpor.domain.idle import STEP_DOWN, WHY_DOWN, StayAwake
from torpor.domain.records import PAUSED, STOPPED_OUTSIDE, WAITING, Workspace, WorkspaceError
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin
from torpor.domain.status import STATUS_OF_OPERATION, STATUS_OF_PHASE
from torpor.domain.transitions import may_cancel


class ActionVerb(StrEnum):
    """What a user can do with a workspace."""

    START = "START"
    STOP = "STOP"
    ARCHIVE = "ARCHIVE"
    KEEP_AWAKE = "KEEP_AWAKE"
    RETRY = "RETRY"
    """Clear the error and try again."""
    ACCEPT_HOME = "ACCEPT_HOME"
    """Continue with a home whose marker cannot be read."""
    RESTORE_ARCHIVE = "RESTORE_ARCHIVE"
    """Continue with an older archive."""
    CREATE_EMPTY_HOME = "CREATE_EMPTY_HOME"
    """Continue with an empty home."""
    DELETE = "DELETE"
    RETRY_DELETE = "RETRY_DELETE"
    PURGE = "PURGE"
    UNDELETE = "UNDELETE"
    CANCEL_RESTORE = "CANCEL_RESTORE"
    """Keep the present home."""


@dataclass(frozen=True, slots=True)
class PossibleAction:
    verb: ActionVerb
    archive_key: str | None = None
    """Of RESTORE_ARCHIVE."""


@dataclass(frozen=True, slots=True)
class WaitCondition:
    what: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class WishRequest:
    """Who asked for the requested state, when and why."""

    origin: WishOrigin
    at: datetime
    words: str


@dataclass(frozen=True, slots=True)
class Explanation:
    summary: str
    lines: tuple[str, ...]
    waiting_for: WaitCondition | None
    next_step: str | None
    why: str | None
    actions: tuple[PossibleAction, ...]
    awake: tuple[StayAwake, ...]
    """What prevents the automatic stop or the automatic archive."""
    stopped: WishRequest | None
    """Why it does not run; None if it should."""


PHASE_MEANS: Mapping[Phase, str] = {
    Phase.PENDING: "is pending: its home is not created yet",
    Phase.ARCHIVED: "is archived: its home is in the archive, nothing runs",
    Phase.STANDBY: "is stopped: its home is on disk, nothing runs",
    Phase.RUNNING: "is running",
    Phase.ERROR: "has an error: action required",
    Phase.DELETING: "is being deleted",
    Phase.DELETED: "is deleted",
}

OPERATION_MEANS: Mapping[Operation, str] = {
    Operation.NONE: "no operation is in progress",
    Operation.PROVISIONING: "an empty home is being created",
    Operation.RESTORING: "its home is being restored from the archive",
    Operation.ACCEPTING: "its home is being recovered as it is",
    Operation.STARTING: "its program is being started",
    Operation.STOPPING: "its program is being stopped",
    Operation.ARCHIVING: "its home is being archived",
    Operation.COPYING: "its home is being copied from an archive of another workspace",
    Operation.CREATE_EMPTY_ARCHIVE: "an empty archive is being written",
    Operation.DELETING: "its container and its volumes are being removed",
}

WAITS_FOR: Mapping[Operation, str] = {
    Operation.NONE: "nothing",
    Operation.PROVISIONING: "the marker of the new volume",
    Operation.RESTORING: "the marker of the restored volume",
    Operation.ACCEPTING: "the new marker of the home",
    Operation.STARTING: "its port to respond",
    Operation.STOPPING: "its container to be removed",
    Operation.ARCHIVING: "the archive to be verified and the volume to be removed",
    Operation.COPYING: "the copy to be verified",
    Operation.CREATE_EMPTY_ARCHIVE: "the empty archive to be verified",
    Operation.DELETING: "its container and its volumes to be removed",
}

PHASE_OF_WISH: Mapping[Wish, Phase] = {
    Wish.RUNNING: Phase.RUNNING,
    Wish.STANDBY: Phase.STANDBY,
    Wish.ARCHIVED: Phase.ARCHIVED,
    Wish.DELETED: Phase.DELETED,
}


# What a request for each state did, in the passive voice.
DONE_BY_REQUEST: Mapping[Wish, str] = {
    Wish.RUNNING: "started",
    Wish.STANDBY: "stopped",
    Wish.ARCHIVED: "archived",
    Wish.DELETED: "deleted",
}

NO_CONTROLLER = (
    "no controller runs, so nothing is changed. It is being started, or it waits for its engine: an administrator sees the "
    "reason in its log, in `torpor doctor` and at /health/ready."
)

# The automatic step from each phase.
STEP_DOWN_VERB: Mapping[Phase, str] = {Phase.RUNNING: "stop", Phase.STANDBY: "archive"}
STAYS: Mapping[Phase, str] = {Phase.RUNNING: "Stays running", Phase.STANDBY: "Stays on disk"}


def explain(
    workspace: Workspace,
    archive_keys: tuple[str, ...],
    held_back_at: tuple[str, ...] = (),
    awake: tuple[StayAwake, ...] | None = None,
    can_be_undeleted: bool = True,
    has_controller: bool = True,
) -> Explanation:
    """`archive_keys`: the archives that can be restored, the latest first; `held_back_at`: the providers with a latch;
    `awake`: what prevents the automatic step, None if there is no such step; `can_be_undeleted`: whether an undelete would be
    accepted, if it is deleted; `has_controller`: whether a controller runs, which carries out every request."""
    asked = _asked(workspace)
    lines = [
        f"Requested: {_requested(workspace)} (request {workspace.wish_version}): {asked.words} at {_instant(asked.at)}.",
        f"Status: {STATUS_OF_PHASE[workspace.phase]} ({_observed(workspace)}).",
        f"Home: generation {workspace.generation}, revision {workspace.revision}, {_archive_words(workspace)}.",
    ]
    if restore := workspace.restore:
        goes_back = (
            f"its home is being replaced by the archive {restore.archive.key}, requested at {_instant(restore.asked_at)}"
        )
        lines.append(f"Restore: {goes_back}. The present home is archived first.")
    if workspace.sleeps_at is not None:
        at = _instant(workspace.sleeps_at)
        lines.append(f"Stops soon: at {at}, because it is not in use. To prevent that, use it or keep it awake.")
    if excess := size_excess(workspace):
        lines.append(f"Disk: {excess}.")
    if awake:
        lines.append(f"{STAYS[workspace.phase]}: {'; '.join(_stay_words(stay) for stay in awake)}.")
    waiting = _waiting(workspace)
    if waiting:
        until = f" until {_instant(waiting.until)}" if waiting.until else ""
        is_in_progress = workspace.operation is not Operation.NONE
        begins = f"In progress: {OPERATION_MEANS[workspace.operation]}; waiting for" if is_in_progress else "Waiting for"
        lines.append(f"{begins} {waiting.what}{until}.")
    if progress := _progress(workspace):
        lines.append(f"Progress: {progress}.")
    if held_back_at:
        where = " and ".join(held_back_at)
        lines.append(f"Paused: many homes are missing at {where} at once, so nothing is changed there. Ask an administrator.")
    if not has_controller:
        lines.append(f"Paused: {NO_CONTROLLER}")
    why = _why(workspace)
    if why:
        lines.append(f"Why: {why}")
    if files := _where_the_files_are(workspace):
        lines.append(f"Files: {files}")
    next_step = _next(workspace) if awake is None else _next_down(workspace, awake)
    if next_step:
        lines.append(f"Next: {next_step}.")
    return Explanation(
        summary=f"{workspace.name} {PHASE_MEANS[workspace.phase]}"
        + (f"; {OPERATION_MEANS[workspace.operation]}" if workspace.operation is not Operation.NONE else "")
        + ".",
        lines=tuple(lines),
        waiting_for=waiting,
        next_step=next_step,
        why=why,
        actions=_actions(workspace, archive_keys, can_be_undeleted=can_be_undeleted),
        awake=awake or (),
        stopped=None if workspace.desired_state is Wish.RUNNING else asked,
    )


def _requested(workspace: Workspace) -> str:
    return STATUS_OF_PHASE[PHASE_OF_WISH[workspace.desired_state]]


def _asked(workspace: Workspace) -> WishRequest:
    wish = workspace.desired_state
    match workspace.wish_origin:
        case WishOrigin.IDLE:
            why = f" because {WHY_DOWN[wish](workspace)}" if wish in WHY_DOWN else ""
            words = f"{DONE_BY_REQUEST[wish]} automatically{why}"
        case WishOrigin.WAKE:
            words = "started automatically because it was accessed"
        case WishOrigin.SWITCH:
            words = f"{DONE_BY_REQUEST[wish]} automatically because all workspaces move to another runtime"
        case WishOrigin.PERSON:
            words = f"{DONE_BY_REQUEST[wish]} by a user"
    return WishRequest(workspace.wish_origin, workspace.wished_at, words)


def _stay_words(stay: StayAwake) -> str:
    return stay.words + (f" (until {_instant(stay.until)})" if stay.until else "")


def _next_down(workspace: Workspace, awake: tuple[StayAwake, ...]) -> str | None:
    verb = STEP_DOWN_VERB[workspace.phase]
    if not awake:
        return f"{verb} in the next pass, because {WHY_DOWN[STEP_DOWN[workspace.phase]](workspace)}"
    ends = [stay.until for stay in awake if stay.until is not None]
    if len(ends) < len(awake):
        return _next(workspace)
    return f"{verb} after {_instant(max(ends))}, unless it is used"


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _observed(workspace: Workspace) -> str:
    conditions = workspace.conditions
    return (
        f"container {conditions.container_ready.reason}, volume {conditions.volume_ready.reason},"
        f" archive {conditions.archive_ready.reason}"
    )


def _archive_words(workspace: Workspace) -> str:
    if workspace.archive is None:
        return "no archive yet"
    if workspace.is_archived:
        return "the archive holds this state"
    return f"the last archive holds generation {workspace.archive.generation}, revision {workspace.archive.revision}"


def _progress(workspace: Workspace) -> str:
    files = workspace.progress_files
    if files is None:
        return ""
    done, total = workspace.progress_done, workspace.progress_total
    of_bytes = size(done) if total is None else f"{size(done)} of {size(total)}"
    of_files = f"{files.done:,}" if files.total is None else f"{files.done:,} of {files.total:,}"
    return f"{of_bytes}, {of_files} files"


def _waiting(workspace: Workspace) -> WaitCondition | None:
    match workspace.stage:
        case Stage.REST:
            if workspace.due_at is not None and workspace.desired_state is Wish.RUNNING and workspace.phase is Phase.STANDBY:
                is_stopped = workspace.conditions.container_ready.reason == STOPPED_OUTSIDE
                return WaitCondition(f"the restart of its program{'' if is_stopped else ', which ended'}", workspace.due_at)
            return WaitCondition("free disk space", None) if workspace.space_awaited is not None else None
        case Stage.BACKOFF:
            return WaitCondition(f"the next attempt after {workspace.attempts} failed", workspace.due_at)
        case Stage.BEFORE_SLEEP:
            return WaitCondition("its `before_sleep` command to end", None)
        case Stage.CALL | Stage.SEE:
            return WaitCondition(WAITS_FOR[workspace.operation], workspace.deadline_at)


def _why(workspace: Workspace) -> str | None:
    if workspace.outage is not None:
        since = workspace.outage.last_transition_time
        lasts = f", since {_instant(since)}" if since else ""
        return f"{workspace.outage.message}{lasts}. Torpor retries until it responds."
    if workspace.space_awaited is not None:
        return f"{workspace.space_awaited}. It continues automatically when there is enough free space."
    error = workspace.error
    if error is None:
        container = workspace.conditions.container_ready
        return f"{container.message}." if container.reason in (PAUSED, STOPPED_OUTSIDE, WAITING) else None
    tail = error.context.get("last_lines")
    output = f" Its last output: {tail}" if tail else ""
    during = f" during {STATUS_OF_OPERATION[error.operation]}" if error.operation is not Operation.NONE else ""
    return f"{error.reason}{during}: {error.message}.{output}"


def _where_the_files_are(workspace: Workspace) -> str | None:
    """The folder of a home that exists without its marker, and how to list it."""
    home = workspace.error.context.get("home") if workspace.error is not None else None
    if not isinstance(home, str):
        return None
    return f"on the machine that runs it, as an administrator: `ls -la {shlex.quote(home)}`."


def _next(workspace: Workspace) -> str | None:
    error = workspace.error
    requested = _requested(workspace)
    if error is not None and error.is_terminal:
        return "no automatic step; action required"
    if workspace.restore is not None:
        return f"archive the present home, continue with the requested archive, then {requested}"
    if workspace.operation is not Operation.NONE:
        if may_cancel(workspace):
            operation = STATUS_OF_OPERATION[workspace.operation]
            return f"{operation} is canceled, because the requested state is now {requested}"
        return f"when this is done, continue to {requested}"
    if workspace.phase is PHASE_OF_WISH[workspace.desired_state]:
        return None
    when = "when there is enough free space" if workspace.space_awaited is not None else "in the next pass"
    return f"a step towards {requested} {when}"


# The action that requests each state.
VERB_OF_WISH: Mapping[Wish, ActionVerb] = {
    Wish.RUNNING: ActionVerb.START,
    Wish.STANDBY: ActionVerb.STOP,
    Wish.ARCHIVED: ActionVerb.ARCHIVE,
    Wish.DELETED: ActionVerb.DELETE,
}


def _actions(workspace: Workspace, archive_keys: tuple[str, ...], *, can_be_undeleted: bool) -> tuple[PossibleAction, ...]:
    undelete = [PossibleAction(ActionVerb.UNDELETE)] if can_be_undeleted and not workspace.purge else []
    if workspace.phase is Phase.DELETED:
        return tuple(undelete)
    error = workspace.error if workspace.error is not None and workspace.error.is_terminal else None
    recoveries = _recoveries(workspace, error, archive_keys) if error is not None else []
    if workspace.deleted_at is not None:
        return (*recoveries, PossibleAction(ActionVerb.RETRY_DELETE), PossibleAction(ActionVerb.PURGE), *undelete)
    if error is not None and error.reason in ASKS_HOW_TO_GO_ON:
        return (*recoveries, PossibleAction(ActionVerb.DELETE))
    keep_awake = [PossibleAction(ActionVerb.KEEP_AWAKE)] if workspace.sleeps_at is not None else []
    requests = [PossibleAction(verb) for wish, verb in VERB_OF_WISH.items() if wish is not workspace.desired_state]
    cancel = [PossibleAction(ActionVerb.CANCEL_RESTORE)] if workspace.restore is not None else []
    return (*recoveries, *cancel, *keep_awake, *requests)


def _recoveries(workspace: Workspace, error: WorkspaceError, archive_keys: tuple[str, ...]) -> list[PossibleAction]:
    if error.reason not in ASKS_HOW_TO_GO_ON:
        return [PossibleAction(ActionVerb.RETRY)]
    can_accept = error.reason is Reason.MARKER_UNREADABLE and workspace.deleted_at is None
    return [
        *([PossibleAction(ActionVerb.ACCEPT_HOME)] if can_accept else []),
        *(
            PossibleAction(ActionVerb.RESTORE_ARCHIVE, key)
            for key in archive_keys
            if key != error.context.get("archive_key")  # the lost archive
        ),
        PossibleAction(ActionVerb.CREATE_EMPTY_HOME),
    ]
