"""What do records prove as they go by, in pieces or in blocks cut anywhere?"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from torpor.sort.files import broken
from torpor.sort.kernels import checksum
from torpor.sort.kernels.batch import Batch, Bytes, FixedBatch, Offsets, Words
from torpor.sort.kernels.mixing import GOLDEN, avalanche, scattered
from torpor.sort.kernels.order import rows_of
from torpor.sort.proof import MODULUS, Proof
from torpor.sort.record import Fixed, Format, Lines
from torpor.sort.sizes import BLOCK

NEWLINE = 10
WORD = 4
PLACE_SEED = 0x746F72706F72
# Words that are widened and multiplied at once: they stay in the cache.
AT_ONCE = 1 << 16


class Prover:
    """Takes bytes as they come; a record may be cut in two by the end of a block."""

    def __init__(self, format: Format) -> None:  # noqa: A002 - the product's word for it
        self._format = format
        self._left = np.zeros(0, dtype=np.uint8)
        self._proof = Proof()

    def add(self, data: Bytes) -> None:
        if len(self._left):
            data = np.concatenate([self._left, data])
        whole = self._whole(data)
        self._proof += prove(data[:whole], self._format)
        self._left = data[whole:].copy()

    def proof(self) -> Proof | None:
        """None if the last record was cut off."""
        return None if len(self._left) else self._proof

    def _whole(self, data: Bytes) -> int:
        if isinstance(self._format, Fixed):
            return len(data) // self._format.length * self._format.length
        found = np.flatnonzero(data[::-1] == NEWLINE)
        return len(data) - int(found[0]) if len(found) else 0


def prove_file(path: Path, format: Format) -> Proof | None:  # noqa: A002 - the product's word for it
    """None if it does not hold whole records."""
    prover = Prover(format)
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
        raise broken(error, path, "reading") from error


def hashes(batch: FixedBatch) -> Words:
    """The hash of each record; their sum is the checksum of them all."""
    length, count = batch.format.length, len(batch)
    width = -(-length // WORD)
    factors = scattered(np.arange(width, dtype=np.uint64), PLACE_SEED) | np.uint64(1)
    at_once = min(max(AT_ONCE // width, 1), count)
    wide = np.empty((at_once, width), dtype=np.uint64)
    table = batch.data.reshape(count, length)
    in_place = length % WORD == 0 and batch.data.ctypes.data % WORD == 0
    padded = np.zeros((0 if in_place else at_once, width * WORD), dtype=np.uint8)
    found = np.empty(count, dtype=np.uint64)
    for begin in range(0, count, at_once or 1):
        block = table[begin : begin + at_once]
        if not in_place:
            padded[: len(block), :length] = block
            block = padded[: len(block)]
        np.copyto(wide[: len(block)], block.view("<u4"))
        np.vecdot(wide[: len(block)], factors, out=found[begin : begin + len(block)])
    # Without it a record of zeros would count nothing.
    found += np.uint64(length * GOLDEN % MODULUS)
    return avalanche(found)


def prove(data: Bytes, format: Format) -> Proof:  # noqa: A002 - the product's word for it
    """Number, bytes and checksum of these records; the proofs of any grouping of them add up to the same."""
    if not isinstance(format, Fixed):
        return checksum.prove(data, format)
    return Proof(len(data) // format.length, len(data), int(hashes(FixedBatch(data, format)).sum(dtype=np.uint64)))


def declare(batch: Batch, packed: Words, begins: Offsets, gathered: Bytes, places: Offsets) -> tuple[Proof, list[Proof]]:
    """What the records prove as they were read, and what those of each partition do.

    `begins` says where each partition begins in the order `packed`, `places` where in `gathered`, if the records were gathered.
    The hashes of fixed records are summed by the order alone: nothing that is gathered has a say in it.
    """
    counts, widths = np.diff(begins).tolist(), np.diff(places).tolist()
    if not isinstance(batch, FixedBatch):
        cuts = places.tolist()
        return checksum.prove(batch, Lines()), [prove(gathered[begin:end], Lines()) for begin, end in pairwise(cuts)]
    found = hashes(batch)
    sums = np.zeros(len(packed) + 1, dtype=np.uint64)
    np.cumsum(found[rows_of(packed)], out=sums[1:])
    checksums = np.diff(sums[begins]).tolist()
    read = Proof(len(batch), len(batch.data), int(found.sum(dtype=np.uint64)))
    return read, [Proof(*proof) for proof in zip(counts, widths, checksums, strict=True)]


def count(begins: Offsets, places: Offsets) -> list[Proof]:
    """The same without checksums."""
    return [Proof(*proof) for proof in zip(np.diff(begins).tolist(), np.diff(places).tolist(), strict=True)]
