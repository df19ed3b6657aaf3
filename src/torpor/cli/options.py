"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from torpor.cli.completer import user_names, workspace_names

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The workspace's name or id.", show_default=False, autocompletion=workspace_names),
]
User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False, autocompletion=user_names)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the requested state; exit code 3 after an error.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait; exit code 5 after that.", show_default=False),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="The data directory (default: TORPOR_DATA).", show_default=False),
]
NoWake = Annotated[bool, typer.Option("--no-wake", help="Fail if the workspace is not running, instead of waking it.")]
