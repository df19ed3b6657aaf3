"""How does a sort's command end that did not go as it was meant?"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torpor.cli.exit_codes import CommandError, ExitCode, usage

if TYPE_CHECKING:
    from torpor.sort.errors import SortError

# What the command line itself says wrongly.
USAGE = frozenset({"bad_address", "bad_format", "bad_hold", "bad_index", "bad_memory", "bad_number", "bad_size", "bad_workers"})

# What whoever was refused can do about it, by the stable code, where the refusal does not say it itself.
ADVICE: Mapping[str, str] = {
    "bad_size": "such as 512M or 2G",
    "bad_directory": "choose another directory",
    "bad_join": "--join names the master's join.json",
    "no_join": "--join names the master's join.json",
    "no_files": "is the path right?",
    "missing_input": "is the path right?",
    "unreadable_input": "may this user read it?",
    "other_job": "is --join the join.json of the job that is meant?",
    "too_many": "is --join the join.json of the job that is meant?",
    "truncated": "is --format right?",
}


@contextlib.contextmanager
def translate_sort_errors(*, interrupted: str = "") -> Iterator[None]:
    """What the sort raises becomes what the command says; `interrupted` says what holds after Ctrl-C."""
    from torpor.sort.errors import SortError

    try:
        yield
    except KeyboardInterrupt as error:
        raise CommandError(ExitCode.INTERRUPTED, "interrupted", code="interrupted", advice=interrupted) from error
    except SortError as error:
        raise ended(error) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise CommandError(ExitCode.ENDED_IN_ERROR, f"{where}{error.strerror or error}", code="broken") from error


def ended(error: "SortError") -> CommandError:
    from torpor.sort.errors import PeerNotReady, PeerUnavailable, SortFailed, SortRefused, StaleAttempt

    match error:
        case SortRefused() if error.code in USAGE:
            return usage(error.message, ADVICE.get(error.code, ""), code=error.code)
        case SortRefused():
            return CommandError(ExitCode.REFUSED, error.message, code=error.code, advice=ADVICE.get(error.code, ""))
        case PeerNotReady():
            return CommandError(ExitCode.UNREACHABLE, error.message, code="not_yet", advice="try again in a moment")
        case PeerUnavailable():
            advice = "is it running, is this its address, and is --join its join.json?"
            return CommandError(ExitCode.UNREACHABLE, error.message, code="unreachable", advice=advice)
        case StaleAttempt():
            advice = "nothing is to be done: the other one goes on"
            return CommandError(ExitCode.REFUSED, error.message, code="stale", advice=advice)
        case SortFailed():
            return CommandError(ExitCode.ENDED_IN_ERROR, error.message, code="broken", advice="remove the cause and sort again")
        case _:
            return CommandError(ExitCode.ENDED_IN_ERROR, error.message, code="sort_failed")
