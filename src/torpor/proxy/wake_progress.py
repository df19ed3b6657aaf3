"""Describe the status of a workspace to a user who waits for it.

The first page and its later requests (`/.torpor/standing`) use the same description.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase
from torpor.domain.status import STATUS_OF_OPERATION
from torpor.proxy.readiness import Readiness


class StepState(StrEnum):
    DONE = "done"
    NOW = "now"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Step:
    words: str
    state: StepState


@dataclass(frozen=True, slots=True)
class WakeProgress:
    """The status of a workspace, as the page shows it."""

    name: str
    title: str
    words: str
    phase: Phase | None
    operation: Operation
    progress: int | None
    """Of the operation, in percent; None if the operation does not report it."""
    ready: bool
    moving: bool
    """An operation is in progress or starts soon, so the user only has to wait."""
    can_wake: bool
    """The workspace is stopped, and a visit starts it."""
    error: str | None
    steps: tuple[Step, ...]
    sleeps_at: str | None = None
    """When the workspace is stopped because it is idle; None if that is not soon. For the page of the terminal, whose requests
    do not count as use."""

    @property
    def tag(self) -> str:
        """A digest that is the same in all processes and changes with any field."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def body(self) -> Mapping[str, Any]:
        return {**asdict(self), "after": self.tag}


TITLE: Mapping[Phase, str] = {
    Phase.PENDING: "is not created yet",
    Phase.ARCHIVED: "is archived",
    Phase.STANDBY: "is stopped",
    Phase.RUNNING: "is stopping",
    Phase.ERROR: "has an error",
    Phase.DELETING: "is being deleted",
    Phase.DELETED: "is deleted",
}

AT_REST: Mapping[Phase, str] = {
    Phase.PENDING: "The home is not created yet.",
    Phase.ARCHIVED: "The home is in the archive. Nothing runs.",
    Phase.STANDBY: "The home is on disk. Nothing runs.",
    Phase.RUNNING: "The workspace is running.",
    Phase.ERROR: "Action required.",
    Phase.DELETING: "The workspace is being deleted.",
    Phase.DELETED: "You can undelete it for a limited time.",
}

# The first step: what each operation does with the home while the user waits.
HOME_STEP: Mapping[Operation, str] = {
    Operation.NONE: "Preparing the home",
    Operation.PROVISIONING: "Creating the home",
    Operation.RESTORING: "Restoring the home",
    Operation.ACCEPTING: "Recovering the home",
    Operation.STARTING: "The home is ready",
    Operation.STOPPING: "Canceling the stop",
    Operation.ARCHIVING: "Canceling the archiving",
    Operation.COPYING: "Copying the home",
    Operation.CREATE_EMPTY_ARCHIVE: "Creating the home",
    Operation.DELETING: "Deleting the old home",
}
HOME_IS_THERE = frozenset({Phase.STANDBY, Phase.RUNNING})
BUSY_WITH_HOME = frozenset(Operation) - {Operation.NONE, Operation.STARTING}


def wake_progress(name: str, workspace: Workspace | None, stands: Readiness) -> WakeProgress:
    if workspace is None:
        title = f"There is no workspace {name}"
        return WakeProgress(name, title, "", None, Operation.NONE, None, False, False, False, None, ())
    operation = workspace.operation
    return WakeProgress(
        name=name,
        title=f"{name} {_title(workspace, stands)}",
        words=_words(workspace, stands),
        phase=workspace.phase,
        operation=operation,
        progress=workspace.progress if operation is not Operation.NONE else None,
        ready=stands is Readiness.READY,
        moving=stands is Readiness.WAKING or operation is not Operation.NONE,
        can_wake=stands is Readiness.ASLEEP,
        error=_error(workspace),
        steps=_steps(workspace) if stands is Readiness.WAKING else (),
        sleeps_at=workspace.sleeps_at.isoformat() if workspace.sleeps_at is not None else None,
    )


def _title(workspace: Workspace, stands: Readiness) -> str:
    match stands:
        case Readiness.READY:
            return "is running"
        case Readiness.WAKING:
            return "is starting"
        case Readiness.ERROR:
            return "has an error"
        case _:
            return TITLE[workspace.phase]


def _words(workspace: Workspace, stands: Readiness) -> str:
    if stands is Readiness.WAKING and workspace.space_awaited is not None:
        return f"Waiting for disk space: {workspace.space_awaited}. It continues automatically when there is enough."
    if stands is Readiness.WAKING and workspace.operation is Operation.NONE:
        # Requested but not begun yet, or running but not reachable yet: both last only for a moment.
        return "Starting soon."
    if workspace.operation is Operation.NONE:
        return AT_REST[workspace.phase]
    done = "" if workspace.progress is None else f" ({workspace.progress}\N{NO-BREAK SPACE}%)"
    return f"{STATUS_OF_OPERATION[workspace.operation]}{done}."


def _error(workspace: Workspace) -> str | None:
    if workspace.outage is not None:
        words = f"{workspace.outage.message}. Torpor retries until the service is available."
        return words[0].upper() + words[1:]
    return workspace.error.message if workspace.error is not None else None


def _steps(workspace: Workspace) -> tuple[Step, ...]:
    operation = workspace.operation
    has_home = workspace.phase in HOME_IS_THERE and operation not in BUSY_WITH_HOME
    home = Step("The home is ready", StepState.DONE) if has_home else Step(HOME_STEP[operation], StepState.NOW)
    program = Step("Starting the program", StepState.NOW if has_home else StepState.NEXT)
    return home, program, Step("Opening the workspace", StepState.NEXT)
