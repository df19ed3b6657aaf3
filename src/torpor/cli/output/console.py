"""Print the results and messages of commands: for users, as JSON, or as bytes."""

import json
import sys
from typing import TYPE_CHECKING, Any

from torpor.cli.output.shapes import Renderable
from torpor.cli.output.wording import escaped, escaped_json, escaped_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A pipe has no width, and its reader needs whole lines.
PIPE_WIDTH = 10_000


def show(drawn: "Renderable | RenderableType") -> None:
    """In colours at a terminal, as plain text anywhere else. Plain text avoids rich if possible: its import is slow."""
    if isinstance(drawn, Renderable):
        if sys.stdout.isatty():
            from torpor.cli.output.colours import coloured

            here = console()
            here.print(coloured(drawn, here.width))
        else:
            from torpor.cli.output.plain import to_text

            show_bytes(to_text(drawn).encode("utf-8", "replace"))
    elif sys.stdout.isatty():
        console().print(drawn)
    else:
        from torpor.cli.output.colours import without_colours

        show_bytes(without_colours(drawn, width=PIPE_WIDTH).encode("utf-8", "replace"))


def show_json(answer: Any) -> None:
    _show(escaped_json(json.dumps(answer, indent=2, ensure_ascii=False)) + "\n")


def show_json_line(answer: Any) -> None:
    _show(escaped_json(json.dumps(answer, ensure_ascii=False)) + "\n")


def show_line(line: str) -> None:
    _show(f"{escaped_line(line)}\n")


def show_text(text: str) -> None:
    """Text of several lines, control characters escaped."""
    _show(escaped(text))


def _show(text: str) -> None:
    show_bytes(text.encode("utf-8", "replace"))


def show_bytes(content: bytes) -> None:
    """Unchanged: only for output that was requested as bytes, and for our own text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def say(line: str) -> None:
    """A message on standard error; standard output is for the result."""
    print(escaped(line), file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> "Console":
    """A console that prints text as it is: brackets and colons are not markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)
