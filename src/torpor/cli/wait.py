"""Wait until a workspace has the requested state, or until it is clear that it will not get there."""

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import assert_never

from torpor.cli.client import ANSWER_TIMEOUT_S, ApiClient, NotFound, Record
from torpor.cli.event_stream import TEMPORARY, Gap, follow
from torpor.cli.exit_codes import CommandError, ExitCode, one_line
from torpor.cli.output.wording import error_words, state_word, status_words
from torpor.domain.errors import ASKS_HOW_TO_GO_ON
from torpor.domain.states import Operation, Phase, Wish
from torpor.domain.status import STATUS_OF_OPERATION

UNREACHABLE_FOR_S = 60.0
"""A server that does not answer for so long does not come back by itself."""
# Another proxy before ours answers 502 with a page of its own while the server restarts.
TEMPORARY_FOR_READS = TEMPORARY | {"not_torpor"}


@dataclass(frozen=True, slots=True)
class PendingWish:
    """A requested state, as the server stored it."""

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
    """The workspace has a terminal error: it stays until a new request."""

    error: Record


@dataclass(frozen=True, slots=True)
class WishReplaced:
    desired_state: str


WaitResult = InProgress | WishReached | WishFailed | WishReplaced


def pending_wish(workspace: Record, *, is_recovery: bool = False) -> PendingWish:
    return PendingWish(
        workspace["id"], workspace["name"], workspace["desired_state"], workspace["wish_version"], is_recovery=is_recovery
    )


def wait_result(workspace: Record | None, wish: PendingWish) -> WaitResult:
    """`workspace`: as it is now, None if it no longer exists."""
    if workspace is None:
        return WishReached() if wish.desired_state == Wish.DELETED else WishReplaced(Wish.DELETED)
    if workspace["wish_version"] != wish.wish_version and workspace["desired_state"] != wish.desired_state:
        return WishReplaced(workspace["desired_state"])
    if _has_terminal_error(workspace, wish):
        return WishFailed(workspace["error"])
    is_restored = workspace.get("restore") is None
    if workspace["phase"] == wish.desired_state and workspace["operation"] == Operation.NONE and is_restored:
        return WishReached()
    return InProgress()


def _has_terminal_error(workspace: Record, wish: PendingWish) -> bool:
    error = workspace["error"]
    if error is None or not error["is_terminal"]:
        return False
    if error["wish_version"] >= workspace["wish_version"]:
        return True
    # A newer wish clears every error except a lost home or an unreadable marker: those need `torpor recover`.
    return error["reason"] in ASKS_HOW_TO_GO_ON and wish.desired_state != Wish.DELETED and not wish.is_recovery


def wait_for(
    api: ApiClient,
    workspace: Record,
    wish: PendingWish,
    *,
    show: Callable[[Record], None],
    timeout_s: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> Record | None:
    """The workspace once it has the requested state, None if it no longer exists; CommandError if it will not get there.

    Follows events. It reads the workspace itself only after a lost connection, once for each.
    """
    deadline = math.inf if timeout_s is None else clock() + timeout_s
    latest: Record | None = workspace
    result: WaitResult = InProgress()
    # The stream is closed before anything else is asked: the client has one connection.
    with contextlib.closing(_states(api, workspace, wish, lambda: deadline - clock(), clock)) as states:
        for latest in states:
            if latest is not None:
                show(latest)
            result = wait_result(latest, wish)
            if not isinstance(result, InProgress) or clock() >= deadline:
                break
    match result:
        case WishReached():
            return latest
        case WishFailed(error):
            raise _failed(api, latest, wish, error)
        case WishReplaced(desired_state):
            raise _replaced(latest, wish, desired_state)
        case InProgress():
            assert timeout_s is not None, "without a timeout the states end with a result"
            raise _timed_out(latest, wish, timeout_s)
        case unknown:
            assert_never(unknown)


def _states(
    api: ApiClient, workspace: Record, wish: PendingWish, left_s: Callable[[], float], clock: Callable[[], float]
) -> Generator[Record | None]:
    """The workspace now, after each change and after each lost connection; None if it no longer exists."""
    latest: Record | None = workspace
    yield latest
    lost_at = clock()
    try:
        with contextlib.closing(follow(api, wish.id, has_answered=True, left_s=left_s)) as events:
            for event in events:
                if isinstance(event, Gap) and event.is_first:
                    lost_at = clock()
                if not isinstance(event, Gap):
                    # A reset has no workspace; the next event has.
                    latest = event["workspace"] or latest
                elif left_s() > 0:
                    try:
                        latest = api.workspace(wish.id, timeout_s=min(ANSWER_TIMEOUT_S, left_s()))
                        lost_at = clock()
                    except NotFound:
                        raise
                    except CommandError as error:
                        if error.code not in TEMPORARY_FOR_READS or clock() - lost_at > UNREACHABLE_FOR_S:
                            raise
                yield latest
    except NotFound:
        yield None


def _failed(api: ApiClient, workspace: Record | None, wish: PendingWish, error: Record) -> CommandError:
    ways_out = _ways_out(api, wish)
    operation = error.get("operation")
    during = f" ({STATUS_OF_OPERATION[Operation(operation)]})" if operation not in (None, Operation.NONE) else ""
    outcome = "could not be deleted" if workspace and workspace["phase"] == Phase.DELETING else "failed"
    return CommandError(
        ExitCode.ENDED_IN_ERROR,
        f"{wish.name} {outcome}{during}: {error['reason']}: {one_line(str(error['message']))}",
        code="ended_in_error",
        advice=f"`torpor explain {wish.name}` shows the cause" + ("; what you can do:" if ways_out else ""),
        more=[f"  {way['command']}  {way['means']}" for way in ways_out],
        context={"workspace": workspace, "error": error, "ways_out": ways_out},
    )


def _ways_out(api: ApiClient, wish: PendingWish) -> list[Record]:
    try:
        ways: list[Record] = api.explain(wish.id)["ways_out"]
    except (CommandError, KeyError):
        # The error is more important than its explanation.
        return []
    return ways


def _replaced(workspace: Record | None, wish: PendingWish, desired_state: str) -> CommandError:
    requested, expected = state_word(desired_state), state_word(wish.desired_state)
    return CommandError(
        ExitCode.WISH_CHANGED,
        f"the requested state of {wish.name} changed to {requested} while this command waited for {expected}",
        code="wish_changed",
        advice=f"`torpor show {wish.name}` shows the status, `torpor audit` who requested it",
        context={"workspace": workspace},
    )


def _timed_out(workspace: Record | None, wish: PendingWish, timeout_s: float) -> CommandError:
    status = ""
    if workspace:
        trouble = error_words(workspace)
        status = f"; its status is {status_words(workspace)}" + (f" ({trouble})" if trouble else "")
    return CommandError(
        ExitCode.TIMED_OUT,
        f"{wish.name} was not {state_word(wish.desired_state).lower()} after {timeout_s:g} s{status}",
        code="wait_timed_out",
        advice=f"the request stays active; `torpor explain {wish.name}` shows what it waits for",
        context={"workspace": workspace},
    )
