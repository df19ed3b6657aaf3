"""Run one command and turn its errors into messages and exit codes."""

import os
import sys
from collections.abc import Sequence

import typer

from torpor.cli.command_table import app_of, requested_commands
from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.fast_parameters import command_of
from torpor.cli.output.console import say, show_json
from torpor.domain.errors import Refused, TorporError

# The completion scripts of the shells call this instead of a command (`commands.completion`).
COMPLETE = "__complete"
SORT_MODULES = frozenset({"grpc", "google", "google.protobuf", "numpy"})
"""The image for workspaces leaves their packages out (`deploy/images/Dockerfile`)."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code; errors are printed as one line, not as a traceback."""
    if list(argv[:1]) == [COMPLETE]:
        from torpor.cli.completer import answer

        return answer(argv[1:])
    try:
        command = command_of(app_of(requested_commands(argv)))
        result = command.main(args=list(argv) or ["--help"], prog_name="torpor", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output has closed it; without this, the interpreter would fail again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.REFUSED
    except Exception as error:
        if os.environ.get("TORPOR_TRACEBACK"):
            raise
        ended = to_command_error(error)
        say(ended.as_text())
        if wants_json(argv):
            show_json(ended.as_problem())
        return ended.exit_code
    return result if isinstance(result, int) else ExitCode.OK


def to_command_error(error: Exception) -> CommandError:
    match error:
        case CommandError():
            return error
        case typer.TyperException():
            what = error.format_message().replace("Value error, ", "").rstrip(".")
            return usage(what, "`torpor --help` lists the commands, `torpor COMMAND --help` their options")
        case typer.Abort():
            return CommandError(ExitCode.INTERRUPTED, "interrupted", code="interrupted")
        case Refused(code="bad_setting"):
            return usage(error.message, "correct it, or remove it to use the default", code="bad_setting")
        case Refused():
            return CommandError(ExitCode.REFUSED, error.message, code=error.code, context=error.context)
        case TorporError():
            return CommandError(ExitCode.REFUSED, error.message, code=type(error).__name__.lower(), context=error.context)
        case ModuleNotFoundError() if error.name in SORT_MODULES:
            what = "torpor sort needs the packages grpcio, numpy and protobuf, which are not installed here"
            return usage(what, "docs/how-to/sort.md says how to build an image with them", code="missing_packages")
        case _:
            what = f"unexpected error: {type(error).__name__}: {error}"
            return CommandError(
                ExitCode.REFUSED, what, code="unexpected", advice="please report it; TORPOR_TRACEBACK=1 shows a traceback"
            )


def wants_json(argv: Sequence[str]) -> bool:
    """Search the arguments, because they may not have been parsed. Arguments after `--` belong to another program."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)
