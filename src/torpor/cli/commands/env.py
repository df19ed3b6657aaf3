"""env: set, remove and show the environment variables of a workspace."""

from collections.abc import Iterable
from typing import Annotated

import typer

from torpor.cli.exit_codes import usage
from torpor.cli.options import Json, Name
from torpor.cli.output.console import say, show_json, show_line
from torpor.cli.output.wording import escaped_line
from torpor.cli.target import api_here


def env(
    name: Name,
    variables: Annotated[
        list[str] | None, typer.Argument(metavar="[K=V...]", help="The variables to set.", show_default=False)
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="K", help="Remove this variable; can be repeated.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set environment variables for the next start; show them without options."""
    changes: dict[str, str | None] = {**pairs(variables or ()), **dict.fromkeys(unset or ())}
    with api_here() as api:
        changed = api.change(name, {"environment": changes}) if changes else None
        told = api.environment(name)
    if changed is not None:
        is_running = changed["phase"] == "RUNNING" or changed["operation"] == "STARTING"
        again = f"; `torpor stop {name} --wait` and `torpor start {name}` start it again" if is_running else ""
        say(f"torpor: this applies at the next start of {name}{again}")
    if as_json:
        show_json(told)
        return
    for variable, value in sorted(told["environment"].items()):
        show_line(escaped_line(f"{variable}={value}"))


def pairs(variables: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE as a table."""
    found: dict[str, str] = {}
    for word in variables:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise usage(f"{word!r} is not NAME=VALUE", "for example COLOUR=blue; --unset NAME removes a variable")
        found[name] = value
    return found
