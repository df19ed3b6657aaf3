"""Classify the status of a workspace for an incoming request."""

from enum import Enum, auto

from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish


class Readiness(Enum):
    READY = auto()
    """It can be reached."""
    WAKING = auto()
    """The requested state is RUNNING, and the workspace is starting."""
    ASLEEP = auto()
    """Stopped or stopping: the requested state is not RUNNING."""
    ERROR = auto()
    """It has an error that a wake does not clear."""
    DELETED = auto()
    UNKNOWN = auto()
    """There is no workspace with this name."""


def readiness(workspace: Workspace | None, *, is_reachable: bool) -> Readiness:
    if workspace is None:
        return Readiness.UNKNOWN
    if workspace.deleted_at is not None:
        return Readiness.DELETED
    if workspace.phase is Phase.ERROR or (workspace.error is not None and workspace.error.is_terminal):
        return Readiness.ERROR
    # A workspace that is being stopped may still respond, but would cut off the caller at once. While `before_sleep` runs,
    # nothing has been stopped yet, and a request keeps the workspace awake.
    is_being_stopped = workspace.operation is Operation.STOPPING and workspace.stage is not Stage.BEFORE_SLEEP
    if workspace.phase is Phase.RUNNING and not is_being_stopped and is_reachable:
        return Readiness.READY
    return Readiness.WAKING if workspace.desired_state is Wish.RUNNING else Readiness.ASLEEP
