"""How does a workspace stand, for somebody who knocks?"""

from enum import Enum, auto

from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish


class Standing(Enum):
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


def standing(workspace: Workspace | None, *, is_reachable: bool) -> Standing:
    if workspace is None:
        return Standing.UNKNOWN
    if workspace.deleted_at is not None:
        return Standing.DELETED
    if workspace.phase is Phase.ERROR or (workspace.error is not None and workspace.error.is_terminal):
        return Standing.ERROR
    # What is being stopped may still answer: a visitor would be thrown out at once. While `before_sleep` runs, nothing has been
    # stopped, and a visitor keeps it awake.
    is_being_stopped = workspace.operation is Operation.STOPPING and workspace.stage is not Stage.BEFORE_SLEEP
    if workspace.phase is Phase.RUNNING and not is_being_stopped and is_reachable:
        return Standing.READY
    return Standing.WAKING if workspace.desired_state is Wish.RUNNING else Standing.ASLEEP
