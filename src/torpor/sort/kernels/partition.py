"""Find where each partition begins in a sorted chunk."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torpor.sort.kernels.batch import PREFIX_BYTES, Batch, Offsets, Words
from torpor.sort.kernels.order import PACKED_BITS, ROW_MASK
from torpor.sort.kernels.partition_boundaries import Boundary


@dataclass(frozen=True, slots=True, eq=False)
class BoundaryTable:
    """Boundaries with their prefixes, used for many chunks."""

    boundaries: tuple[Boundary, ...]
    leading: Words
    """The prefix of each boundary's key in the high 40 bits."""


def boundary_table(boundaries: Sequence[Boundary]) -> BoundaryTable:
    padded = [boundary.key[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0") for boundary in boundaries]
    return BoundaryTable(
        tuple(boundaries), np.array([int.from_bytes(prefix) << PACKED_BITS for prefix in padded], dtype=np.uint64)
    )


def split(batch: Batch, packed: Words, cuts: BoundaryTable, worker: int, base: int) -> Offsets:
    """The begin of each partition in the order that `sorted_packed` gave, and at the end the number of records.

    `base` is the position of the batch's first byte in the worker's inputs.
    """
    begins = np.zeros(len(cuts.boundaries) + 2, dtype=np.int64)
    begins[-1] = len(packed)
    low = np.searchsorted(packed, cuts.leading)
    high = np.searchsorted(packed, cuts.leading | ROW_MASK, side="right")
    begins[1:-1] = low
    # Where a prefix ties, whole keys decide. Many boundaries may share one frequent key; it is looked up once.
    ranges: dict[bytes, tuple[int, int]] = {}
    for place in np.flatnonzero(high > low).tolist():
        key, owner, position = cuts.boundaries[place]
        if key not in ranges:
            ranges[key] = _range_of(batch, packed, key, int(low[place]), int(high[place]))
        first, beyond = ranges[key]
        row = batch.row_at(position - base)
        if owner > worker or (owner == worker and row == len(batch)):
            begins[place + 1] = beyond
        elif owner < worker:
            begins[place + 1] = first
        else:
            # Among equal keys the rows ascend, and so do the positions.
            begins[place + 1] = first + int(np.searchsorted(packed[first:beyond], cuts.leading[place] | np.uint64(row)))
    return begins


def _range_of(batch: Batch, packed: Words, key: bytes, low: int, high: int) -> tuple[int, int]:
    """The begin and end of the records with this key, among those with the same prefix."""

    def key_at(place: int) -> bytes:
        return batch.key(int(packed[place] & ROW_MASK))

    first = low + bisect_left(range(low, high), key, key=key_at)
    return first, first + bisect_right(range(first, high), key, key=key_at)
