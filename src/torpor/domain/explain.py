"""Why is it as it is, what happens next, and which ways are there out of it? In plain words."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from torpor.domain.errors import ASKS_HOW_TO_GO_ON, Reason
from torpor.domain.idle import STEP_DOWN, WHY_DOWN, StayAwake
from torpor.domain.records import Workspace, WorkspaceError
from torpor.domain.states import Operation, Phase, Stage, Wish, WishOrigin
from torpor.domain.transitions import may_cancel


@dataclass(frozen=True, slots=True)
class WayOut:
    command: str
    means: str


@dataclass(frozen=True, slots=True)
class WaitCondition:
    what: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class WishRequest:
    """Who asked for what is wished, when and why."""

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
    ways_out: tuple[WayOut, ...]
    awake: tuple[StayAwake, ...]
    """What keeps it from going down a step by itself."""
    stopped: WishRequest | None
    """Why it does not run; None where it should."""


PHASE_MEANS: Mapping[Phase, str] = {
    Phase.PENDING: "has no home yet",
    Phase.ARCHIVED: "is archived: no container, no volume, its home sleeps in the archive",
    Phase.STANDBY: "stands by: its home is there, nothing runs",
    Phase.RUNNING: "is running",
    Phase.ERROR: "is in ERROR",
    Phase.DELETING: "is being deleted",
    Phase.DELETED: "is deleted",
}

OPERATION_MEANS: Mapping[Operation, str] = {
    Operation.NONE: "nothing is under way",
    Operation.PROVISIONING: "an empty home is being made",
    Operation.RESTORING: "its home is being restored from the archive",
    Operation.ACCEPTING: "its home is being accepted as it is",
    Operation.STARTING: "its program is being started",
    Operation.STOPPING: "its program is being stopped",
    Operation.ARCHIVING: "its home is being archived",
    Operation.CREATE_EMPTY_ARCHIVE: "an empty archive is being written",
    Operation.DELETING: "what is left of it is being removed",
}

WAITS_FOR: Mapping[Operation, str] = {
    Operation.NONE: "nothing",
    Operation.PROVISIONING: "the new volume to carry its marker",
    Operation.RESTORING: "the restored volume to carry its marker",
    Operation.ACCEPTING: "the home to carry its new marker",
    Operation.STARTING: "its port to answer",
    Operation.STOPPING: "its container to be gone",
    Operation.ARCHIVING: "the archive to be proven and the volume to be gone",
    Operation.CREATE_EMPTY_ARCHIVE: "the empty archive to be proven",
    Operation.DELETING: "container and volumes to be gone",
}

PHASE_OF_WISH: Mapping[Wish, Phase] = {
    Wish.RUNNING: Phase.RUNNING,
    Wish.STANDBY: Phase.STANDBY,
    Wish.ARCHIVED: Phase.ARCHIVED,
    Wish.DELETED: Phase.DELETED,
}


DONE_BY_A_PERSON: Mapping[Wish, str] = {
    Wish.RUNNING: "started",
    Wish.STANDBY: "stopped",
    Wish.ARCHIVED: "archived",
    Wish.DELETED: "deleted",
}


def explain(
    workspace: Workspace,
    archive_keys: tuple[str, ...],
    held_back_at: tuple[str, ...] = (),
    awake: tuple[StayAwake, ...] | None = None,
    can_be_undeleted: bool = True,
) -> Explanation:
    """`archive_keys`: the archives that can be gone back to, the latest first; `held_back_at`: where nothing is touched;
    `awake`: what keeps it from going down a step by itself, None where there is no such step; `can_be_undeleted`: whether that
    would be accepted, if it is deleted."""
    asked = _asked(workspace)
    lines = [
        f"Wished: {workspace.desired_state} (wish {workspace.wish_version}): {asked.words} at {_instant(asked.at)}.",
        f"Seen: {_observed(workspace)}.",
        f"Home: generation {workspace.generation}, opened {_times(workspace.revision)}, {_archive_words(workspace)}.",
    ]
    if workspace.sleeps_at is not None:
        at = _instant(workspace.sleeps_at)
        lines.append(f"Sleeping soon: it is stopped at {at} because it is not in use, unless you use it or hold it awake.")
    if awake:
        lines.append(f"{STAYS[workspace.phase]}: {'; '.join(_stay_words(stay) for stay in awake)}.")
    waiting = _waiting(workspace)
    if waiting:
        until = f" until {_instant(waiting.until)}" if waiting.until else ""
        lines.append(f"Under way: {OPERATION_MEANS[workspace.operation]}; waiting for {waiting.what}{until}.")
    if held_back_at:
        where = " and ".join(held_back_at)
        lines.append(f"Held back: so many homes are missing at {where} that nothing is touched there; see `torpor doctor`.")
    why = _why(workspace)
    if why:
        lines.append(f"Why: {why}")
    if look := _where_the_files_are(workspace):
        lines.append(f"Look: {look}")
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
        ways_out=_ways_out(workspace, archive_keys, can_be_undeleted=can_be_undeleted),
        awake=awake or (),
        stopped=None if workspace.desired_state is Wish.RUNNING else asked,
    )


STAYS: Mapping[Phase, str] = {Phase.RUNNING: "Awake", Phase.STANDBY: "Not archived"}


def _asked(workspace: Workspace) -> WishRequest:
    wish = workspace.desired_state
    match workspace.wish_origin:
        case WishOrigin.IDLE:
            words = f"put to sleep because {WHY_DOWN[wish](workspace)}" if wish in WHY_DOWN else "put to sleep"
        case WishOrigin.WAKE:
            words = "woken because somebody knocked"
        case WishOrigin.PERSON:
            words = f"{DONE_BY_A_PERSON[wish]} by a person"
    return WishRequest(workspace.wish_origin, workspace.wished_at, words)


def _stay_words(stay: StayAwake) -> str:
    return stay.words + (f" (until {_instant(stay.until)})" if stay.until else "")


def _next_down(workspace: Workspace, awake: tuple[StayAwake, ...]) -> str | None:
    to = STEP_DOWN[workspace.phase]
    if not awake:
        return f"{to} at the next look, because {WHY_DOWN[to](workspace)}"
    ends = [stay.until for stay in awake if stay.until is not None]
    if len(ends) < len(awake):
        return _next(workspace)
    return f"{to} after {_instant(max(ends))}, unless somebody uses it"


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _observed(workspace: Workspace) -> str:
    conditions = workspace.conditions
    return (
        f"container {conditions.container_ready.reason}, volume {conditions.volume_ready.reason},"
        f" archive {conditions.archive_ready.reason}; this amounts to {workspace.phase}"
    )


def _archive_words(workspace: Workspace) -> str:
    if workspace.archive is None:
        return "no archive yet"
    if workspace.is_archived:
        return "its archive holds exactly this state"
    return (
        f"its last archive holds generation {workspace.archive.generation}"
        f" as it was opened {_times(workspace.archive.revision)}"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _waiting(workspace: Workspace) -> WaitCondition | None:
    match workspace.stage:
        case Stage.REST:
            if workspace.due_at is not None and workspace.desired_state is Wish.RUNNING and workspace.phase is Phase.STANDBY:
                return WaitCondition("its program to be started again after it ended", workspace.due_at)
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
        return f"{workspace.outage.message}{lasts}. It is tried again until there is an answer."
    if workspace.space_awaited is not None:
        return f"{workspace.space_awaited}. It goes on by itself when there is enough free space."
    error = workspace.error
    if error is None:
        return f"{workspace.conditions.container_ready.message}." if workspace.is_paused else None
    tail = error.context.get("last_lines")
    said = f" It last wrote: {tail}" if tail else ""
    return f"{error.reason} in {error.operation}: {error.message}.{said}"


def _where_the_files_are(workspace: Workspace) -> str | None:
    """Where the files of a home are that is there without its marker, and how to list them."""
    home = workspace.error.context.get("home") if workspace.error is not None else None
    if not isinstance(home, str):
        return None
    return f"on the machine that runs it, as an administrator: `ls -la {shlex.quote(home)}`."


def _next(workspace: Workspace) -> str | None:
    error = workspace.error
    if error is not None and error.is_terminal:
        return "nothing by itself; it needs a word from you"
    if workspace.operation is not Operation.NONE:
        if may_cancel(workspace):
            return f"{workspace.operation} is turned round, because the wish is now {workspace.desired_state}"
        return f"when that is seen, on towards {workspace.desired_state}"
    if workspace.phase is PHASE_OF_WISH[workspace.desired_state]:
        return None
    when = "when there is enough free space" if workspace.space_awaited is not None else "at the next look"
    return f"a step towards {workspace.desired_state} {when}"


def _ways_out(workspace: Workspace, archive_keys: tuple[str, ...], *, can_be_undeleted: bool) -> tuple[WayOut, ...]:
    name = workspace.name
    is_taken_back = can_be_undeleted and not workspace.purge
    if workspace.phase is Phase.DELETED:
        return (WayOut(f"torpor undelete {name}", "bring it back, archived"),) if is_taken_back else ()
    ways: list[WayOut] = []
    error = workspace.error
    if error is not None and error.is_terminal:
        ways += _ways_out_of_error(workspace, error, archive_keys)
    if workspace.deleted_at is not None:
        return (
            *ways,
            WayOut(f"torpor delete {name}", "try the last archive again"),
            WayOut(f"torpor delete {name} --purge", "give up the home too; this cannot be taken back"),
            *([WayOut(f"torpor undelete {name}", "keep it, archived")] if is_taken_back else []),
        )
    if error is not None and error.is_terminal and error.reason in ASKS_HOW_TO_GO_ON:
        return (*ways, WayOut(f"torpor delete {name}", "give it up"))
    offers = {
        Wish.RUNNING: WayOut(f"torpor start {name}", "run it"),
        Wish.STANDBY: WayOut(f"torpor stop {name}", "stop it and keep its home at hand"),
        Wish.ARCHIVED: WayOut(f"torpor archive {name}", "put its home to sleep in the archive"),
    }
    if workspace.sleeps_at is not None:
        ways.append(WayOut(f"torpor hold {name} --for 1h --reason 'still needed'", "keep it awake for 1 hour"))
    ways += [way for wish, way in offers.items() if wish is not workspace.desired_state]
    return (*ways, WayOut(f"torpor delete {name}", "delete it; for a while `undelete` brings it back"))


def _ways_out_of_error(workspace: Workspace, error: WorkspaceError, archive_keys: tuple[str, ...]) -> list[WayOut]:
    if error.reason not in ASKS_HOW_TO_GO_ON:
        return [WayOut(f"torpor recover {workspace.name}", "forget the error and try again")]
    can_accept = error.reason is Reason.MARKER_UNREADABLE and workspace.deleted_at is None
    return [
        *([WayOut(f"torpor recover {workspace.name} --accept", "go on with the home as it is")] if can_accept else []),
        *(
            WayOut(f"torpor recover {workspace.name} --archive-key {key}", "go on from this older archive")
            for key in archive_keys
            if key != error.context.get("archive_key")  # the one that is lost
        ),
        WayOut(f"torpor recover {workspace.name} --empty", "go on with an empty home"),
    ]
