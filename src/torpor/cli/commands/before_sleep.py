"""before-sleep: the command that runs before a workspace is stopped automatically."""

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
    off: Annotated[bool, typer.Option("--off", help="Run nothing, whatever the template says.")] = False,
    default: Annotated[bool, typer.Option("--default", help="What the template says.")] = False,
    as_json: Json = False,
) -> None:
    """Set the command that runs before an automatic stop; without options: show it."""
    if bool(command) + off + default > 1:
        raise usage("a command, --off and --default exclude each other", "give one of them")
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
    """One option's value as a program and its arguments; empty: none."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise usage(f"--before-sleep cannot be split into words: {error}", "see that every quote is closed") from None


def before_sleep_words(workspace: "Record") -> str:
    command = workspace.get("before_sleep")
    if command is None:
        return f"before an automatic stop, what the template {workspace['template']} says is run"
    return f"before an automatic stop, this is run: {shlex.join(command)}" if command else "nothing is run before a stop"
