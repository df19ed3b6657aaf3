"""Locate records and their keys in an array of bytes, and read many keys at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torpor.sort.record import Fixed, Format, Lines

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp]
Offsets = npt.NDArray[np.int64]

PREFIX_BYTES = 5
"""Key bytes that are compared at once. With a row of 24 bits they fill one word."""
ROW_BITS = 24

WORD = 8
NEWLINE = 10
# The mask that keeps this many leading bytes of a big-endian word, from none to five.
LEADING = np.array([(1 << 64) - (1 << (64 - 8 * width)) for width in range(PREFIX_BYTES + 1)], dtype=np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class FixedBatch:
    """Records of one length, end to end. The array may be read-only or a mapped file."""

    data: Bytes
    format: Fixed

    def __post_init__(self) -> None:
        if self.data.ndim != 1 or not self.data.flags.c_contiguous or len(self.data) % self.format.length:
            raise ValueError(f"{self.data.shape} bytes are not one row of whole records of {self.format.length} bytes")

    def __len__(self) -> int:
        return len(self.data) // self.format.length

    @property
    def key_length(self) -> int | None:
        """The length of every key, or None if they differ."""
        return self.format.key_length

    def key(self, row: int) -> bytes:
        begin = _within(row, len(self)) * self.format.length + self.format.key_offset
        return self.data[begin : begin + self.format.key_length].tobytes()

    def sizes(self, rows: Rows | None = None) -> Offsets:
        """The bytes of each row."""
        return np.full(_count(self, rows), self.format.length, dtype=np.int64)

    def row_at(self, offset: int) -> int:
        """The first row that begins at this byte of the batch or later."""
        return min(max(-(-offset // self.format.length), 0), len(self))

    def key_lengths(self, rows: Rows | None = None) -> Offsets:
        return np.full(_count(self, rows), self.format.key_length, dtype=np.int64)

    def leading(self, at: int, rows: Rows | None = None) -> Words:
        """`prefix`, shifted to the high 40 bits; a sort packs it with a row."""
        length = self.format.length
        width = min(PREFIX_BYTES, self.format.key_length - at)
        count = _count(self, rows)
        if width <= 0 or not count:
            return np.zeros(count, dtype=np.uint64)
        begin = self.format.key_offset + at
        if length < WORD:
            return self._byte_by_byte(begin, width, rows)
        # Eight bytes are read at once, from as far left as needed to stay within the record.
        read = min(begin, length - WORD)
        strided = np.ndarray((len(self),), dtype=">u8", buffer=self.data, offset=read, strides=(length,))
        words: Words = (strided if rows is None else strided[rows]).astype(np.uint64)
        if begin > read:
            words <<= np.uint64(8 * (begin - read))
        words &= LEADING[width]
        return words

    def prefix(self, at: int, rows: Rows | None = None) -> Words:
        """Five key bytes from key byte `at`, big-endian, padded with zeros, in the low 40 bits."""
        return _lowered(self.leading(at, rows))

    def _byte_by_byte(self, begin: int, width: int, rows: Rows | None) -> Words:
        table = self.data.reshape(-1, self.format.length)
        words = np.zeros(_count(self, rows), dtype=np.uint64)
        for place in range(width):
            column = table[:, begin + place] if rows is None else table[rows, begin + place]
            words |= column.astype(np.uint64) << np.uint64(56 - 8 * place)
        return words


@dataclass(frozen=True, slots=True, eq=False)
class LineBatch:
    """Lines, each with its newline. A key never contains the newline."""

    data: Bytes
    starts: Offsets
    ends: Offsets
    """Newline included."""
    key_starts: Offsets
    key_ends: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def key_length(self) -> int | None:
        """The length of every key, or None if they differ."""
        return None

    def key(self, row: int) -> bytes:
        _within(row, len(self))
        return self.data[self.key_starts[row] : self.key_ends[row]].tobytes()

    def sizes(self, rows: Rows | None = None) -> Offsets:
        """The bytes of each row."""
        return _of(self.ends, rows) - _of(self.starts, rows)

    def row_at(self, offset: int) -> int:
        """The first row that begins at this byte of the batch or later."""
        return int(np.searchsorted(self.starts, offset))

    def key_lengths(self, rows: Rows | None = None) -> Offsets:
        return _of(self.key_ends, rows) - _of(self.key_starts, rows)

    def leading(self, at: int, rows: Rows | None = None) -> Words:
        """`prefix`, shifted to the high 40 bits; a sort packs it with a row."""
        count = _count(self, rows)
        if not count:
            return np.zeros(count, dtype=np.uint64)
        begins = _of(self.key_starts, rows) + at
        masks = LEADING[np.clip(_of(self.key_ends, rows) - begins, 0, PREFIX_BYTES)]
        padded = self.data if len(self.data) >= WORD else np.concatenate([self.data, np.zeros(WORD, dtype=np.uint8)])
        last = len(padded) - WORD
        everywhere = np.ndarray((last + 1,), dtype=">u8", buffer=padded, strides=(1,))
        reads = np.minimum(begins, last)
        words: Words = everywhere[reads].astype(np.uint64)
        # Near the end of the data a word is read from further left. A key that has ended is masked.
        begins -= reads
        if begins.any():
            words <<= (np.minimum(begins, WORD - 1) * 8).astype(np.uint64)
        words &= masks
        return words

    def prefix(self, at: int, rows: Rows | None = None) -> Words:
        """Five key bytes from key byte `at`, big-endian, padded with zeros, in the low 40 bits."""
        return _lowered(self.leading(at, rows))


Batch = FixedBatch | LineBatch


def batch_of(format: Format, data: Bytes) -> Batch:  # noqa: A002 - the product's word for it
    """The records in `data`, which contains only whole records."""
    return FixedBatch(data, format) if isinstance(format, Fixed) else _lines_of(format, data)


def _lines_of(lines: Lines, data: Bytes) -> LineBatch:
    if data.ndim != 1 or not data.flags.c_contiguous or (len(data) and data[-1] != NEWLINE):
        raise ValueError(f"{data.shape} bytes are not one row of whole lines: the last byte is not a newline")
    ends: Offsets = np.flatnonzero(data == NEWLINE)
    ends += 1
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1]
    if lines.field is None:
        return LineBatch(data, starts, ends, starts, ends - 1)
    key_starts, key_ends = _field(data, starts, ends, lines.field, lines.delimiter[0])
    return LineBatch(data, starts, ends, key_starts, key_ends)


def _field(data: Bytes, starts: Offsets, ends: Offsets, field: int, delimiter: int) -> tuple[Offsets, Offsets]:
    """Field `field`, from 1, of each line. A line with fewer fields has an empty key at its end."""
    delimiters = np.flatnonzero(data == delimiter)
    first = np.searchsorted(delimiters, starts)
    # A line without the field finds a delimiter of a later line, or this one after all lines.
    delimiters = np.append(delimiters, len(data))
    before = starts if field == 1 else delimiters[np.minimum(first + field - 2, len(delimiters) - 1)] + 1
    after = delimiters[np.minimum(first + field - 1, len(delimiters) - 1)]
    last = ends - 1
    return np.minimum(before, last), np.minimum(after, last)


def _count(batch: Batch, rows: Rows | None) -> int:
    return len(batch) if rows is None else len(rows)


def _of(array: Offsets, rows: Rows | None) -> Offsets:
    return array if rows is None else array[rows]


def _within(row: int, count: int) -> int:
    if not 0 <= row < count:
        raise IndexError(f"row {row} is not one of {count}")
    return row


def _lowered(words: Words) -> Words:
    words >>= np.uint64(ROW_BITS)
    return words
