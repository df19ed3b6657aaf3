"""Provide the sorted pieces of each partition after the sweep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torpor.sort.data.buffers import OpenFiles
from torpor.sort.data.pieces import FilePiece, MappedPiece, Piece
from torpor.sort.kernels.batch import FixedBatch, Offsets, Words
from torpor.sort.proof import Proof
from torpor.sort.record import Fixed, Format
from torpor.sort.sizes import MESSAGE


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingPart:
    """Everything of one partition that one worker sends."""

    proof: Proof
    sources: tuple[Piece, ...]
    format: Format

    @property
    def pieces(self) -> tuple[int, ...]:
        """The bytes of each piece, in chunk order."""
        return tuple(piece.size for piece in self.sources)

    def blocks(self, buffer: memoryview) -> Iterator[memoryview]:
        """All bytes, through the caller's buffer, which is filled again for each block."""
        room = np.frombuffer(buffer, dtype=np.uint8)[:MESSAGE]
        if isinstance(self.format, Fixed):
            room = room[: len(room) // self.format.length * self.format.length]
        if not len(room):
            raise ValueError(f"a buffer of {len(buffer)} bytes does not take a record of {self.format}")
        filled = 0
        for piece in self.sources:
            start = 0
            while start < piece.size:
                size = min(piece.size - start, len(room) - filled)
                piece.fill(start, room[filled : filled + size])
                start, filled = start + size, filled + size
                if filled == len(room):
                    yield buffer[:filled]
                    filled = 0
        if filled:
            yield buffer[:filled]


@dataclass(frozen=True, slots=True, eq=False)
class SortedChunk:
    """The order of one chunk's records, which stay in the mapped inputs."""

    first: int
    """The row, over all mapped inputs, at which the chunk begins."""
    packed: Words
    begins: Offsets
    """The begin of each partition in that order, and at the end the number of records."""


@dataclass(frozen=True, slots=True, eq=False)
class Stripe:
    """Some consecutive chunks, sorted and gathered, in one run file."""

    path: Path
    table: Offsets
    """For each chunk the begin of each partition in the file, and the end of the last one."""


class MappedRuns:
    def __init__(
        self,
        batch: FixedBatch,
        format: Fixed,  # noqa: A002 - the product's word for it
        chunks: Sequence[SortedChunk],
        declared: Sequence[Proof],
    ) -> None:
        self.batch = batch
        self.format = format
        self.chunks = tuple(chunks)
        self.declared = tuple(declared)

    def pieces(self, partition: int) -> tuple[Piece, ...]:
        """In chunk order, without empty ones."""
        return tuple(
            MappedPiece(self.batch, self.format.length, chunk.packed[begin:end], chunk.first)
            for chunk in self.chunks
            if (begin := int(chunk.begins[partition])) < (end := int(chunk.begins[partition + 1]))
        )

    def part(self, partition: int) -> OutgoingPart:
        return OutgoingPart(self.declared[partition], self.pieces(partition), self.format)

    def close(self) -> None:
        """The inputs are unmapped when no piece of them is used any more."""
        self.chunks = ()


class SpilledRuns:
    def __init__(
        self,
        format: Format,  # noqa: A002 - the product's word for it
        stripes: Sequence[Stripe],
        declared: Sequence[Proof],
    ) -> None:
        self.format = format
        self.stripes = tuple(stripes)
        self.declared = tuple(declared)
        self._files = OpenFiles()

    def pieces(self, partition: int) -> tuple[Piece, ...]:
        """In chunk order, without empty ones."""
        return tuple(
            FilePiece(self._files, stripe.path, begin, end - begin, self.format)
            for stripe in self.stripes
            for begin, end in stripe.table[:, partition : partition + 2].tolist()
            if begin < end
        )

    def part(self, partition: int) -> OutgoingPart:
        return OutgoingPart(self.declared[partition], self.pieces(partition), self.format)

    def close(self) -> None:
        """The files stay; they are removed at the end of the job."""
        self._files.close()


Runs = MappedRuns | SpilledRuns
