"""Format tables and lists as plain text. Lines are aligned and not cut: the reader of a pipe does that. Pure."""

import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import assert_never

from torpor.cli.output.shapes import DescriptionList, Group, Renderable, Table, Text, text

GAP = "  "


def to_text(drawn: Renderable) -> str:
    return "".join(f"{line.rstrip()}\n" for line in _lines(drawn))


def fit_to_width(table: Table, width: int) -> Table:
    """The table without the optional columns for which the terminal is too narrow."""
    while natural_width(table) > width and any(column.may_go for column in table.columns):
        removed = max(range(len(table.columns)), key=lambda index: table.columns[index].may_go)
        kept = [index for index in range(len(table.columns)) if index != removed]
        table = Table(
            tuple(table.columns[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in table.rows)
        )
    return table


def natural_width(table: Table) -> int:
    return sum(_widths([_header(table), *table.rows])) + len(GAP) * (len(table.columns) - 1)


def cells(line: str) -> int:
    """The width in columns of a terminal."""
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


def _lines(drawn: Renderable) -> Sequence[str]:
    match drawn:
        case Text():
            return _split(drawn)
        case Table():
            return _aligned([_header(drawn), *drawn.rows], [column.is_right for column in drawn.columns])
        case DescriptionList():
            return _aligned(drawn.rows, [False, False])
        case Group():
            return [line for part in drawn.parts for line in _lines(part)]
        case unknown:
            assert_never(unknown)


def _header(table: Table) -> tuple[Text, ...]:
    return tuple(text(column.name, "bold") for column in table.columns)


def _split(one: Text) -> Sequence[str]:
    return [line.expandtabs() for line in one.plain.split("\n")]


def _widths(rows: Sequence[Sequence[Text]]) -> Sequence[int]:
    return [max(cells(line) for one in column for line in _split(one)) for column in zip(*rows, strict=True)]


def _aligned(rows: Sequence[Sequence[Text]], is_right: Sequence[bool]) -> Sequence[str]:
    widths = _widths(rows)
    return [
        GAP.join(_padded(part, width, right=right) for part, width, right in zip(line, widths, is_right, strict=True))
        for row in rows
        for line in zip_longest(*map(_split, row), fillvalue="")
    ]


def _padded(part: str, width: int, *, right: bool) -> str:
    padding = " " * (width - cells(part))
    return padding + part if right else part + padding
