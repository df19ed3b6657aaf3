"""Check that records are in order, count them, and compute their checksum."""
# ruff: noqa: A002 - format is the product's word for it

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from torpor.sort.data.buffers import ReusableBuffer
from torpor.sort.data.inputs import InputReader, chunks, find
from torpor.sort.data.segments import Chunk
from torpor.sort.data.thread_pool import default_threads, parallel_map
from torpor.sort.data.worker_directory import OUTPUT
from torpor.sort.errors import SortRefused
from torpor.sort.kernels.batch import PREFIX_BYTES, Batch, LineBatch, batch_of
from torpor.sort.kernels.crc32 import BLOCK, Crc32
from torpor.sort.record import GENSORT, Fixed, Format, Lines

MODULUS = 1 << 128
PIECE = 2 * BLOCK
"""What one thread reads at once."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Validation:
    """The result for consecutive records. A line without a newline is counted as if it had one."""

    records: int = 0
    size: int = 0
    """In bytes."""
    duplicate_keys: int = 0
    """Records with the same key as the record before."""
    unordered: int = 0
    """Records with a smaller key than the record before."""
    first_unordered: int | None = None
    """Its number, from 0."""
    checksum: int = 0
    """The sum of zlib's CRC-32 of each record, in 128 bits."""
    first_key: bytes | None = None
    last_key: bytes | None = None

    @property
    def in_order(self) -> bool:
        return not self.unordered

    def __add__(self, following: "Validation") -> "Validation":
        """The result for these records followed by those."""
        if self.last_key is None or following.first_key is None:
            return following if self.last_key is None else self
        unordered = self.last_key > following.first_key
        first_unordered = self.first_unordered
        if first_unordered is None and unordered:
            first_unordered = self.records
        elif first_unordered is None and following.first_unordered is not None:
            first_unordered = self.records + following.first_unordered
        return Validation(
            records=self.records + following.records,
            size=self.size + following.size,
            duplicate_keys=self.duplicate_keys + following.duplicate_keys + (self.last_key == following.first_key),
            unordered=self.unordered + following.unordered + unordered,
            first_unordered=first_unordered,
            checksum=(self.checksum + following.checksum) % MODULUS,
            first_key=self.first_key,
            last_key=following.last_key,
        )


class _ValidateBuffers(threading.local):
    """The buffers of one thread, used for one piece after the other."""

    def __init__(self, format: Format) -> None:
        self.room = ReusableBuffer(PIECE)
        self.checksum = _checksum_of(format)


def validate(
    paths: Sequence[Path],
    format: Format = GENSORT,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Validation:
    """Check all files as one sequence. `progress` gets how many more bytes were read; calls do not overlap."""
    inputs = find([file for path in paths for file in _files(path)], format)
    pieces = chunks(inputs, format, PIECE)
    found = Validation()
    done: dict[int, Validation] = {}
    following = 0
    changing = threading.Lock()
    workspace = _ValidateBuffers(format)

    with InputReader(inputs, format) as reader:

        def look(chunk: Chunk) -> None:
            nonlocal found, following
            data = workspace.room.of(chunk.size)  # A line may be longer than a block.
            reader.read(chunk, data.data)
            one = _look(batch_of(format, data), workspace.checksum)
            with changing:
                done[chunk.number] = one
                # Threads finish in any order, but results are added in the order of the files.
                while following in done:
                    found += done.pop(following)
                    following += 1
                if progress is not None:
                    progress(chunk.size)

        parallel_map(look, pieces, default_threads() if threads is None else threads)
    return found


def summary(validation: Validation) -> str:
    """The same text as the public tool prints."""
    counted = f"Records: {validation.records}\nChecksum: {validation.checksum:x}\n"
    if validation.in_order:
        return f"{counted}Duplicate keys: {validation.duplicate_keys}\nSUCCESS - all records are in order"
    first = f"First unordered record is record {validation.first_unordered}\n"
    return f"{first}{counted}ERROR - there are {validation.unordered} unordered records"


def _files(path: Path) -> list[Path]:
    """For a directory the outputs of a sort in it, by number, or else all files that `find` finds there."""
    if not path.is_dir():
        return [path]
    outputs = [entry for entry in path.iterdir() if OUTPUT.fullmatch(entry.name) and entry.is_file()]
    if outputs:
        # A name with six digits is longer, and in byte order it would come before its predecessors.
        return sorted(outputs, key=lambda output: (len(output.name), output.name))
    if not find([path], Lines()).segments:
        # An empty directory is not a success: most likely the name is wrong.
        raise SortRefused("no_files", f"the directory {path} has no files to validate")
    return [path]


def _checksum_of(format: Format) -> Callable[[Batch], int]:
    match format:
        case Fixed(length=length):
            crc = Crc32(length)
            return lambda batch: int(crc.of(batch.data).sum(dtype=np.uint64))
        case Lines():
            return _sum_of_lines
        case _:
            assert_never(format)


def _sum_of_lines(batch: Batch) -> int:
    assert isinstance(batch, LineBatch)
    view = batch.data.data
    return sum(zlib.crc32(view[start:end]) for start, end in zip(batch.starts.tolist(), batch.ends.tolist(), strict=True))


def _look(batch: Batch, checksum: Callable[[Batch], int]) -> Validation:
    count = len(batch)
    if not count:
        return Validation()
    less, equal = _compared(batch)
    unordered = np.flatnonzero(less)
    return Validation(
        records=count,
        size=len(batch.data),
        duplicate_keys=equal,
        unordered=len(unordered),
        first_unordered=int(unordered[0]) + 1 if len(unordered) else None,
        checksum=checksum(batch),
        first_key=batch.key(0),
        last_key=batch.key(count - 1),
    )


def _compared(batch: Batch) -> tuple[Flags, int]:
    """For each record but the first: whether its key is smaller than the one before; and the number of equal keys."""
    words = batch.leading(0)
    less = words[1:] < words[:-1]
    tied = np.flatnonzero(words[1:] == words[:-1])
    equal = 0
    at = PREFIX_BYTES
    while len(tied):
        lengths, lengths_before = batch.key_lengths(tied + 1), batch.key_lengths(tied)
        # Zeros fill up a key that has ended. If both keys have ended, only their lengths can differ.
        ended = np.maximum(lengths, lengths_before) <= at
        less[tied[ended & (lengths < lengths_before)]] = True
        equal += int(np.count_nonzero(ended & (lengths == lengths_before)))
        tied = tied[~ended]
        words, words_before = batch.leading(at, tied + 1), batch.leading(at, tied)
        less[tied[words < words_before]] = True
        tied = tied[words == words_before]
        at += PREFIX_BYTES
    return less, equal
