"""Complete command lines for the shells.

A shell runs `torpor __complete WORD...`; the last word is unfinished. It gets one candidate per line: the word, a tab and a
description. After an error there are no candidates, and no message: the user is typing. `docs/decisions` (a fast command
line) says why typer's own completion is not used.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torpor.cli.command_table import app_of, requested_commands
from torpor.cli.fast_parameters import command_of
from torpor.cli.output.console import show_text
from torpor.cli.output.wording import state_word

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient

# The user waits with a half-typed command.
PATIENCE_S = 1.0
# A shell could interpret other characters as commands.
_HARMLESS = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9._@/=+-]*")

Candidate = tuple[str, str]


def answer(words: Sequence[str]) -> int:
    with contextlib.suppress(Exception):
        found = candidates(command_of(app_of(requested_commands(words[:-1]))), _without_equals(words))
        lines = [f"{word}\t{' '.join(means.split())}" if means else word for word, means in found if _HARMLESS.fullmatch(word)]
        show_text("".join(f"{line}\n" for line in lines))
    return 0


def candidates(command: Any, words: Sequence[str]) -> Iterable[Candidate]:
    """`words`: the arguments; the last one is unfinished."""
    import typer

    *before, typed = words or [""]
    context = typer.Context(command, resilient_parsing=True)
    taken: list[str] = []
    for word in before:
        below = command.get_command(context, word) if _is_group(command) and not word.startswith("-") else None
        if below is None:
            taken.append(word)
        else:
            command, taken = below, []
            context = typer.Context(command, parent=context, info_name=word, resilient_parsing=True)
    options = {name: one for one in command.get_params(context) if _is_option(one) for name in (*one.opts, *one.secondary_opts)}
    open_option, arguments_taken, has_ended = _state(taken, options)
    if open_option is not None:
        return _values(open_option, context, typed)
    option, equals, value = typed.partition("=")
    if equals and option in options and not has_ended:
        return [(f"{option}={word}", means) for word, means in _values(options[option], context, value)]
    if typed.startswith("-") and not has_ended:
        return [
            (name, one.help or "")
            for name, one in options.items()
            if name.startswith(typed) and name.startswith("--") and not one.hidden
        ]
    if _is_group(command):
        return [
            (name, command.get_command(context, name).get_short_help_str(80))
            for name in command.list_commands(context)
            if name.startswith(typed)
        ]
    arguments = [one for one in command.get_params(context) if not _is_option(one)]
    if arguments_taken < len(arguments):
        return _values(arguments[arguments_taken], context, typed)
    return _values(arguments[-1], context, typed) if arguments and arguments[-1].nargs == -1 else []


def _state(words: Iterable[str], options: "dict[str, Any]") -> tuple[Any, int, bool]:
    """The option whose value comes next, the number of arguments, and whether `--` ended the options."""
    waiting: Any = None
    arguments, has_ended = 0, False
    for word in words:
        if waiting is not None:
            waiting = None
        elif has_ended or not word.startswith("-") or word == "-":
            arguments += 1
        elif word == "--":
            has_ended = True
        else:
            one = options.get(word)
            waiting = one if one is not None and not one.is_flag else None
    return waiting, arguments, has_ended


def _values(parameter: Any, context: Any, typed: str) -> Iterable[Candidate]:
    return [(item.value, item.help or "") for item in parameter.shell_complete(context, typed)]


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _without_equals(words: Sequence[str]) -> Sequence[str]:
    """bash splits `--phase=RUN` into the option, the sign and the value; the sign is left out here."""
    return [word for word in words[:-1] if word != "="] + ["" if word == "=" else word for word in words[-1:]]


# ── values from the API ───────────────────────────────────────────────────────────────────────────────────────────────


def workspace_names(incomplete: str) -> list[Candidate]:
    return _asked(incomplete, lambda api: [(one["name"], state_word(one["phase"])) for one in api.some_workspaces()])


def template_names(incomplete: str) -> list[Candidate]:
    return _asked(incomplete, lambda api: [(one["name"], one["title"]) for one in api.templates()["items"]])


def user_names(incomplete: str) -> list[Candidate]:
    return _asked(incomplete, lambda api: [(one["username"], "") for one in api.users()])


def token_ids(incomplete: str) -> list[Candidate]:
    return _asked(incomplete, lambda api: [(one["id"], one["label"]) for one in api.tokens()])


def session_ids(incomplete: str) -> list[Candidate]:
    return _asked(incomplete, lambda api: [(one["id"], one["came_from"]) for one in api.sessions()])


def _asked(incomplete: str, ask: "Callable[[ApiClient], list[Candidate]]") -> list[Candidate]:
    from torpor.cli.target import api_here

    with contextlib.suppress(Exception), api_here(timeout_s=PATIENCE_S) as api:
        return [(word, means) for word, means in ask(api) if word.startswith(incomplete)]
    return []
