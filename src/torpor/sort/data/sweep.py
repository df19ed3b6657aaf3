"""Sort the input into partitioned runs, in one sweep."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torpor.sort.data.buffers import ReusableBuffer
from torpor.sort.data.context import SortContext
from torpor.sort.data.files import FileKind, FileManifest, atomic_file, remove
from torpor.sort.data.inputs import check_unchanged, chunks
from torpor.sort.data.manifests import read_valid_manifest, write_file_manifest
from torpor.sort.data.mapped_input import MappedInput
from torpor.sort.data.memory_budget import STRIPE_CHUNKS
from torpor.sort.data.running_proof import count, declare
from torpor.sort.data.runs import MappedRuns, Runs, SortedChunk, SpilledRuns, Stripe
from torpor.sort.data.segments import Chunk
from torpor.sort.data.thread_pool import parallel_map
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.batch import Batch, Bytes, FixedBatch, Offsets, Words, batch_of
from torpor.sort.kernels.gather import gather
from torpor.sort.kernels.order import rows_of, sorted_packed
from torpor.sort.kernels.partition import BoundaryTable, boundary_table, split
from torpor.sort.machine.records import SortReport
from torpor.sort.proof import Proof, total
from torpor.sort.record import Fixed

NOTHING = np.zeros(0, dtype=np.uint8)


def sweep(context: SortContext) -> tuple[Runs, SortReport]:
    """Read all records once. SortFailed if an input has changed since it was found."""
    began = time.monotonic()
    check_unchanged(context.inputs)
    found = chunks(context.inputs, context.format, context.budget.chunk)
    counter = _Counter(context, len(found))
    if context.budget.lazily and isinstance(context.format, Fixed):
        runs: Runs = _keep_order(context, context.format, found, counter)
    else:
        runs = _spill(context, found, counter)
    check_unchanged(context.inputs)
    return runs, SortReport(total(runs.declared), runs.declared, time.monotonic() - began)


class _Counter:
    """Counts the chunks that are done."""

    def __init__(self, context: SortContext, chunks: int) -> None:
        self._context = context
        self._chunks = chunks
        self._done = 0
        self._lock = threading.Lock()

    def done(self, chunks: int) -> None:
        with self._lock:
            self._done += chunks
            self._context.progress(100.0 * self._done / self._chunks)


def _ordered(context: SortContext, cuts: BoundaryTable, batch: Batch, chunk: Chunk) -> tuple[Words, Offsets]:
    packed = sorted_packed(batch)
    return packed, split(batch, packed, cuts, context.index, chunk.base)


def _same(context: SortContext, chunk: Chunk, read: Proof, declared: Sequence[Proof]) -> None:
    if total(declared) != read:
        path = context.inputs.segments[chunk.segment].path
        raise SortFailed(
            f"what was read at byte {chunk.start} of {path} differs from what was sorted: {read} became {total(declared)}"
        )


def _add_up(partitions: int, declared: Sequence[Sequence[Proof]]) -> list[Proof]:
    return [total(proofs[partition] for proofs in declared) for partition in range(partitions)]


# ---- only the order


def _keep_order(context: SortContext, format: Fixed, found: Sequence[Chunk], counter: _Counter) -> MappedRuns:  # noqa: A002
    mapping = MappedInput(context.inputs.segments, format)
    cuts = boundary_table(context.cut.boundaries)

    def order(chunk: Chunk) -> tuple[SortedChunk, list[Proof]]:
        offset = mapping.offsets[chunk.segment] + chunk.start - context.inputs.segments[chunk.segment].start
        batch = FixedBatch(mapping.batch.data[offset : offset + chunk.size], format)
        packed, begins = _ordered(context, cuts, batch, chunk)
        places = begins * format.length
        declared = count(begins, places)
        if context.proof:
            read, declared = declare(batch, packed, begins, NOTHING, places)
            _same(context, chunk, read, declared)
        counter.done(1)
        return SortedChunk(offset // format.length, packed, begins), declared

    done = parallel_map(order, found, context.budget.sweep_threads, context.go_on)
    declared = _add_up(context.partitions, [proofs for _, proofs in done])
    return MappedRuns(mapping.batch, format, [chunk for chunk, _ in done], declared)


# ---- to run files


@dataclass(frozen=True, slots=True, eq=False)
class _WrittenStripe:
    stripe: Stripe
    declared: list[Proof]


class _SweepBuffers(threading.local):
    """The buffers of one thread, used for one chunk after the other."""

    def __init__(self) -> None:
        self.raw = ReusableBuffer()
        self.sorted = ReusableBuffer()


def _spill(context: SortContext, found: Sequence[Chunk], counter: _Counter) -> SpilledRuns:
    cuts = boundary_table(context.cut.boundaries)
    workspace = _SweepBuffers()
    stripes = [found[first : first + STRIPE_CHUNKS] for first in range(0, len(found), STRIPE_CHUNKS)]

    def make(number: int) -> _WrittenStripe:
        written = _kept(context, number, stripes[number])
        if written is None:
            written = _write(context, cuts, workspace, number, stripes[number], counter)
        else:
            counter.done(len(stripes[number]))
        return written

    done = parallel_map(make, range(len(stripes)), context.budget.sweep_threads, context.go_on)
    declared = _add_up(context.partitions, [written.declared for written in done])
    return SpilledRuns(context.format, [written.stripe for written in done], declared)


def _write(
    context: SortContext, cuts: BoundaryTable, workspace: _SweepBuffers, number: int, stripe: Sequence[Chunk], counter: _Counter
) -> _WrittenStripe:
    path = context.place.run_file(number)
    remove(context.place.manifest_of(path))
    table = np.zeros((len(stripe), context.partitions + 1), dtype=np.int64)
    declared: list[list[Proof]] = []
    with atomic_file(path, context.attempt, sync=context.sync_scratch, doing="writing the run") as writer:
        for row, chunk in enumerate(stripe):
            context.go_on()
            out, places, of_chunk = _sort_chunk(context, cuts, workspace, chunk)
            table[row] = writer.size + places
            declared.append(of_chunk)
            writer.write(out.data)
            counter.done(1)
    proofs = _add_up(context.partitions, declared)
    extra = {
        "chunks": _places(stripe),
        "table": table.ravel().tolist(),
        "records": [proof.records for proof in proofs],
        "sizes": [proof.size for proof in proofs],
        "checksums": [proof.checksum for proof in proofs],
    }
    write_file_manifest(context, path, FileKind.RUN, total(proofs), extra, sync=context.sync_scratch)
    return _WrittenStripe(Stripe(path, table), proofs)


def _sort_chunk(
    context: SortContext, cuts: BoundaryTable, workspace: _SweepBuffers, chunk: Chunk
) -> tuple[Bytes, Offsets, list[Proof]]:
    """The chunk's records in order, the begin of each partition in them, and the proof of each."""
    raw = workspace.raw.of(chunk.size)
    context.reader.read(chunk, raw.data)
    batch = batch_of(context.format, raw)
    packed, begins = _ordered(context, cuts, batch, chunk)
    rows = rows_of(packed)
    out = workspace.sorted.of(chunk.size)
    gather(batch, rows, out)
    reached = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(batch.sizes(rows), out=reached[1:])
    places: Offsets = reached[begins]
    if not context.proof:
        return out, places, count(begins, places)
    read, declared = declare(batch, packed, begins, out, places)
    _same(context, chunk, read, declared)
    return out, places, declared


def _places(stripe: Sequence[Chunk]) -> list[int]:
    """Identifies the chunks: the begin of each, and the end of the last one."""
    return [*(chunk.base for chunk in stripe), stripe[-1].base + stripe[-1].size]


def _kept(context: SortContext, number: int, stripe: Sequence[Chunk]) -> _WrittenStripe | None:
    """A complete run of an earlier attempt."""
    path = context.place.run_file(number)
    match read_valid_manifest(context, path, FileKind.RUN):
        case FileManifest(
            extra={
                "chunks": list(places),
                "table": list(table),
                "records": list(records),
                "sizes": list(sizes),
                "checksums": list(checksums),
            }
        ):
            width = context.partitions + 1
            if places != _places(stripe) or len(table) != len(stripe) * width:
                return None
            declared = [Proof(*proof) for proof in zip(records, sizes, checksums, strict=True)]
            return _WrittenStripe(Stripe(path, np.array(table, dtype=np.int64).reshape(-1, width)), declared)
        case _:
            return None
