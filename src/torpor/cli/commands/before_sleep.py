"""before-sleep: set or show the command that runs before an automatic stop."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import usage
from torpor.cli.options import Json, Name
from torpor.cli.output.console import show_json, show_line
from torpor.cli.target import api_here

if TYPE_CHECKING:
    from torpor.cli.client import Record


def before_sleep(
    name: Name,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD...]", help="The program and its arguments.", show_default=False),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Run nothing, even if the template has a command.")] = False,
    default: Annotated[bool, typer.Option("--default", help="Use the command of the template.")] = False,
    as_json: Json = False,
) -> None:
    """Set the command that runs before an automatic stop; show it without options."""
    if bool(command) + off + default > 1:
        raise usage("a command, --off and --default cannot be used together", "choose one of them")
    with api_here() as api:
        if command or off or default:
            workspace = api.change(name, {"before_sleep": None if default else command or []})
        else:
            workspace = api.workspace(name)
    if as_json:
        show_json(workspace)
    else:
        show_line(f"{workspace['name']}: {before_sleep_words(workspace)}")


def words_of(line: str) -> list[str]:
    """The value of an option split into a program and its arguments; empty for none."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise usage(f"--before-sleep cannot be split into words: {error}", "close every quote") from None


def before_sleep_words(workspace: "Record") -> str:
    command = workspace.get("before_sleep")
    if command is None:
        return f"before an automatic stop, the command of the template {workspace['template']} runs"
    return f"before an automatic stop, this runs: {shlex.join(command)}" if command else "nothing runs before an automatic stop"
