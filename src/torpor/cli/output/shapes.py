"""The shapes of output: text, table, description list and group.

`render` turns records into these values. `colours` draws them at a terminal, `plain` anywhere else, so that piped output
does not have to import rich.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torpor.cli.output.wording import NOTHING, escaped


@dataclass(frozen=True, slots=True)
class StyledText:
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One or more lines."""

    pieces: tuple[StyledText, ...]

    @property
    def plain(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    is_right: bool = False
    may_go: int = 0
    """If the terminal is too narrow, columns with the highest number are left out first; 0: never."""


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, ...], ...]


@dataclass(frozen=True, slots=True)
class DescriptionList:
    """Names and values in two aligned columns."""

    rows: tuple[tuple[Text, Text], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Parts below each other."""

    parts: "tuple[Renderable, ...]"


Renderable: TypeAlias = Text | Table | DescriptionList | Group


def text(value: object, style: str = "") -> Text:
    """A value as text, `-` for None; control characters are escaped."""
    return Text((StyledText(NOTHING, "dim"),)) if value is None else Text((StyledText(escaped(value), style),))


def line(*parts: Text | str) -> Text:
    pieces = [(StyledText(escaped(part)),) if isinstance(part, str) else part.pieces for part in parts]
    return Text(tuple(piece for some in pieces for piece in some))


def table(columns: Sequence[Column | str], rows: Sequence[Sequence[Text]]) -> Table:
    named = tuple(column if isinstance(column, Column) else Column(column) for column in columns)
    return Table(named, tuple(tuple(row) for row in rows))


def facts(rows: Sequence[tuple[str, Text]], *, indent: int = 0) -> DescriptionList:
    return DescriptionList(tuple((text(" " * indent + name, "" if indent else "dim"), value) for name, value in rows))
