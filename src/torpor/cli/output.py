"""How does a command speak: to a person, to a program, to another program's standard input?"""

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A pipe has no width, and what reads it wants whole lines.
PIPE_WIDTH = 10_000


def show(renderable: "RenderableType") -> None:
    if sys.stdout.isatty():
        console().print(renderable)
        return
    from torpor.cli.render import to_text

    show_bytes(to_text(renderable, width=PIPE_WIDTH).encode())


def show_json(answer: Any) -> None:
    show_bytes(json.dumps(answer, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def show_bytes(content: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def say(line: str) -> None:
    """To standard error: what is for people while standard output is for the result."""
    print(line, file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> "Console":
    """A terminal to draw at; what is drawn is text, whatever brackets and colons stand in it."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)
