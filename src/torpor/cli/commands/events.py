"""events: print events as they happen."""

from datetime import datetime
from typing import Annotated

import typer

from torpor.cli.completer import workspace_names
from torpor.cli.event_stream import Gap, follow
from torpor.cli.exit_codes import ExitCode
from torpor.cli.options import Json
from torpor.cli.output.console import say, show_json_line, show_line
from torpor.cli.target import api_here


def events(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The workspace's name or id (default: all workspaces).",
            show_default=False,
            autocompletion=workspace_names,
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            metavar="ID",
            min=0,
            help="First print the events after this one (0: the current status of all).",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print events as they happen, one per line, until Ctrl-C."""
    from torpor.cli.output.wording import event_line

    try:
        with api_here() as api:
            for event in follow(api, name, None if since is None else str(since)):
                if isinstance(event, Gap):
                    if event.error is not None and event.is_first:
                        say(f"torpor: {event.error.what}; trying again")
                elif as_json:
                    show_json_line(event)
                else:
                    show_line(event_line(event, local))
    except KeyboardInterrupt:
        # The normal end of this command: no message.
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def local(when: str) -> str:
    """The time in the time zone of this machine."""
    return f"{datetime.fromisoformat(when).astimezone():%Y-%m-%d %H:%M:%S}"
