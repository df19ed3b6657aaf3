"""Compute the proof of records that come in pieces or in blocks cut anywhere."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from torpor.sort.data.files import to_sort_failed
from torpor.sort.kernels.batch import NEWLINE, Batch, Bytes, FixedBatch, Offsets, Words
from torpor.sort.kernels.checksum import hashes, prove
from torpor.sort.kernels.order import rows_of
from torpor.sort.proof import Proof
from torpor.sort.record import Fixed, Format, Lines
from torpor.sort.sizes import BLOCK, KIB

WINDOW = 64 * KIB
"""What is searched for a newline at once."""


class RunningProof:
    """Take bytes in blocks. The end of a block may cut a record in two."""

    def __init__(self, format: Format) -> None:  # noqa: A002 - the product's word for it
        self._format = format
        self._begun: list[Bytes] = []
        """The beginning of a record that has not ended yet. Blocks are joined only at its end, because a long line comes in
        many blocks."""
        self._proof = Proof()

    def add(self, data: Bytes) -> None:
        first, last = self._ends(data)
        if not last:
            self._begin(data)
            return
        if self._begun:
            self._proof += prove(np.concatenate([*self._begun, data[:first]]), self._format)
            self._begun.clear()
        else:
            first = 0
        self._proof += prove(data[first:last], self._format)
        self._begin(data[last:])

    def proof(self) -> Proof:
        """The proof of the whole records. If the last record is incomplete, the size shows it."""
        return self._proof

    def _begin(self, data: Bytes) -> None:
        if len(data):
            self._begun.append(data.copy())

    def _ends(self, data: Bytes) -> tuple[int, int]:
        """The ends of the first and of the last record that end in this block; zeros if none does."""
        if not isinstance(self._format, Fixed):
            return _behind_first_newline(data), _behind_last_newline(data)
        length = self._format.length
        first = length - sum(map(len, self._begun))
        return (first, first + (len(data) - first) // length * length) if first <= len(data) else (0, 0)


def _behind_first_newline(data: Bytes) -> int:
    for start in range(0, len(data), WINDOW):
        found = data[start : start + WINDOW].tobytes().find(NEWLINE)
        if found >= 0:
            return start + found + 1
    return 0


def _behind_last_newline(data: Bytes) -> int:
    for stop in range(len(data), 0, -WINDOW):
        start = max(0, stop - WINDOW)
        found = data[start:stop].tobytes().rfind(NEWLINE)
        if found >= 0:
            return start + found + 1
    return 0


def prove_file(path: Path, format: Format) -> Proof:  # noqa: A002 - the product's word for it
    """The proof of the file's records. An incomplete last record is not counted, and the size shows it."""
    prover = RunningProof(format)
    for block in _blocks(path):
        prover.add(block)
    return prover.proof()


def _blocks(path: Path) -> Iterator[Bytes]:
    buffer = np.empty(BLOCK, dtype=np.uint8)
    try:
        with path.open("rb", buffering=0) as file:
            while size := os.readv(file.fileno(), [buffer.data]):
                yield buffer[:size]
    except OSError as error:
        raise to_sort_failed(error, path, "reading") from error


def declare(batch: Batch, packed: Words, begins: Offsets, gathered: Bytes, places: Offsets) -> tuple[Proof, list[Proof]]:
    """The proof of the records as they were read, and the proof of each partition.

    `begins` has the begin of each partition in the order `packed`, `places` its begin in `gathered`, if the records were
    gathered. The hashes of fixed records are summed by the order alone; the gathered bytes do not matter.
    """
    counts, widths = np.diff(begins).tolist(), np.diff(places).tolist()
    if not isinstance(batch, FixedBatch):
        cuts = places.tolist()
        return prove(batch, Lines()), [prove(gathered[begin:end], Lines()) for begin, end in pairwise(cuts)]
    found = hashes(batch)
    sums = np.zeros(len(packed) + 1, dtype=np.uint64)
    np.cumsum(found[rows_of(packed)], out=sums[1:])
    checksums = np.diff(sums[begins]).tolist()
    read = Proof(len(batch), len(batch.data), int(found.sum(dtype=np.uint64)))
    return read, [Proof(*proof) for proof in zip(counts, widths, checksums, strict=True)]


def count(begins: Offsets, places: Offsets) -> list[Proof]:
    """The same without checksums."""
    return [Proof(*proof) for proof in zip(np.diff(begins).tolist(), np.diff(places).tolist(), strict=True)]
