"""sessions: list and end your browser sessions."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from torpor.cli.command_group import group
from torpor.cli.completer import session_ids
from torpor.cli.options import Json
from torpor.cli.output.console import show, show_json, show_line
from torpor.cli.target import api_here

ALL = "all"


def list_(as_json: Json = False) -> None:
    """List your browser sessions."""
    with api_here() as api:
        items = api.sessions()
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.sessions(items, datetime.now(UTC)))


def end(
    session_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The id from `torpor sessions list`; `all` ends all.",
            show_default=False,
            autocompletion=session_ids,
        ),
    ],
    as_json: Json = False,
) -> None:
    """End a session."""
    with api_here() as api:
        ended = [item["id"] for item in api.sessions()] if session_id == ALL else [session_id]
        for one in ended:
            api.end_session(one)
    if as_json:
        show_json({"ended": ended})
    elif session_id == ALL:
        show_line(f"{len(ended)} {'session has' if len(ended) == 1 else 'sessions have'} ended")
    else:
        show_line(f"session {session_id} has ended")


app = group("sessions", "Your browser sessions.", list_, {"list": list_, "end": end})
