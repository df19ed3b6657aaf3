"""Which parts have come from the others, and are they whole?"""

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torpor.sort.data.buffers import OpenFiles
from torpor.sort.data.context import SortContext
from torpor.sort.data.files import PARTIAL, FileKind, FileManifest, remove, to_sort_failed, writing
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
    """A part that is whole: in memory, or else in its file."""

    proof: Proof
    pieces: tuple[int, ...]
    """The bytes of each, in chunk order."""
    data: Bytes | None


class PartStore:
    """Takes parts from several threads at once. Only what is whole is ever in it."""

    def __init__(self, context: SortContext) -> None:
        self._context = context
        self._parts: dict[Name, ReceivedPart] = {}
        self._files = OpenFiles()
        self._lock = threading.Lock()
        self._free = context.budget.received
        self._own = frozenset(context.own)
        self._number = itertools.count()

    # ---- what is there

    def has(self, partition: int, sender: int) -> bool:
        return (partition, sender) in self._parts

    def lacking(self, declared: Mapping[int, tuple[Proof, ...]]) -> tuple[Name, ...]:
        """What others have declared for own partitions and is not whole here; a part of zero records need not come.

        A part that was kept and is not the one that is declared goes.
        """
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
        """In chunk order; none of a part that was not sent."""
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

    # ---- what comes

    def receive(self, header: PartHeader, blocks: Iterable[Block]) -> bool:
        """False if it was whole already, and nothing was read. A stream that is not what its header says leaves nothing."""
        name = (header.partition, header.sender)
        if header.partition not in self._own or sum(header.pieces) != header.proof.size or min(header.pieces, default=0) < 0:
            raise SortRefused(
                "bad_part", f"{_describe(header)} is not one of this worker's, or its pieces do not add up to its size"
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
                    raise _not_whole(header, "more bytes came than it has")
                data[filled : filled + len(block)] = np.frombuffer(block, dtype=np.uint8)
                filled += len(block)
            if filled != len(data):
                raise _not_whole(header, f"its stream broke off after {filled} bytes")
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
        # Two streams of the same part may come at once: each has a file of its own, and the first that is whole gets the name.
        aside = final.with_name(f"{final.name}.{next(self._number)}{PARTIAL}")
        prover = RunningProof(context.format) if context.proof else None
        with writing(aside, context.attempt, sync=context.sync_scratch, doing="writing the part") as writer:
            for block in blocks:
                context.go_on()
                if writer.size + len(block) > header.proof.size:
                    raise _not_whole(header, "more bytes came than it has")
                writer.write(block)
                if prover is not None:
                    prover.add(np.frombuffer(block, dtype=np.uint8))
            if writer.size != header.proof.size:
                raise _not_whole(header, f"its stream broke off after {writer.size} bytes")
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
            # Every byte has come, so sending it again cannot help.
            what = f"{_describe(header)} is not what its sender declared: it should have {header.proof}, and {found} came"
            raise SortRefused("other_bytes", f"{what}; was an input or a run changed?")

    # ---- what was kept

    def load_kept(self) -> None:
        """Takes in what an earlier attempt has received; what is not whole goes."""
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
        """Files stay: whoever ends the job removes them."""
        with self._lock:
            self._parts.clear()
        self._files.close()

    # ---- below

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
        # First what vouches for it: a manifest alone would be a lie.
        remove(self._context.place.manifest_of(path))
        self._files.forget(path)
        remove(path)

    def _path(self, partition: int, sender: int) -> Path:
        return self._context.place.part_file(partition, sender)


def _describe(header: PartHeader) -> str:
    return f"the part of partition {header.partition} from worker {header.sender}"


def _not_whole(header: PartHeader, why: str) -> PeerUnavailable:
    return PeerUnavailable(f"{_describe(header)} did not arrive whole: {why}")
