"""Compute zlib's CRC-32 of each record of one length.

zlib computes one CRC for each call, and the call costs more than the CRC. But a CRC is affine over bits: the CRC of a record is
the CRC of as many zeros, exclusive-or what each byte adds at its place, which is in tables. So one lookup for each two places
computes it for all records at once. Places that are the same in all records, or the same as their neighbour, need none.
"""

import zlib
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torpor.sort.kernels.batch import Bytes

Sums = NDArray[np.uint32]
Flags = NDArray[np.bool_]

LONGEST_TABLED = 256
"""Longer records go through zlib: the tables would be larger than every cache, and a call costs less than its work."""
BLOCK = 1600 * 1024
"""Bytes that are looked up at once. More would leave the cache from one column to the next; with less, threads wait for each
other between two calls longer than the calls take."""
SAMPLE = 64
"""Records that are examined for what they have in common before all of them are."""
FEWEST_EXAMINED = 1024
"""Fewer records may have something in common by chance, and tables would be made for it and never used again."""


class CrcColumn(NamedTuple):
    """Two neighbouring bytes of every record, or one, and what they add for all places that they represent."""

    at: int
    kind: str
    table: Sums


class Crc32:
    """Holds the buffers of the computation; each thread has its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._rows = max(1, BLOCK // length)
        self._indices = np.empty(self._rows, np.intp)
        self._found = np.empty(self._rows, np.uint32)
        self._differences = np.empty(self._rows * length, np.uint8)

    def of(self, data: Bytes) -> Sums:
        """The CRC of every record. `data` contains only whole records."""
        count, rest = divmod(len(data), self.length)
        if rest:
            raise ValueError(f"{len(data)} bytes are not a whole number of records of {self.length} bytes")
        if self.length > LONGEST_TABLED:
            records = np.split(data, count) if count else []
            return np.fromiter((zlib.crc32(record.data) for record in records), np.uint32, count)
        out = np.empty(count, np.uint32)
        for begin in range(0, count, self._rows):
            stop = min(count, begin + self._rows)
            self._look_up(data[begin * self.length : stop * self.length], out[begin:stop])
        return out

    def _look_up(self, data: Bytes, out: Sums) -> None:
        count = len(out)
        indices, found = self._indices[:count], self._found[:count]
        varying, turning = self._examined(data, count)
        # Bytes that are the same in all records add the same to all.
        out[:] = zlib.crc32(np.where(varying, np.uint8(0), data[: self.length]).tobytes())
        for column in _columns(varying.tobytes(), turning.tobytes()):
            indices[:] = np.ndarray((count,), column.kind, data, offset=column.at, strides=(self.length,))
            # No index is out of range, and "wrap" is the fastest mode.
            column.table.take(indices, out=found, mode="wrap")
            np.bitwise_xor(out, found, out=out)

    def _examined(self, data: Bytes, count: int) -> tuple[Flags, Flags]:
        """The places that are not the same in all records, and the places that are not always the same as the place before."""
        length = self.length
        varying, turning = np.ones(length, np.bool_), np.ones(length, np.bool_)
        if count < FEWEST_EXAMINED:
            return varying, turning
        sample = data[: SAMPLE * length].reshape(SAMPLE, length)
        if (sample == sample[0]).all(axis=0).any():
            varying = self._combined(data[length:], data[:-length])
        repeated = (sample[:, 1:] == sample[:, :-1]).all(axis=0)
        if (repeated & varying[1:]).any():
            # The last byte of each record is compared with the first of the next, which has no meaning; the last record has no
            # next.
            last = data[-length:]
            turning[1:] = self._combined(data[1 : 1 - length], data[:-length])[:-1] | (last[1:] != last[:-1])
        return varying, turning

    def _combined(self, some: Bytes, others: Bytes) -> Flags:
        """The places at which these two differ in any record."""
        # One half of the differences is combined with the other until one is left. These are long rows of bytes for NumPy; a
        # reduction by columns would have short ones.
        length, left = self.length, len(some) // self.length
        differences = self._differences
        np.bitwise_xor(some, others, out=differences[: len(some)])
        while left > 1:
            half = left // 2
            left -= half
            kept = differences[: half * length]
            np.bitwise_or(kept, differences[left * length : (left + half) * length], out=kept)
        return differences[:length].astype(np.bool_)


@lru_cache(maxsize=4)
def _columns(varying: bytes, turning: bytes) -> tuple[CrcColumn, ...]:
    """The lookups that are needed, by a flag for each place."""
    length = len(varying)
    # A place that varies next to one that does not is not always the same, so runs end where anything changes.
    runs = [
        (begin, next((at for at in range(begin + 1, length) if turning[at]), length))
        for begin in range(length)
        if varying[begin] and turning[begin]
    ]
    columns = []
    while runs:
        begin, end = runs.pop(0)
        if runs and runs[0][0] == end:
            # The last byte of one run and the first of the next, as one number.
            columns.append(CrcColumn(end - 1, "<u2", _pair(length, begin, end, runs.pop(0)[1])))
        else:
            columns.append(CrcColumn(begin, "u1", _run(length, begin, end)))
    return tuple(columns)


@lru_cache(maxsize=LONGEST_TABLED)
def _pair(length: int, begin: int, middle: int, end: int) -> Sums:
    """What two runs add. The byte of the first run is the low one."""
    return np.bitwise_xor(_run(length, middle, end)[:, None], _run(length, begin, middle)[None, :]).reshape(-1)


def _run(length: int, begin: int, end: int) -> Sums:
    """What a byte adds that is at all these places."""
    added: Sums = np.bitwise_xor.reduce(_before()[length - end : length - begin], axis=0)
    return added


@cache
def _before() -> Sums:
    """What a byte adds that is this many places before the end."""
    zero = zlib.crc32(b"\0")
    single = np.array([zlib.crc32(bytes([byte])) ^ zero for byte in range(256)], np.uint32)
    places = [single]
    for _ in range(LONGEST_TABLED - 1):
        # One more byte of zeros after it.
        places.append(single[places[-1] & np.uint32(0xFF)] ^ (places[-1] >> np.uint32(8)))
    return np.stack(places)
