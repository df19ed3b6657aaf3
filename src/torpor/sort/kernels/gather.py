"""Copy records in a given order."""

import numpy as np
import numpy.typing as npt

from torpor.sort.kernels.batch import Batch, Bytes, FixedBatch, Rows
from torpor.sort.kernels.spans import copy_spans


def gather(batch: Batch, rows: Rows, out: Bytes) -> int:
    """Write the records of `rows`, in that order, to the beginning of `out`. Returns the bytes written."""
    if not len(rows):
        return 0
    # Rows out of range would otherwise be clipped, and a record would be written twice. As unsigned numbers, negative rows are
    # large.
    if int(rows.view(np.uintp).max()) >= len(batch):
        raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} are not all among {len(batch)}")
    if isinstance(batch, FixedBatch):
        return _gather_fixed(batch, rows, out)
    lengths = batch.sizes(rows)
    ends = np.cumsum(lengths, dtype=np.int64)
    size = int(ends[-1])
    copy_spans(batch.data, batch.starts[rows], lengths, _beginning(out, size), ends - lengths)
    return size


def _gather_fixed(batch: FixedBatch, rows: Rows, out: Bytes) -> int:
    length = batch.format.length
    size = len(rows) * length
    # With the mode "raise" NumPy would gather into a copy of `out` first. The caller has checked that all rows are in range.
    np.take(_records(batch.data, length), rows, out=_records(_beginning(out, size), length), mode="clip")
    return size


def _records(data: Bytes, length: int) -> npt.NDArray[np.void]:
    return data.view(np.dtype((np.void, length)))


def _beginning(out: Bytes, size: int) -> Bytes:
    if len(out) < size:
        raise ValueError(f"{size} bytes of records do not fit into {len(out)}")
    return out[:size]
