"""audit: show who did what, when and from where."""

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
        typer.Option(
            "--user", "-u", metavar="USER", help="Only the actions of this user.", show_default=False, autocompletion=user_names
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            metavar="NAME",
            help="Only the actions on this workspace.",
            show_default=False,
            autocompletion=workspace_names,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="How many entries, the newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """Show who did what, when and from where, newest first."""
    with api_here() as api:
        items = api.audit(username=username, workspace=workspace, at_most=limit)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.audit(items, local))
