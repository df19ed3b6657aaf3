"""secrets: set, list and remove the secrets of a workspace. Values are read from standard input or a prompt."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from torpor.cli.command_group import group
from torpor.cli.options import Json, Name
from torpor.cli.output.console import say, show, show_json, show_line
from torpor.cli.prompts import read_whole_secret
from torpor.cli.target import api_here

Key = Annotated[str, typer.Argument(metavar="KEY", help="The name of the variable.", show_default=False)]


def set_(name: Name, key: Key, as_json: Json = False) -> None:
    """Set a secret; its value is read from standard input, or asked for."""
    value = read_whole_secret(f"Value of {key}: ")
    with api_here() as api:
        made = api.set_secret(name, key, value)
    say(f"torpor: {key} is set; this applies at the next start of {name}")
    if as_json:
        show_json(made)


def list_(name: Name, as_json: Json = False) -> None:
    """List the names of secrets, and when each was set."""
    with api_here() as api:
        items = api.secrets(name)
    if as_json:
        show_json({"items": items})
        return
    from torpor.cli.output import render_users

    show(render_users.secrets(items, name, datetime.now(UTC)))


def remove(name: Name, key: Key, as_json: Json = False) -> None:
    """Remove a secret."""
    with api_here() as api:
        api.remove_secret(name, key)
    if as_json:
        show_json({"removed": key})
    else:
        show_line(f"{key} is removed; a workspace that runs keeps it until it is stopped")


app = group("secrets", "The secrets of a workspace.", None, {"set": set_, "list": list_, "remove": remove})
