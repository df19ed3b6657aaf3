"""Which commands are there, and how does each end?"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from torpor import __version__
from torpor.cli import collecting, events, holding, look, product, sorting, use, workspaces
from torpor.cli.ends import Ended, ExitCode, usage
from torpor.cli.output import say, show_bytes, show_json
from torpor.domain.errors import Refused, TorporError

app = typer.Typer(
    name="torpor",
    help="Development workspaces that sleep when their people do, and wake when somebody knocks.",
    rich_markup_mode=None,  # drawing the help with rich would take longer than reading it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: Mapping[str, Callable[..., None]] = {
    "create": workspaces.create,
    "list": look.list_,
    "show": look.show,
    "start": workspaces.start,
    "stop": workspaces.stop,
    "archive": workspaces.archive,
    "delete": workspaces.delete,
    "undelete": workspaces.undelete,
    "recover": workspaces.recover,
    "open": use.open_,
    "exec": use.exec_,
    "logs": use.logs,
    "events": events.events,
    "explain": look.explain,
    "history": look.history,
    "archives": look.archives,
    "hold": holding.hold,
    "templates": look.templates,
    "up": product.up,
    "serve": product.serve,
    "down": product.down,
    "doctor": product.doctor,
    "release": product.release,
    "migrate": product.migrate,
    "gc": collecting.gc,
}

for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(sorting.app, name="sort")


def _version(asked: bool) -> None:
    if asked:
        show_bytes(f"torpor {__version__}\n".encode())
        raise typer.Exit


@app.callback()
def _torpor(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    pass


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """One command from its words to its exit code; what went wrong is said, and never as a traceback."""
    try:
        result = app(args=list(argv) or ["--help"], prog_name="torpor", standalone_mode=False)
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not stumble over it again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.REFUSED
    except Exception as error:
        if os.environ.get("TORPOR_TRACEBACK"):
            raise
        ended = how_it_ended(error)
        say(ended.as_text())
        if wants_json(argv):
            show_json(ended.as_problem())
        return ended.exit_code
    return result if isinstance(result, int) else ExitCode.OK


def how_it_ended(error: Exception) -> Ended:
    match error:
        case Ended():
            return error
        case typer.TyperException():
            return usage(
                error.format_message().rstrip("."), "`torpor --help` lists the commands, `torpor COMMAND --help` their options"
            )
        case typer.Abort():
            return Ended(ExitCode.INTERRUPTED, "interrupted", code="interrupted")
        case Refused(code="bad_setting"):
            return usage(error.message, "correct it, or leave it out for the default", code="bad_setting")
        case Refused():
            return Ended(ExitCode.REFUSED, error.message, code=error.code, context=error.context)
        case TorporError():
            return Ended(ExitCode.REFUSED, error.message, code=type(error).__name__.lower(), context=error.context)
        case _:
            what = f"something unexpected happened: {type(error).__name__}: {error}"
            return Ended(ExitCode.REFUSED, what, code="unexpected", advice="please report it; TORPOR_TRACEBACK=1 shows where")


def wants_json(argv: Sequence[str]) -> bool:
    """Asked of the words themselves, because they may be what is wrong. What follows `--` is somebody else's."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)
