"""Copy many stretches of bytes of different lengths at once."""

import numpy as np
import numpy.typing as npt

from torpor.sort.kernels.batch import Bytes, Offsets

WIDEST = 128
"""Longer stretches are copied in units of this many bytes."""
# Stretches that are copied at once: their places and bytes stay in the cache.
AT_ONCE = 8192


def copy_spans(data: Bytes, starts: Offsets, lengths: Offsets, out: Bytes, out_starts: Offsets) -> None:
    """Copy `data[start : start + length]` to its place in `out`, for all stretches. Targets must not overlap."""
    for begin in range(0, len(starts), AT_ONCE):
        here = slice(begin, begin + AT_ONCE)
        _copy(data, starts[here], lengths[here], out, out_starts[here])


def _copy(data: Bytes, starts: Offsets, lengths: Offsets, out: Bytes, out_starts: Offsets) -> None:
    # Two units, one from the left and one from the right, cover any stretch that is no longer than both and no shorter than
    # one. So no byte outside a stretch is touched, and the number of copies does not depend on the length.
    shortest, longest = int(lengths.min()), int(lengths.max())
    unit = WIDEST // 2
    while unit and shortest < 2 * unit:
        if longest >= unit:
            chosen = np.flatnonzero((lengths >= unit) & (lengths < 2 * unit))
            if len(chosen):
                sources, targets, rest = starts[chosen], out_starts[chosen], lengths[chosen] - unit
                _copy_units(data, sources, out, targets, unit)
                if unit > 1:
                    _copy_units(data, sources + rest, out, targets + rest, unit)
        unit //= 2
    if longest >= WIDEST:
        _copy_long(data, starts, lengths, out, out_starts)


def _copy_long(data: Bytes, starts: Offsets, lengths: Offsets, out: Bytes, out_starts: Offsets) -> None:
    chosen = np.flatnonzero(lengths >= WIDEST)
    counts = -(-lengths[chosen] // WIDEST)
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    # The last unit is moved back, so that it ends where its stretch ends.
    moves = np.minimum(within * WIDEST, np.repeat(lengths[chosen] - WIDEST, counts))
    _copy_units(data, np.repeat(starts[chosen], counts) + moves, out, np.repeat(out_starts[chosen], counts) + moves, WIDEST)


def _copy_units(data: Bytes, sources: Offsets, out: Bytes, targets: Offsets, unit: int) -> None:
    sliding_units(out, unit)[targets] = sliding_units(data, unit)[sources]


def sliding_units(data: Bytes, unit: int) -> npt.NDArray[np.void]:
    """The units of this many bytes that begin at every byte."""
    return np.ndarray((len(data) - unit + 1,), dtype=np.dtype((np.void, unit)), buffer=data, strides=(1,))
