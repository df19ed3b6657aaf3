"""Compute the stable order of records by their keys."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from torpor.sort.kernels.batch import PREFIX_BYTES, ROW_BITS, Batch, Rows, Words

PACKED_BITS = ROW_BITS
"""The low bits of a packed word, which hold a row. The others hold a prefix of its key."""
MOST_ROWS = 1 << PACKED_BITS

ROW_MASK = np.uint64(MOST_ROWS - 1)
SHIFT = np.uint64(PACKED_BITS)

# Below FEW rows one comparison of whole keys costs less than arrays. After DEEP key bytes, if LONG more are expected, rows are
# most likely equal to the end, and arrays would read only five bytes of each at a time.
FEW = 48
DEEP = 8 * PREFIX_BYTES
LONG = 160


def packed_sort(prefixes: Words) -> Words:
    """Sorted (prefix << 24 | index) of prefixes of 40 bits."""
    _refuse_too_many(len(prefixes))
    packed = prefixes << SHIFT
    packed |= np.arange(len(prefixes), dtype=np.uint64)
    packed.sort()
    return packed


def sorted_packed(batch: Batch) -> Words:
    """(prefix << 24 | row) in the final, stable order by whole keys. The low bits are the order, the high bits ascend."""
    _refuse_too_many(len(batch))
    packed = batch.leading(0)
    packed |= np.arange(len(batch), dtype=np.uint64)
    _sort(batch, packed, ROW_MASK)
    return packed


def merged_order(batch: Batch, pieces: Sequence[tuple[Words, int]], room: Words) -> Rows:
    """The rows of these pieces in their stable order. A piece is a stretch of a chunk's `sorted_packed` and its first row.

    Chunks that were sorted one by one are sorted together without reading their records, except for ties. What the prefixes of
    the pieces have in common is left out, which leaves room for rows of the whole batch.
    """
    count = sum(len(packed) for packed, _ in pieces)
    _refuse_too_many(count)
    if not count:
        return np.zeros(0, dtype=np.intp)
    row_bits = len(batch).bit_length()
    lowest = min(int(packed[0]) >> PACKED_BITS for packed, _ in pieces if len(packed))
    highest = max(int(packed[-1]) >> PACKED_BITS for packed, _ in pieces if len(packed))
    unseen = max(0, (highest - lowest).bit_length() + row_bits - 64)
    shift, together, filled = np.uint64(row_bits), room[:count], 0
    for packed, first in pieces:
        rows = packed & ROW_MASK
        rows += np.uint64(first)
        words = together[filled : filled + len(packed)]
        np.right_shift(packed, SHIFT, out=words)
        words -= np.uint64(lowest)
        words >>= np.uint64(unseen)
        words <<= shift
        words |= rows
        filled += len(packed)
    mask = np.uint64((1 << row_bits) - 1)
    _sort(batch, together, mask, seen=not unseen)
    together &= mask
    return together.view(np.int64).astype(np.intp, copy=False)


def rows_of(packed: Words) -> Rows:
    """The order itself, as indices."""
    return (packed & ROW_MASK).view(np.int64).astype(np.intp, copy=False)


def sort_order(batch: Batch) -> Rows:
    """The rows of a batch in their stable order by whole keys."""
    return rows_of(sorted_packed(batch))


def _refuse_too_many(count: int) -> None:
    if count > MOST_ROWS:
        raise ValueError(f"{count} rows do not fit into {PACKED_BITS} bits: records would silently be mixed up")


def _sort(batch: Batch, packed: Words, mask: np.uint64, *, seen: bool = True) -> None:
    """Sort by the packed words, then by the rest of the keys. `mask` has the bits of the row; `seen` says whether prefixes are
    whole."""
    packed.sort()
    tied = (packed[1:] ^ packed[:-1]) <= mask
    if tied.any():
        ties = _Ties(packed, mask, tied)
        if not seen:
            ties.refine(batch.prefix(0, ties.rows()))
        _break_ties(batch, ties)


class _Ties:
    """Rows that are equal so far, in groups: their places in `packed`, and their present order."""

    __slots__ = ("groups", "mask", "members", "packed", "places")

    def __init__(self, packed: Words, mask: np.uint64, tied: npt.NDArray[np.bool_]) -> None:
        self.packed, self.mask = packed, mask
        self.places, self.groups = _grouped(tied)
        self.members = packed[self.places] & mask

    def __len__(self) -> int:
        return len(self.places)

    def refine(self, values: Words) -> None:
        """Sort each group by these values of at most 40 bits, and keep what is still tied."""
        other_group = self.groups[1:] != self.groups[:-1]
        # A frequent key ties to its end, and so do lines with the same beginning. Most often no work is left.
        same = values[1:] == values[:-1]
        if (same | other_group).all():
            return
        if not ((values[1:] >= values[:-1]) | other_group).all():
            # First by value, then by group. Both sorts are stable, because the index is packed with the value.
            order = rows_of(packed_sort(values))
            if self.groups[0] != self.groups[-1]:
                order = order[rows_of(packed_sort(self.groups[order]))]
            values = values[order]
            self.settle(order)
            same = values[1:] == values[:-1]
        same &= ~other_group
        kept, groups = _grouped(same)
        self.places, self.members, self.groups = self.places[kept], self.members[kept], groups

    def settle(self, order: Rows) -> None:
        self.members = self.members[order]
        # All rows of a group have the same prefix, so only the rows change places.
        self.packed[self.places] = (self.packed[self.places] & ~self.mask) | self.members

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        self.places, self.members, self.groups = self.places[chosen], self.members[chosen], self.groups[chosen]

    def rows(self) -> Rows:
        return self.members.view(np.int64).astype(np.intp, copy=False)


def _break_ties(batch: Batch, ties: _Ties) -> None:
    """Order rows with equal prefixes by the rest of their keys, five bytes of all of them at a time."""
    at = 0
    while len(ties):
        left = _resolve_ends(batch, ties, at) if batch.key_length is None else batch.key_length - at
        if left <= PREFIX_BYTES:
            # Nothing is left, or only keys that end with this prefix, which are equal.
            return
        at += PREFIX_BYTES
        if len(ties) <= FEW or (at >= DEEP and left > LONG):
            _compare(batch, ties)
            return
        ties.refine(batch.prefix(at, ties.rows()))


def _resolve_ends(batch: Batch, ties: _Ties, at: int) -> float:
    """Order the keys that end within the prefix at `at`, and drop them. Returns the average remaining length of the others.

    Of two keys that are equal when padded with zeros the shorter one is first; if they have the same length, they are equal.
    """
    lengths = batch.key_lengths(ties.rows())
    lengths -= at
    if lengths.min() < PREFIX_BYTES:
        ties.refine(np.clip(lengths, 0, PREFIX_BYTES).astype(np.uint64))
        lengths = batch.key_lengths(ties.rows()) - at
        goes_on = lengths >= PREFIX_BYTES
        ties.keep(goes_on)
        lengths = lengths[goes_on]
    return float(lengths.mean()) if len(lengths) else 0.0


def _compare(batch: Batch, ties: _Ties) -> None:
    keys = [(group, batch.key(row)) for group, row in zip(ties.groups.tolist(), ties.rows().tolist(), strict=True)]
    if any(later < earlier for earlier, later in pairwise(keys)):
        ties.settle(np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp))


def _grouped(tied: npt.NDArray[np.bool_]) -> tuple[Rows, Words]:
    """The elements that tie with a neighbour, and their groups. `tied` says for all but the first whether they tie with the one
    before."""
    chosen = np.zeros(len(tied) + 1, dtype=np.bool_)
    chosen[1:] = tied
    chosen[:-1] |= tied
    places = np.flatnonzero(chosen)
    begins = np.ones(len(places), dtype=np.bool_)
    follows = places[1:] - 1
    begins[1:] = ~tied[follows]
    return places, np.cumsum(begins, dtype=np.uint64)
