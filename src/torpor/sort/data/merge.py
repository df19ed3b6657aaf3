"""Merge runs and received parts into the output files."""

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from torpor.sort.data.buffers import ReusableBuffer
from torpor.sort.data.context import SortContext
from torpor.sort.data.files import FileKind, FileManifest, remove
from torpor.sort.data.inputs import MAX_SAMPLED_KEY, check_unchanged
from torpor.sort.data.manifests import read_valid_manifest, write_file_manifest
from torpor.sort.data.memory_budget import SMALLEST_ARENA, MemoryBudget
from torpor.sort.data.outputs import OutputWriter
from torpor.sort.data.oversized_partitions import Stretches, split_partition
from torpor.sort.data.parts import PartStore
from torpor.sort.data.pieces import MappedPiece, Piece
from torpor.sort.data.runs import Runs
from torpor.sort.data.thread_pool import parallel_map
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.batch import Batch, Rows, batch_of
from torpor.sort.kernels.checksum import prove
from torpor.sort.kernels.gather import gather
from torpor.sort.kernels.order import MOST_ROWS, merged_order, sort_order
from torpor.sort.machine.records import MergeReport, OutputFile
from torpor.sort.proof import Proof, total
from torpor.sort.record import Fixed

BESIDE_FIXED, BESIDE_LINE = 40, 128
"""Bytes of keys, places and orders for each record while it is sorted."""

Declared = Mapping[int, Sequence[Proof]]
"""What each sender has declared for each own partition."""


def merge(context: SortContext, runs: Runs, parts: PartStore, declared: Declared) -> MergeReport:
    """Merge all own partitions. Complete outputs of an earlier attempt are kept."""
    began = time.monotonic()
    merger = Merger(context, runs, parts, declared)
    try:
        files = parallel_map(merger.merge_partition, context.own, context.budget.merge_threads, context.go_on)
    finally:
        merger.close()
    check_unchanged(context.inputs)
    return MergeReport(tuple(files), time.monotonic() - began)


class _MergeBuffers:
    """The buffers of one thread, used for one partition after the other."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.arena = ReusableBuffer()
        self.order = ReusableBuffer()
        self.sink = OutputWriter(budget.block, budget.flush)


class _OutputSummary:
    """The proof and the outer keys of an output file so far. Long keys are cut; the beginnings are in the same order."""

    def __init__(self) -> None:
        self.proof = Proof()
        self.first_key = b""
        self.last_key = b""

    def saw(self, batch: Batch, order: Rows) -> None:
        if not len(order):
            return
        if not self.proof.records:
            self.first_key = batch.key(int(order[0]))[:MAX_SAMPLED_KEY]
        self.last_key = batch.key(int(order[-1]))[:MAX_SAMPLED_KEY]


class Merger:
    """Merge single partitions, from any thread, as soon as all parts of a partition are complete."""

    def __init__(self, context: SortContext, runs: Runs, parts: PartStore, declared: Declared) -> None:
        self._context = context
        self._runs = runs
        self._parts = parts
        self._declared = declared
        self._budget = context.budget
        self._workspaces: list[_MergeBuffers] = []
        self._lock = threading.Lock()
        self._size = sum(total(declared[partition]).size for partition in context.own) or 1
        self._done = 0

    def merge_partition(self, partition: int) -> OutputFile:
        """Write the partition's output. It gets its final name when it is complete and proven."""
        expected = total(self._declared[partition])
        kept = self._kept(partition, expected)
        if kept is not None:
            self._progress(expected.size)
            return kept
        path = self._context.place.output_file(partition)
        remove(self._context.place.manifest_of(path))
        workspace = self._borrow()
        try:
            written = _OutputSummary()
            with workspace.sink.to(path, self._context.attempt, sync=self._context.sync):
                self._write(partition, expected, workspace, written)
                if written.proof != expected:
                    raise SortFailed(f"partition {partition} should have {expected}, but {written.proof} was merged")
        finally:
            self._give_back(workspace)
        output = OutputFile(partition, expected, written.first_key, written.last_key)
        # The file is on the disk already. If the manifest is lost in a power cut, the file is made again.
        extra = {"first_key": output.first_key.hex(), "last_key": output.last_key.hex()}
        write_file_manifest(self._context, path, FileKind.OUTPUT, expected, extra, sync=False)
        return output

    def close(self) -> None:
        for workspace in self._workspaces:
            workspace.sink.close()
        self._workspaces.clear()

    def _write(self, partition: int, expected: Proof, workspace: _MergeBuffers, written: _OutputSummary) -> None:
        pieces = [
            piece
            for sender in range(self._context.workers)
            for piece in (
                self._runs.pieces(partition) if sender == self._context.index else self._parts.pieces(partition, sender)
            )
        ]
        mapped = [piece for piece in pieces if isinstance(piece, MappedPiece)]
        if mapped and len(mapped) == len(pieces) and expected.records <= MOST_ROWS:
            self._directly(mapped, workspace, written)
            return
        for stretches in split_partition(pieces, self._most(expected)):
            self._context.go_on()
            self._through_arena(pieces, stretches, workspace, written)

    def _most(self, expected: Proof) -> int:
        """The bytes that are sorted at once, so that they fit together with their keys and their rows can be counted. The keys
        and places of a short record take more memory than the record."""
        each = max(1, expected.size // max(1, expected.records))
        is_fixed = isinstance(self._context.format, Fixed)
        beside, share = (BESIDE_FIXED, 5) if is_fixed else (BESIDE_LINE, 10)
        # The arena is three fifths of a thread's share; for lines it is three tenths.
        fits = max(SMALLEST_ARENA, self._budget.arena * share // 3 * each // (each + beside))
        most = min(self._budget.arena, fits)
        shortest = self._context.format.length if isinstance(self._context.format, Fixed) else 1
        return most if expected.records <= MOST_ROWS else min(most, MOST_ROWS * shortest)

    def _directly(self, pieces: Sequence[MappedPiece], workspace: _MergeBuffers, written: _OutputSummary) -> None:
        """From the mapped inputs to the output: each record is copied once."""
        batch = pieces[0].batch
        room = workspace.order.of(sum(len(piece.packed) for piece in pieces) * 8).view(np.uint64)
        order = merged_order(batch, [(piece.packed, piece.first) for piece in pieces], room)
        self._put(batch, order, workspace, written)

    def _through_arena(
        self, pieces: Sequence[Piece], stretches: Stretches, workspace: _MergeBuffers, written: _OutputSummary
    ) -> None:
        """Read the stretches in the order of senders and chunks, and sort them stably."""
        arena = workspace.arena.of(sum(end - start for start, end in stretches))
        filled = 0
        for piece, (start, end) in zip(pieces, stretches, strict=True):
            if end > start:
                until = filled + end - start
                piece.fill(start, arena[filled:until])
                filled = until
        batch = batch_of(self._context.format, arena)
        self._put(batch, sort_order(batch), workspace, written)

    def _put(self, batch: Batch, order: Rows, workspace: _MergeBuffers, written: _OutputSummary) -> None:
        """Gather and write the batch's records in this order, block by block."""
        written.saw(batch, order)
        begin = 0
        for end, size in self._blocks(batch, order, workspace.sink.block):
            self._context.go_on()
            room = workspace.sink.room(size)
            gather(batch, order[begin:end], room)
            written.proof += prove(room, self._context.format) if self._context.proof else Proof(end - begin, size, 0)
            workspace.sink.take(size)
            self._progress(size)
            begin = end

    def _blocks(self, batch: Batch, order: Rows, block: int) -> list[tuple[int, int]]:
        """The end of each block in the order, and its bytes."""
        if isinstance(self._context.format, Fixed):
            length = self._context.format.length
            step = max(1, block // length)
            ends = range(step, len(order) + step, step)
            return [(min(end, len(order)), (min(end, len(order)) - (end - step)) * length) for end in ends]
        reached = np.cumsum(batch.sizes(order))
        found: list[tuple[int, int]] = []
        begin, done = 0, 0
        while begin < len(order):
            begin = max(begin + 1, int(np.searchsorted(reached, done + block, side="right")))
            found.append((begin, int(reached[begin - 1]) - done))
            done = int(reached[begin - 1])
        return found

    # ---- kept outputs

    def _kept(self, partition: int, expected: Proof) -> OutputFile | None:
        """The output of an earlier attempt, if it is complete and matches what is declared now."""
        path = self._context.place.output_file(partition)
        match read_valid_manifest(self._context, path, FileKind.OUTPUT):
            case FileManifest(proof=proof, extra={"first_key": str(first), "last_key": str(last)}) if proof == expected:
                return OutputFile(partition, expected, bytes.fromhex(first), bytes.fromhex(last))
            case _:
                return None

    # ---- helpers

    def _borrow(self) -> _MergeBuffers:
        with self._lock:
            return self._workspaces.pop() if self._workspaces else _MergeBuffers(self._budget)

    def _give_back(self, workspace: _MergeBuffers) -> None:
        with self._lock:
            self._workspaces.append(workspace)

    def _progress(self, size: int) -> None:
        with self._lock:
            self._done += size
            done = 100.0 * self._done / self._size
        self._context.progress(min(done, 100.0))
