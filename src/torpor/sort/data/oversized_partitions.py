"""Divide a partition that is too large to be sorted at once, without a change of the output."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from torpor.sort.data.pieces import Piece

SAMPLES = 64
"""For each division that is wanted."""


class ByteRange(NamedTuple):
    """Some bytes of one piece."""

    start: int
    end: int


class RecordPosition(NamedTuple):
    """A place in the order of all records. Pieces are ordered and each is stable, so this order is total."""

    key: bytes
    piece: int
    start: int


Stretches = tuple[ByteRange, ...]
"""One for each piece."""


def split_partition(pieces: Sequence[Piece], most: int) -> Iterator[Stretches]:
    """Stretches of together at most `most` bytes, or of one record that is larger; in order."""
    return _divide(pieces, tuple(ByteRange(0, piece.size) for piece in pieces), most)


def _divide(pieces: Sequence[Piece], stretches: Stretches, most: int) -> Iterator[Stretches]:
    size = _size(stretches)
    if size <= most:
        yield stretches
        return
    for choose in (_by_samples, _by_the_largest, _one_by_one):
        parts = _cut(pieces, stretches, choose(pieces, stretches, most))
        if max(map(_size, parts)) < size:
            for part in parts:
                if _size(part):
                    yield from _divide(pieces, part, most)
            return
    yield stretches


def _size(stretches: Stretches) -> int:
    return sum(end - start for start, end in stretches)


def _by_samples(pieces: Sequence[Piece], stretches: Stretches, most: int) -> list[RecordPosition]:
    size = _size(stretches)
    # Samples are inexact, and dividing again costs more than dividing a little finer.
    parts = -(-size * 5 // (most * 4))
    weighed: list[tuple[RecordPosition, float]] = []
    for number, (start, end) in enumerate(stretches):
        count = max(1, round(SAMPLES * parts * (end - start) / size)) if end > start else 0
        for sample in range(count):
            mark = _mark(pieces, number, start + (end - start) * sample // count, end)
            if mark is not None:
                weighed.append((mark, (end - start) / count))
    weighed.sort()
    marks: list[RecordPosition] = []
    below = 0.0
    for mark, weight in weighed:
        if below >= size * (len(marks) + 1) / parts:
            marks.append(mark)
        below += weight
    return marks


def _by_the_largest(pieces: Sequence[Piece], stretches: Stretches, _: int) -> list[RecordPosition]:
    number = max(range(len(stretches)), key=lambda each: stretches[each].end - stretches[each].start)
    start, end = stretches[number]
    mark = _mark(pieces, number, (start + end) // 2, end) or _mark(pieces, number, start + 1, end)
    return [] if mark is None else [mark]


def _one_by_one(pieces: Sequence[Piece], stretches: Stretches, _: int) -> list[RecordPosition]:
    """Each piece has one record by now."""
    marks = (_mark(pieces, number, start, end) for number, (start, end) in enumerate(stretches))
    return sorted(mark for mark in marks if mark is not None)


def _mark(pieces: Sequence[Piece], number: int, offset: int, end: int) -> RecordPosition | None:
    found = pieces[number].record_from(offset)
    return None if found is None or found[0] >= end else RecordPosition(found[1], number, found[0])


def _cut(pieces: Sequence[Piece], stretches: Stretches, marks: Sequence[RecordPosition]) -> list[Stretches]:
    columns = []
    for number, (start, end) in enumerate(stretches):
        cuts = [start]
        for mark in marks:
            cuts.append(_first_from(pieces, number, ByteRange(cuts[-1], end), mark))
        columns.append([ByteRange(*pair) for pair in pairwise([*cuts, end])])
    return [tuple(column[part] for column in columns) for part in range(len(marks) + 1)]


def _first_from(pieces: Sequence[Piece], number: int, stretch: ByteRange, wanted: RecordPosition) -> int:
    """Where the first record begins that is not below the wanted position."""
    low, high = stretch
    while low < high:
        middle = (low + high) // 2
        found = _mark(pieces, number, middle, stretch.end)
        if found is None or found >= wanted:
            high = middle
        else:
            low = found.start + 1
    found = _mark(pieces, number, low, stretch.end)
    return stretch.end if found is None else found.start
