"""How is a word of the command line read without waiting for pydantic?

typer hands every value to pydantic, which takes longer to import than most commands take. A word that is wanted as a word, or
as the name of a file, needs no judgement, and a default is right already; everything else still goes to typer.
"""

from pathlib import Path
from typing import Any

import typer
from typer.main import get_command


def command_of(app: typer.Typer) -> Any:
    """The command that typer makes of it, but for what it need not convert."""
    command = get_command(app)
    _hurry(command, None)
    return command


def _hurry(command: Any, above: Any) -> None:
    context = typer.Context(command, parent=above, **command.context_settings)
    # Not only its own: every command has --help besides.
    for parameter in command.get_params(context):
        # None of this is a promise of typer's: where it is different one day, commands are slower and right.
        if getattr(parameter, "_runtime_param", command) is None and hasattr(parameter, "type_descriptor"):
            parameter._runtime_param = _AsItIs(parameter.type_descriptor)
    for below in getattr(command, "commands", {}).values():
        _hurry(below, context)


class _AsItIs:
    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        wanted = self._descriptor.annotation
        is_many = param.multiple or param.nargs == -1
        if value is None:
            return () if is_many else None
        if wanted == list[str] and isinstance(value, list | tuple):
            return list(value)
        if wanted == list[Path] and isinstance(value, list | tuple):
            return [Path(path) for path in value]
        if not is_many and type(value) is wanted:
            return value
        if wanted is Path and isinstance(value, str):
            return Path(value)
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._descriptor).coerce(value, param=param, ctx=ctx)
