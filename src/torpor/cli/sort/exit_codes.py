"""Map the errors of a sort to exit codes and advice."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torpor.cli.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from torpor.sort.errors import SortError

# By the stable code of the error. All other codes are refusals (1).
EXIT_CODES: Mapping[str, ExitCode] = {
    "bad_address": ExitCode.USAGE,
    "bad_format": ExitCode.USAGE,
    "bad_hold": ExitCode.USAGE,
    "bad_index": ExitCode.USAGE,
    "bad_memory": ExitCode.USAGE,
    "bad_number": ExitCode.USAGE,
    "bad_size": ExitCode.USAGE,
    "bad_workers": ExitCode.USAGE,
    "broken": ExitCode.ENDED_IN_ERROR,
    "sort_failed": ExitCode.ENDED_IN_ERROR,
    "not_yet": ExitCode.UNREACHABLE,
    "unreachable": ExitCode.UNREACHABLE,
    "interrupted": ExitCode.INTERRUPTED,
}

# What the user can do, by the stable code of the error, where the message does not say it.
ADVICE: Mapping[str, str] = {
    "bad_size": "such as 512M or 2G",
    "bad_directory": "choose another directory",
    "bad_join": "--join needs the master's join.json",
    "no_join": "--join needs the master's join.json",
    "no_files": "check the path",
    "missing_input": "check the path",
    "unreadable_input": "check that this user may read it",
    "other_job": "check that --join is the join.json of this job",
    "too_many": "check that --join is the join.json of this job",
    "truncated": "check --format",
    "not_yet": "try again in a moment",
    "unreachable": "check that it runs, that the address is right, and that --join is its join.json",
    "stale": "no action is required: the newer attempt continues",
    "broken": "fix the cause and sort again",
}


@contextlib.contextmanager
def translate_sort_errors(*, interrupted: str = "") -> Iterator[None]:
    """Raise the errors of a sort as CommandError; `interrupted` is the advice after Ctrl-C."""
    from torpor.sort.errors import SortError

    try:
        yield
    except KeyboardInterrupt as error:
        raise _command_error("interrupted", "interrupted", advice=interrupted) from error
    except SortError as error:
        raise _command_error(_code_of(error), error.message) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise _command_error("broken", f"{where}{error.strerror or error}", advice="") from error


def _command_error(code: str, what: str, *, advice: str | None = None) -> CommandError:
    exit_code = EXIT_CODES.get(code, ExitCode.REFUSED)
    return CommandError(exit_code, what, code=code, advice=ADVICE.get(code, "") if advice is None else advice)


def _code_of(error: "SortError") -> str:
    from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortFailed, SortRefused, StaleAttempt

    match error:
        case SortRefused():
            return error.code
        case PeerNotReady():
            return "not_yet"
        case PeerUnavailable():
            return "unreachable"
        case StaleAttempt():
            return "stale"
        case SortFailed():
            return "broken"
        case _:
            return "sort_failed"
