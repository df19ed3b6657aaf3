"""Read the parameters of a command without importing pydantic.

typer gives every value to pydantic, whose import takes longer than most commands. A string, a path or a default needs no
validation; all other values still go to typer. `docs/decisions` (a fast command line) has the measurements.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption
from typer.main import get_command


def command_of(app: typer.Typer) -> Any:
    """The command that typer builds from `app`, with fast parameters."""
    command = get_command(app)
    for parameter in _parameters(command, None):
        if type(parameter) in FAST:
            # typer has no argument for the class of a parameter. The subclasses override one public method and add no state.
            parameter.__class__ = FAST[type(parameter)]
    return command


def _parameters(command: Any, parent: Any) -> Iterator[Any]:
    """All parameters of a command and of its subcommands, `--help` included, which `command.params` does not have."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    yield from command.get_params(context)
    for subcommand in getattr(command, "commands", {}).values():
        yield from _parameters(subcommand, context)


class FastOption(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return _process(self, ctx, value) if _is_simple(value, self) else super().process_value(ctx, value)


class FastArgument(TyperArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return _process(self, ctx, value) if _is_simple(value, self) else super().process_value(ctx, value)


FAST: dict[type, type] = {TyperOption: FastOption, TyperArgument: FastArgument}


def _is_simple(value: Any, parameter: Any) -> bool:
    """Whether the value needs no validation, and is not missing, which is an error."""
    if parameter.required and parameter.value_is_missing(value):
        return False
    wanted = parameter.type_descriptor.annotation
    if value is None:
        return True
    if _is_list(parameter):
        return wanted in (list[str], list[Path]) and isinstance(value, list | tuple)
    return type(value) is wanted or (wanted is Path and isinstance(value, str))


def _process(parameter: Any, context: Any, value: Any) -> Any:
    converted = _converted(value, parameter)
    return converted if parameter.callback is None else parameter.callback(context, parameter, converted)


def _converted(value: Any, parameter: Any) -> Any:
    if _is_list(parameter):
        convert = Path if parameter.type_descriptor.annotation == list[Path] else str
        return () if value is None else [convert(one) for one in value]
    return Path(value) if parameter.type_descriptor.annotation is Path and value is not None else value


def _is_list(parameter: Any) -> bool:
    return bool(parameter.multiple or parameter.nargs == -1)
