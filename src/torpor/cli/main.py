"""How does a command begin and end?"""

import os
import sys
from collections.abc import Sequence

import typer

from torpor.cli.command_table import app_of, requested_commands
from torpor.cli.exit_codes import CommandError, ExitCode, usage
from torpor.cli.fast_parameters import command_of
from torpor.cli.output.console import say, show_json
from torpor.domain.errors import Refused, TorporError

# What the shells' completion says instead of a command (commands/completion.py).
COMPLETE = "__complete"


def run(argv: Sequence[str]) -> int:
    """One command from its words to its exit code; what went wrong is said, and never as a traceback."""
    if list(argv[:1]) == [COMPLETE]:
        from torpor.cli.completer import answer

        return answer(argv[1:])
    try:
        command = command_of(app_of(requested_commands(argv)))
        result = command.main(args=list(argv) or ["--help"], prog_name="torpor", standalone_mode=False)
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not stumble over it again when it flushes.
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
            return usage(error.message, "correct it, or leave it out for the default", code="bad_setting")
        case Refused():
            return CommandError(ExitCode.REFUSED, error.message, code=error.code, context=error.context)
        case TorporError():
            return CommandError(ExitCode.REFUSED, error.message, code=type(error).__name__.lower(), context=error.context)
        case _:
            what = f"something unexpected happened: {type(error).__name__}: {error}"
            return CommandError(
                ExitCode.REFUSED, what, code="unexpected", advice="please report it; TORPOR_TRACEBACK=1 shows where"
            )


def wants_json(argv: Sequence[str]) -> bool:
    """Asked of the words themselves, because they may be what is wrong. What follows `--` is somebody else's."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)
