"""Which commands are there, and where does each live?

Only what was asked for is imported: a command line is used often, and each time one command of it.
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
    "archives": "commands.inspect:archives",
    "hold": "commands.hold:hold",
    "before-sleep": "commands.before_sleep:before_sleep",
    "share": "commands.sharing:share",
    "unshare": "commands.sharing:unshare",
    "shares": "commands.sharing:shares",
    "templates": "commands.inspect:templates",
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
    "gc": "commands.gc:gc",
    "completion": "commands.completion:completion",
    "sort": "sort.commands:app",
}


def requested_commands(words: Sequence[str]) -> Iterable[str]:
    """The names of the commands that these words may be about: one, or all where it is not clear."""
    if list(words) == ["--version"]:
        return ()
    first = next((word for word in words if not word.startswith("-")), "")
    return (first,) if first in COMMANDS else COMMANDS


def app_of(names: Iterable[str]) -> typer.Typer:
    app = typer.Typer(
        name="torpor",
        help="Development workspaces that sleep when their people do, and wake when somebody knocks.",
        rich_markup_mode=None,  # drawing the help with rich would take longer than reading it
        pretty_exceptions_enable=False,
        add_completion=False,  # `torpor completion` is ours, and quicker
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    pass
