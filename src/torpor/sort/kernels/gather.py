"""How are records brought together in a given order?"""

import numpy as np
import numpy.typing as npt

from torpor.sort.kernels.batch import AnyBatch, Bytes, FixedBatch, JoinedBatch, LineBatch, Offsets, Rows
from torpor.sort.kernels.spans import copy_spans

# Bytes of records from several batches that are brought together at once: a block that stays in the cache.
BLOCK = 1 << 20


def gather(batch: AnyBatch, rows: Rows, out: Bytes) -> int:
    """Write the records of `rows`, in that order, to the beginning of `out`; returns the bytes written."""
    if not len(rows):
        return 0
    # Out of range would otherwise be clipped, and a record written twice. As unsigned numbers negative ones are large.
    if int(rows.view(np.uintp).max()) >= len(batch):
        raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} are not all among {len(batch)}")
    if isinstance(batch, FixedBatch):
        return _gather_fixed(batch, rows, out)
    if isinstance(batch, LineBatch):
        lengths = batch.sizes(rows)
        ends = _ends(lengths, out)
        copy_spans(batch.data, batch.starts[rows], lengths, out, ends - lengths)
        return int(ends[-1])
    return _gather_joined(batch, rows, out)


def _gather_fixed(batch: FixedBatch, rows: Rows, out: Bytes) -> int:
    length = batch.format.length
    size = len(rows) * length
    # With the mode "raise" NumPy would gather into a copy of `out` first; the caller has seen that all rows are in range.
    np.take(_records(batch.data, length), rows, out=_records(_beginning(out, size), length), mode="clip")
    return size


def _gather_joined(batch: JoinedBatch, rows: Rows, out: Bytes) -> int:
    if isinstance(batch.batches[0], FixedBatch):
        return _gather_joined_fixed(batch, batch.batches[0].format.length, rows, out)
    lengths = batch.sizes(rows)
    ends = _ends(lengths, out)
    for which, places, own in batch.sources(rows):
        lines = batch.batches[which]
        copy_spans(lines.data, lines.offsets(own), lengths[places], out, (ends - lengths)[places])
    return int(ends[-1])


def _gather_joined_fixed(batch: JoinedBatch, length: int, rows: Rows, out: Bytes) -> int:
    records = _records(_beginning(out, len(rows) * length), length)
    at_once = max(BLOCK // length, 1)
    aside = np.empty(min(at_once, len(rows)), dtype=records.dtype)
    back = np.empty(len(aside), dtype=np.intp)
    for begin in range(0, len(rows), at_once):
        here = rows[begin : begin + at_once]
        filled = 0
        for which, places, own in batch.sources(here):
            until = filled + len(own)
            np.take(_records(batch.batches[which].data, length), own, out=aside[filled:until], mode="clip")
            back[places] = np.arange(filled, until)
            filled = until
        np.take(aside, back[:filled], out=records[begin : begin + filled], mode="clip")
    return len(rows) * length


def _records(data: Bytes, length: int) -> npt.NDArray[np.void]:
    return data.view(np.dtype((np.void, length)))


def _ends(lengths: Offsets, out: Bytes) -> Offsets:
    ends = np.cumsum(lengths, dtype=np.int64)
    _beginning(out, int(ends[-1]))
    return ends


def _beginning(out: Bytes, size: int) -> Bytes:
    if len(out) < size:
        raise ValueError(f"{size} bytes of records do not fit into {len(out)}")
    return out[:size]
