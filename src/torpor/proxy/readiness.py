"""How does a workspace stand, for somebody who knocks?"""

from enum import Enum, auto

from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish


class Readiness(Enum):
    READY = auto()
    """It can be reached."""
    WAKING = auto()
    """It is wished to run, and on its way there."""
    ASLEEP = auto()
    """Or going to sleep: nobody wishes it to run."""
    ERROR = auto()
    """Something stands in its way that waking does not clear."""
    DELETED = auto()
    UNKNOWN = auto()
    """Nothing is known by this name."""


def readiness(workspace: Workspace | None, *, is_reachable: bool) -> Readiness:
    if workspace is None:
        return Readiness.UNKNOWN
    if workspace.deleted_at is not None:
        return Readiness.DELETED
    if workspace.phase is Phase.ERROR or (workspace.error is not None and workspace.error.is_terminal):
        return Readiness.ERROR
    # What is being stopped may still answer: a visitor would be thrown out at once. While `before_sleep` runs, nothing has been
    # stopped, and a visitor keeps it awake.
    is_being_stopped = workspace.operation is Operation.STOPPING and workspace.stage is not Stage.BEFORE_SLEEP
    if workspace.phase is Phase.RUNNING and not is_being_stopped and is_reachable:
        return Readiness.READY
    return Readiness.WAKING if workspace.desired_state is Wish.RUNNING else Readiness.ASLEEP
