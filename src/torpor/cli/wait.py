"""Has the wish been reached, or will it never be?"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from torpor.cli.client import ApiClient, NotFound, Record
from torpor.cli.exit_codes import CommandError, ExitCode, one_line
from torpor.cli.output.wording import error_words
from torpor.domain.errors import ASKS_HOW_TO_GO_ON
from torpor.domain.states import Operation, Phase, Wish

POLL_S = 0.15


@dataclass(frozen=True, slots=True)
class PendingWish:
    """What was asked for, as Torpor wrote it down."""

    id: str
    name: str
    desired_state: str
    wish_version: int
    is_recovery: bool = False


@dataclass(frozen=True, slots=True)
class InProgress:
    pass


@dataclass(frozen=True, slots=True)
class WishReached:
    pass


@dataclass(frozen=True, slots=True)
class WishFailed:
    """A terminal error stands: without a new word from somebody nothing more happens."""

    error: Record


@dataclass(frozen=True, slots=True)
class WishReplaced:
    desired_state: str


Standing = InProgress | WishReached | WishFailed | WishReplaced


def pending_wish(workspace: Record, *, is_recovery: bool = False) -> PendingWish:
    return PendingWish(
        workspace["id"], workspace["name"], workspace["desired_state"], workspace["wish_version"], is_recovery=is_recovery
    )


def wait_result(workspace: Record | None, wish: PendingWish) -> Standing:
    """`workspace` as it is now; None when there is no trace of it any more."""
    if workspace is None:
        return WishReached() if wish.desired_state == Wish.DELETED else WishReplaced(Wish.DELETED)
    if workspace["wish_version"] != wish.wish_version and workspace["desired_state"] != wish.desired_state:
        return WishReplaced(workspace["desired_state"])
    if _has_terminal_error(workspace, wish):
        return WishFailed(workspace["error"])
    if workspace["phase"] == wish.desired_state and workspace["operation"] == Operation.NONE:
        return WishReached()
    return InProgress()


def _has_terminal_error(workspace: Record, wish: PendingWish) -> bool:
    error = workspace["error"]
    if error is None or not error["is_terminal"]:
        return False
    if error["wish_version"] >= workspace["wish_version"]:
        return True
    # A newer wish forgives every error but a lost home or marker: those ask how to go on.
    return error["reason"] in ASKS_HOW_TO_GO_ON and wish.desired_state != Wish.DELETED and not wish.is_recovery


def wait_for(
    api: ApiClient,
    workspace: Record,
    wish: PendingWish,
    *,
    follow: Callable[[Record], None],
    timeout_s: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Record | None:
    """The workspace once the wish is reached, None when it is gone altogether; Ended when it will not be."""
    began = clock()
    now: Record | None = workspace
    while True:
        if now is not None:
            follow(now)
        match wait_result(now, wish):
            case WishReached():
                return now
            case WishFailed(error):
                raise _failed(api, now, wish, error)
            case WishReplaced(desired_state):
                raise _overtaken(now, wish, desired_state)
            case InProgress():
                pass
            case unknown:
                assert_never(unknown)
        if timeout_s is not None and clock() - began >= timeout_s:
            raise _timed_out(now, wish, timeout_s)
        sleep(POLL_S)
        now = _look(api, wish)


def _look(api: ApiClient, wish: PendingWish) -> Record | None:
    try:
        return api.workspace(wish.id)
    except NotFound:
        return None


def _failed(api: ApiClient, workspace: Record | None, wish: PendingWish, error: Record) -> CommandError:
    ways_out = _ways_out(api, wish)
    where = f" ({error['operation']})" if error.get("operation") not in (None, Operation.NONE) else ""
    outcome = "could not be deleted" if workspace and workspace["phase"] == Phase.DELETING else "ended in ERROR"
    return CommandError(
        ExitCode.ENDED_IN_ERROR,
        f"{wish.name} {outcome}{where}: {error['reason']}: {one_line(str(error['message']))}",
        code="ended_in_error",
        advice=f"`torpor explain {wish.name}` says more" + (", and these are the ways out:" if ways_out else ""),
        more=[f"  {way['command']}  {way['means']}" for way in ways_out],
        context={"workspace": workspace, "error": error, "ways_out": ways_out},
    )


def _ways_out(api: ApiClient, wish: PendingWish) -> list[Record]:
    try:
        ways: list[Record] = api.explain(wish.id)["ways_out"]
    except (CommandError, KeyError):
        # The error itself is worth more than its explanation.
        return []
    return ways


def _overtaken(workspace: Record | None, wish: PendingWish, desired_state: str) -> CommandError:
    return CommandError(
        ExitCode.WISH_CHANGED,
        f"somebody wished {desired_state} for {wish.name} while {wish.desired_state} was waited for",
        code="wish_changed",
        advice=f"`torpor show {wish.name}` says how it stands",
        context={"workspace": workspace},
    )


def _timed_out(workspace: Record | None, wish: PendingWish, timeout_s: float) -> CommandError:
    stands = ""
    if workspace:
        trouble = error_words(workspace)
        stands = f"; it is {workspace['phase']}, {workspace['operation']}" + (f" ({trouble})" if trouble else "")
    return CommandError(
        ExitCode.TIMED_OUT,
        f"{wish.name} was not {wish.desired_state} after {timeout_s:g} s{stands}",
        code="wait_timed_out",
        advice=f"the wish stands and is worked on; `torpor explain {wish.name}` says what is waited for",
        context={"workspace": workspace},
    )
