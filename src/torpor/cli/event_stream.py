"""Follow the events of the API over lost connections."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torpor.cli.exit_codes import CommandError

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient, Record

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
# The server restarts, is still starting, or still counts the streams of connections that were lost just now.
TEMPORARY = frozenset({"unreachable", "unavailable", "too_many_streams"})


@dataclass(frozen=True, slots=True)
class Gap:
    """The connection was lost. The next events continue where it was, but may come late."""

    error: CommandError | None
    is_first: bool
    """The connection worked until now: an event or a heartbeat has come since the last Gap."""


def follow(
    api: "ApiClient",
    name: str | None,
    since: str | None = None,
    *,
    has_answered: bool = False,
    left_s: Callable[[], float] | None = None,
) -> "Generator[Record | Gap]":
    """Every event except heartbeats, without end. After a lost connection: a Gap, a pause, then the events that were missed.

    An error of the first attempt is raised, unless the server `has_answered` before. No call waits longer than `left_s`.
    """
    pause_s, is_first = FIRST_PAUSE_S, True
    while True:
        error: CommandError | None = None
        try:
            for event in api.events(name, since, left_s=left_s):
                has_answered, pause_s, is_first = True, FIRST_PAUSE_S, True
                since = str(event["id"])
                if name is not None and event["workspace"] is not None:
                    # The id stays valid if the workspace is renamed.
                    name = event["workspace"]["id"]
                if event["event"] != "heartbeat":
                    yield event
        except CommandError as raised:
            if not has_answered or raised.code not in TEMPORARY:
                raise
            error = raised
        yield Gap(error, is_first)
        is_first = False
        time.sleep(pause_s if left_s is None else max(0.0, min(pause_s, left_s())))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
