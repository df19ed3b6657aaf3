"""events: follow what changes, as it does."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.completer import workspace_names
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.cli.options import Json
from torpor.cli.output.console import say, show_json_line, show_line
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient, Record

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
# The server is away for a moment, busy with coming back, or still thinks that those are there who have just been cut off.
PASSING = frozenset({"unreachable", "unavailable", "too_many_streams"})


def events(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The workspace's name or id; all of them without it.",
            show_default=False,
            autocompletion=workspace_names,
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since", metavar="ID", min=0, help="First what came after this event (0: how all stand).", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow what changes, one line an event, until Ctrl-C."""
    from torpor.cli.output.wording import event_line

    try:
        with api_here() as api:
            for event in follow(api, name, None if since is None else str(since)):
                show_json_line(event) if as_json else show_line(event_line(event, local))
    except KeyboardInterrupt:
        # This is how it is meant to end: there is nothing to say about it.
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def follow(api: "ApiClient", name: str | None, since: str | None) -> "Iterator[Record]":
    """Every event but heartbeats; whenever the connection is lost, from where it was on."""
    is_connected = False
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            for event in api.events(name, since):
                is_connected, pause_s = True, FIRST_PAUSE_S
                since = str(event["id"])
                if name is not None and event["workspace"] is not None:
                    # It may be renamed while it is followed.
                    name = event["workspace"]["id"]
                if event["event"] != "heartbeat":
                    yield event
        except CommandError as ended:
            # What fails at once is said; who has followed for a while would rather wait.
            if not is_connected or ended.code not in PASSING:
                raise
            if pause_s == FIRST_PAUSE_S:
                say(f"torpor: {ended.what}; trying again")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def local(when: str) -> str:
    """In the time zone of whoever reads it."""
    return f"{datetime.fromisoformat(when).astimezone():%Y-%m-%d %H:%M:%S}"
