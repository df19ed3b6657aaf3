"""Which commands are there, and where does each live?

Only what was asked for is imported: a command line is used often, and each time one command of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from torpor import __version__
from torpor.cli.output import show_bytes

COMMANDS: Mapping[str, str] = {
    "create": "workspaces:create",
    "list": "look:list_",
    "show": "look:show",
    "start": "workspaces:start",
    "stop": "workspaces:stop",
    "archive": "workspaces:archive",
    "delete": "workspaces:delete",
    "undelete": "workspaces:undelete",
    "recover": "workspaces:recover",
    "open": "use:open_",
    "shell": "shell:shell",
    "exec": "exec_stream:exec_",
    "logs": "use:logs",
    "events": "events:events",
    "explain": "look:explain",
    "history": "look:history",
    "archives": "look:archives",
    "hold": "holding:hold",
    "before-sleep": "before_sleep:before_sleep",
    "share": "sharing:share",
    "unshare": "sharing:unshare",
    "shares": "sharing:shares",
    "templates": "look:templates",
    "limits": "look:limits",
    "login": "signing_in:login",
    "logout": "signing_in:logout",
    "tokens": "tokens:app",
    "sessions": "sessions:app",
    "users": "people:app",
    "audit": "looking_back:audit",
    "up": "product:up",
    "serve": "product:serve",
    "down": "product:down",
    "doctor": "product:doctor",
    "release": "product:release",
    "migrate": "product:migrate",
    "gc": "collecting:gc",
    "completion": "completion:completion",
    "sort": "sorting:app",
}


def asked_for(words: Sequence[str]) -> Iterable[str]:
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
