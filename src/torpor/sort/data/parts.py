"""Receive parts from other workers, and keep those that are complete."""

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torpor.sort.data.buffers import OpenFiles
from torpor.sort.data.context import SortContext
from torpor.sort.data.files import PARTIAL, FileKind, FileManifest, atomic_file, remove, to_sort_failed
from torpor.sort.data.manifests import read_valid_manifest, write_file_manifest
from torpor.sort.data.pieces import FilePiece, MemoryPiece, Piece
from torpor.sort.data.running_proof import RunningProof
from torpor.sort.data.worker_directory import PART
from torpor.sort.errors import PeerUnavailable, SortRefused
from torpor.sort.kernels.batch import Bytes
from torpor.sort.machine.records import PartHeader
from torpor.sort.proof import Proof
from torpor.sort.sizes import BLOCK

Block = bytes | bytearray | memoryview
Name = tuple[int, int]
"""Partition and sender."""


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedPart:
    """A complete part: in memory, or else in its file."""

    proof: Proof
    pieces: tuple[int, ...]
    """The bytes of each piece, in chunk order."""
    data: Bytes | None


class PartStore:
    """Take parts from several threads at once. It contains only complete parts."""

    def __init__(self, context: SortContext) -> None:
        self._context = context
        self._parts: dict[Name, ReceivedPart] = {}
        self._files = OpenFiles()
        self._lock = threading.Lock()
        self._free = context.budget.received
        self._own = frozenset(context.own)
        self._number = itertools.count()

    # ---- present parts

    def has(self, partition: int, sender: int) -> bool:
        return (partition, sender) in self._parts

    def lacking(self, declared: Mapping[int, tuple[Proof, ...]]) -> tuple[Name, ...]:
        """Parts that others have declared for own partitions and that are not complete here. A part of zero records need not
        come. A kept part that differs from the declared one is removed."""
        lacks: list[Name] = []
        for partition, proofs in sorted(declared.items()):
            for sender, proof in enumerate(proofs):
                if sender == self._context.index or partition not in self._own:
                    continue
                part = self._parts.get((partition, sender))
                if part is not None and part.proof != proof:
                    self._drop(partition, sender)
                    part = None
                if part is None and proof.records:
                    lacks.append((partition, sender))
        return tuple(lacks)

    def pieces(self, partition: int, sender: int) -> tuple[Piece, ...]:
        """In chunk order; empty for a part that was not sent."""
        part = self._parts.get((partition, sender))
        if part is None:
            return ()
        path, form = self._path(partition, sender), self._context.format
        begins = itertools.accumulate(part.pieces, initial=0)
        if part.data is not None:
            data = part.data
            return tuple(
                MemoryPiece(data[begin : begin + size], form) for begin, size in zip(begins, part.pieces, strict=False)
            )
        return tuple(FilePiece(self._files, path, begin, size, form) for begin, size in zip(begins, part.pieces, strict=False))

    # ---- incoming parts

    def receive(self, header: PartHeader, blocks: Iterable[Block]) -> bool:
        """False if the part was complete already; then no block was read. A stream that does not match its header leaves
        no trace."""
        name = (header.partition, header.sender)
        if header.partition not in self._own or sum(header.pieces) != header.proof.size or min(header.pieces, default=0) < 0:
            raise SortRefused(
                "bad_part", f"{_describe(header)} does not belong to this worker, or its pieces do not add up to its size"
            )
        if self.has(*name):
            return False
        if self._reserve(header.proof.size):
            self._receive_to_memory(header, blocks)
        else:
            self._receive_to_file(header, blocks)
        return True

    def _receive_to_memory(self, header: PartHeader, blocks: Iterable[Block]) -> None:
        kept = False
        try:
            data = np.empty(header.proof.size, dtype=np.uint8)
            filled = 0
            for block in blocks:
                self._context.go_on()
                if filled + len(block) > len(data):
                    raise _not_whole(header, "it has more bytes than announced")
                data[filled : filled + len(block)] = np.frombuffer(block, dtype=np.uint8)
                filled += len(block)
            if filled != len(data):
                raise _not_whole(header, f"its stream ended after {filled} bytes")
            if self._context.proof:
                prover = RunningProof(self._context.format)
                for begin in range(0, len(data), BLOCK):
                    prover.add(data[begin : begin + BLOCK])
                self._compare(header, prover.proof())
            with self._lock:
                kept = (header.partition, header.sender) not in self._parts
                if kept:
                    self._parts[header.partition, header.sender] = ReceivedPart(header.proof, header.pieces, data)
        finally:
            if not kept:
                with self._lock:
                    self._free += header.proof.size

    def _receive_to_file(self, header: PartHeader, blocks: Iterable[Block]) -> None:
        context = self._context
        final = self._path(header.partition, header.sender)
        # Two streams of the same part can come at once. Each has its own file, and the first complete one gets the name.
        aside = final.with_name(f"{final.name}.{next(self._number)}{PARTIAL}")
        prover = RunningProof(context.format) if context.proof else None
        with atomic_file(aside, context.attempt, sync=context.sync_scratch, doing="writing the part") as writer:
            for block in blocks:
                context.go_on()
                if writer.size + len(block) > header.proof.size:
                    raise _not_whole(header, "it has more bytes than announced")
                writer.write(block)
                if prover is not None:
                    prover.add(np.frombuffer(block, dtype=np.uint8))
            if writer.size != header.proof.size:
                raise _not_whole(header, f"its stream ended after {writer.size} bytes")
            if prover is not None:
                self._compare(header, prover.proof())
        with self._lock:
            if (header.partition, header.sender) in self._parts:
                remove(aside)
                return
            try:
                aside.rename(final)
            except OSError as error:
                raise to_sort_failed(error, final, "writing the part") from error
            extra = {"pieces": list(header.pieces)}
            write_file_manifest(context, final, FileKind.PART, header.proof, extra, sync=context.sync_scratch)
            self._parts[header.partition, header.sender] = ReceivedPart(header.proof, header.pieces, None)

    def _compare(self, header: PartHeader, found: Proof) -> None:
        if found != header.proof:
            # Every byte has arrived, so sending it again cannot help.
            what = f"{_describe(header)} differs from what its sender declared: expected {header.proof}, received {found}"
            raise SortRefused("other_bytes", f"{what}; an input or a run may have changed")

    # ---- kept parts

    def load_kept(self) -> None:
        """Take the parts that an earlier attempt has received. Incomplete parts are removed."""
        for path in sorted(self._context.place.parts.glob("part.*")):
            name = PART.fullmatch(path.name)
            if name is None:
                continue
            partition, sender = name.groups()
            part = self._kept(path)
            if part is None:
                self._remove(path)
            else:
                with self._lock:
                    self._parts[int(partition), int(sender)] = part

    def _kept(self, path: Path) -> ReceivedPart | None:
        match read_valid_manifest(self._context, path, FileKind.PART):
            case FileManifest(proof=proof, extra={"pieces": list(pieces)}) if sum(pieces) == proof.size:
                return ReceivedPart(proof, tuple(pieces), None)
            case _:
                return None

    def close(self) -> None:
        """Files stay; they are removed at the end of the job."""
        with self._lock:
            self._parts.clear()
        self._files.close()

    # ---- helpers

    def _reserve(self, size: int) -> bool:
        with self._lock:
            fits = size <= self._free
            if fits:
                self._free -= size
            return fits

    def _drop(self, partition: int, sender: int) -> None:
        with self._lock:
            part = self._parts.pop((partition, sender), None)
            if part is not None and part.data is not None:
                self._free += part.proof.size
        if part is not None and part.data is None:
            self._remove(self._path(partition, sender))

    def _remove(self, path: Path) -> None:
        # The manifest goes first: a manifest without its file would be wrong.
        remove(self._context.place.manifest_of(path))
        self._files.forget(path)
        remove(path)

    def _path(self, partition: int, sender: int) -> Path:
        return self._context.place.part_file(partition, sender)


def _describe(header: PartHeader) -> str:
    return f"the part of partition {header.partition} from worker {header.sender}"


def _not_whole(header: PartHeader, why: str) -> PeerUnavailable:
    return PeerUnavailable(f"{_describe(header)} did not arrive completely: {why}")
