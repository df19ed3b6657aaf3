"""The table of commands and their modules.

Only the module of the requested command is imported, so that each command starts fast.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from torpor import __version__
from torpor.cli.output.console import show_bytes

COMMANDS: Mapping[str, str] = {
    "create": "commands.workspaces:create",
    "list": "commands.inspect:list_",
    "show": "commands.inspect:show",
    "start": "commands.workspaces:start",
    "stop": "commands.workspaces:stop",
    "archive": "commands.workspaces:archive",
    "delete": "commands.workspaces:delete",
    "undelete": "commands.workspaces:undelete",
    "recover": "commands.workspaces:recover",
    "open": "commands.logs_and_open:open_",
    "shell": "commands.shell:shell",
    "exec": "commands.exec:exec_",
    "logs": "commands.logs_and_open:logs",
    "events": "commands.events:events",
    "explain": "commands.inspect:explain",
    "history": "commands.inspect:history",
    "archives": "commands.time_machine:archives",
    "restore": "commands.time_machine:restore",
    "fork": "commands.time_machine:fork",
    "hold": "commands.hold:hold",
    "before-sleep": "commands.before_sleep:before_sleep",
    "env": "commands.env:env",
    "secrets": "commands.secrets:app",
    "share": "commands.sharing:share",
    "unshare": "commands.sharing:unshare",
    "shares": "commands.sharing:shares",
    "templates": "commands.templates:app",
    "limits": "commands.inspect:limits",
    "login": "commands.login:login",
    "logout": "commands.login:logout",
    "tokens": "commands.tokens:app",
    "sessions": "commands.sessions:app",
    "users": "commands.users:app",
    "audit": "commands.audit:audit",
    "up": "commands.product:up",
    "serve": "commands.product:serve",
    "down": "commands.product:down",
    "doctor": "commands.product:doctor",
    "release": "commands.product:release",
    "migrate": "commands.product:migrate",
    "switch-runtime": "commands.switch_runtime:switch_runtime",
    "gc": "commands.gc:gc",
    "kit": "commands.kit:app",
    "completion": "commands.completion:completion",
    "sort": "sort.commands:app",
}


def requested_commands(words: Sequence[str]) -> Iterable[str]:
    """The names of the commands that the arguments may mean: one, or all if that is not clear."""
    if list(words) == ["--version"]:
        return ()
    first = next((word for word in words if not word.startswith("-")), "")
    return (first,) if first in COMMANDS else COMMANDS


def app_of(names: Iterable[str]) -> typer.Typer:
    app = typer.Typer(
        name="torpor",
        help="Development workspaces that stop when idle and start on access.",
        rich_markup_mode=None,  # importing rich for the help takes too long
        pretty_exceptions_enable=False,
        add_completion=False,  # `torpor completion` is our own, and faster
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_torpor)
    for name in names:
        module, _, inside = COMMANDS[name].partition(":")
        found = getattr(import_module(f"torpor.cli.{module}"), inside)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _version(asked: bool) -> None:
    if asked:
        show_bytes(f"torpor {__version__}\n".encode())
        raise typer.Exit


def _torpor(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass
