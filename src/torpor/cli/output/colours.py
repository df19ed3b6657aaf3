"""Draw tables and lists at a terminal: in colours, unless NO_COLOR is set, and as wide as the terminal."""

from collections.abc import Mapping
from typing import Any, assert_never

from rich.console import Console, RenderableType
from rich.console import Group as RichGroup
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table as RichTable
from rich.text import Text as RichText

from torpor.cli.output.plain import fit_to_width
from torpor.cli.output.shapes import DescriptionList, Group, Renderable, Table, Text, text
from torpor.cli.output.wording import change_line

BAR_WIDTH = 30
PADDING = (0, 2, 0, 0)


def coloured(drawn: Renderable, width: int) -> RenderableType:
    match drawn:
        case Text():
            return _text(drawn)
        case Table():
            return _table(fit_to_width(drawn, width))
        case DescriptionList():
            return _facts(drawn)
        case Group():
            return RichGroup(*[coloured(part, width) for part in drawn.parts])
        case unknown:
            assert_never(unknown)


def progress_line(item: Mapping[str, Any], spinner: Spinner) -> RenderableType:
    grid = RichTable.grid(padding=(0, 1))
    parts: list[RenderableType] = [spinner, _text(text(change_line(item)))]
    if item["operation"] != "NONE" and item["progress"] is not None:
        parts.append(ProgressBar(total=100, completed=item["progress"], width=BAR_WIDTH))
    grid.add_row(*parts)
    return grid


def without_colours(renderable: RenderableType, *, width: int = 200) -> str:
    """A rich renderable as plain text."""
    plain = Console(width=width, color_system=None, markup=False, highlight=False, emoji=False, force_terminal=False)
    with plain.capture() as captured:
        plain.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _text(one: Text) -> RichText:
    return RichText.assemble(*[(piece.text, piece.style) for piece in one.pieces])


def _table(table: Table) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=PADDING)
    for column in table.columns:
        drawn.add_column(RichText(column.name), justify="right" if column.is_right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(_text, row))
    return drawn


def _facts(facts: DescriptionList) -> RichTable:
    drawn = RichTable.grid(padding=PADDING)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in facts.rows:
        drawn.add_row(_text(name), _text(value))
    return drawn
