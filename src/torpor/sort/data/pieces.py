"""Read a sorted piece of a partition from mapped inputs, a file or memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from torpor.sort.data.buffers import OpenFiles
from torpor.sort.kernels.batch import Bytes, FixedBatch, Rows, Words, batch_of
from torpor.sort.kernels.gather import gather
from torpor.sort.kernels.order import ROW_MASK
from torpor.sort.record import Fixed, Format
from torpor.sort.sizes import KIB

WINDOW = 4 * KIB
NEWLINE = b"\n"


class Piece(Protocol):
    """Records of one chunk in their stable order. Offsets count from the beginning of the piece."""

    @property
    def size(self) -> int: ...

    def fill(self, start: int, out: Bytes) -> None:
        """Read as many bytes as `out` takes. Records of one length are not cut in two."""
        ...

    def record_from(self, offset: int) -> tuple[int, bytes] | None:
        """The first record that begins at this byte or later: its offset and its key."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MappedPiece:
    """The records are in the mapped inputs; the piece has only their order."""

    batch: FixedBatch
    length: int
    packed: Words
    first: int
    """The row of the batch at which the piece's chunk begins."""

    @property
    def size(self) -> int:
        return len(self.packed) * self.length

    def rows(self, start: int, end: int) -> Rows:
        """By their numbers in the piece."""
        rows = (self.packed[start:end] & ROW_MASK).view(np.int64).astype(np.intp, copy=False)
        rows += self.first
        return rows

    def fill(self, start: int, out: Bytes) -> None:
        begin = start // self.length
        gather(self.batch, self.rows(begin, begin + len(out) // self.length), out)

    def record_from(self, offset: int) -> tuple[int, bytes] | None:
        number = -(-offset // self.length)
        if number >= len(self.packed):
            return None
        return number * self.length, self.batch.key(self.first + int(self.packed[number] & ROW_MASK))


@dataclass(frozen=True, slots=True, eq=False)
class FilePiece:
    files: OpenFiles
    path: Path
    begin: int
    """The offset in the file."""
    size: int
    format: Format

    def fill(self, start: int, out: Bytes) -> None:
        self.files.read(self.path, self.begin + start, out)

    def record_from(self, offset: int) -> tuple[int, bytes] | None:
        return _record_from(self._read, self.size, self.format, offset)

    def _read(self, start: int, end: int) -> bytes:
        out = np.empty(end - start, dtype=np.uint8)
        self.files.read(self.path, self.begin + start, out)
        return out.tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPiece:
    data: Bytes
    format: Format
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(self.data))

    def fill(self, start: int, out: Bytes) -> None:
        out[:] = self.data[start : start + len(out)]

    def record_from(self, offset: int) -> tuple[int, bytes] | None:
        return _record_from(lambda start, end: self.data[start:end].tobytes(), self.size, self.format, offset)


Read = Callable[[int, int], bytes]


def _record_from(read: Read, size: int, format: Format, offset: int) -> tuple[int, bytes] | None:  # noqa: A002
    if isinstance(format, Fixed):
        start = -(-offset // format.length) * format.length
        if start >= size:
            return None
        begin = start + format.key_offset
        return start, read(begin, begin + format.key_length)
    # A record begins after a newline, so the search begins one byte earlier.
    start = 0 if offset <= 0 else _behind_newline(read, offset - 1, size)
    if start >= size:
        return None
    line = read(start, _behind_newline(read, start, size))
    return start, batch_of(format, np.frombuffer(line, dtype=np.uint8)).key(0)


def _behind_newline(read: Read, start: int, size: int) -> int:
    window = WINDOW
    while start < size:
        data = read(start, min(size, start + window))
        found = data.find(NEWLINE)
        if found >= 0:
            return start + found + 1
        start, window = start + len(data), window * 4
    return size
