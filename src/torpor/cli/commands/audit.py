"""audit: who wished what, when, from where?"""

from typing import Annotated

import typer

from torpor.cli.commands.events import local
from torpor.cli.completer import user_names, workspace_names
from torpor.cli.options import Json
from torpor.cli.output.console import show, show_json
from torpor.cli.target import api_here


def audit(
    username: Annotated[
        str | None,
        typer.Option("--user", "-u", metavar="USER", help="Only what they did.", show_default=False, autocompletion=user_names),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            metavar="NAME",
            help="Only what was done to it.",
            show_default=False,
            autocompletion=workspace_names,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="How many of the last.")] = 50,
    as_json: Json = False,
) -> None:
    """Who did what, when, from where, the latest first."""
    with api_here() as api:
        items = api.audit(username=username, workspace=workspace, at_most=limit)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.audit(items, local))
