"""What is somebody told who waits for a workspace?

The same in the page that is sent first and in what that page asks for afterwards (`/.torpor/standing`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torpor.domain.explain import OPERATION_MEANS
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase
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
    """How a workspace stands, in words."""

    name: str
    title: str
    words: str
    phase: Phase | None
    operation: Operation
    progress: int | None
    """In percent, of what is under way; None: it cannot tell."""
    ready: bool
    moving: bool
    """Something is under way, or about to be: there is nothing to do but wait."""
    can_wake: bool
    """It sleeps, and whoever goes there wakes it."""
    error: str | None
    steps: tuple[Step, ...]
    sleeps_at: str | None = None
    """When it is stopped because it is not in use; None while that is not near. For the terminal's page: to ask is no use."""

    @property
    def tag(self) -> str:
        """Another one whenever anything of it is different, whoever was asked."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def body(self) -> Mapping[str, Any]:
        return {**asdict(self), "after": self.tag}


ASLEEP_TITLE: Mapping[Phase, str] = {
    Phase.PENDING: "has no home yet",
    Phase.ARCHIVED: "sleeps in the archive",
    Phase.STANDBY: "is asleep",
    Phase.RUNNING: "is going to sleep",
    Phase.ERROR: "is in trouble",
    Phase.DELETING: "is being deleted",
    Phase.DELETED: "is deleted",
}

AT_REST: Mapping[Phase, str] = {
    Phase.PENDING: "Nothing of it is there yet.",
    Phase.ARCHIVED: "Its home is kept in the archive.",
    Phase.STANDBY: "Its home is kept, and nothing runs.",
    Phase.RUNNING: "It is running.",
    Phase.ERROR: "It is left as it is until somebody says how to go on.",
    Phase.DELETING: "What is left of it is about to be removed.",
    Phase.DELETED: "Its last archive is kept for a while.",
}

# The home is the first step; what is under way there while somebody waits.
HOME_STEP: Mapping[Operation, str] = {
    Operation.NONE: "Its home is made ready",
    Operation.PROVISIONING: "Making its home",
    Operation.RESTORING: "Restoring its home",
    Operation.ACCEPTING: "Accepting its home as it is",
    Operation.STARTING: "Its home is there",
    Operation.STOPPING: "It was just going to sleep, and turns round",
    Operation.ARCHIVING: "It was just being archived, and turns round",
    Operation.CREATE_EMPTY_ARCHIVE: "Making its home",
    Operation.DELETING: "What is left of it is being removed",
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
            return "is awake"
        case Readiness.WAKING:
            return "is waking up"
        case Readiness.ERROR:
            return "is in trouble"
        case _:
            return ASLEEP_TITLE[workspace.phase]


def _words(workspace: Workspace, stands: Readiness) -> str:
    if stands is Readiness.WAKING and workspace.space_awaited is not None:
        return f"It waits for disk space: {workspace.space_awaited}. It goes on by itself when there is enough."
    if stands is Readiness.WAKING and workspace.operation is Operation.NONE:
        # RUNNING and yet not to be reached, or wished and not yet begun: seen between two looks, and over in a moment.
        return "It is about to begin."
    if workspace.operation is Operation.NONE:
        return AT_REST[workspace.phase]
    done = "" if workspace.progress is None else f" ({workspace.progress}\N{NO-BREAK SPACE}%)"
    words = f"{OPERATION_MEANS[workspace.operation]}{done}."
    return words[0].upper() + words[1:]


def _error(workspace: Workspace) -> str | None:
    if workspace.outage is not None:
        words = f"{workspace.outage.message}. It is tried again until there is an answer."
        return words[0].upper() + words[1:]
    return workspace.error.message if workspace.error is not None else None


def _steps(workspace: Workspace) -> tuple[Step, ...]:
    operation = workspace.operation
    has_home = workspace.phase in HOME_IS_THERE and operation not in BUSY_WITH_HOME
    home = Step("Its home is there", StepState.DONE) if has_home else Step(HOME_STEP[operation], StepState.NOW)
    program = Step("Starting its program", StepState.NOW if has_home else StepState.NEXT)
    return home, program, Step("Opening it here", StepState.NEXT)
