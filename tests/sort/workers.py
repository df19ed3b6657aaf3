"""Workers without a network: each sweeps its input, passes on its parts, and merges."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.sort.kernels.oracle import key_of, records_of
from torpor.sort.data.context import SortContext
from torpor.sort.data.inputs import InputReader, find, sample
from torpor.sort.data.merge import merge
from torpor.sort.data.parts import PartStore
from torpor.sort.data.runs import Runs
from torpor.sort.data.sweep import sweep
from torpor.sort.data.worker_directory import WorkerDirectory
from torpor.sort.kernels.partition_boundaries import choose
from torpor.sort.machine.records import MergeReport, PartHeader, PartitionMap, SortReport
from torpor.sort.proof import Proof
from torpor.sort.record import GENSORT, Fixed, Format
from torpor.sort.sizes import MESSAGE, MIB

Files = Mapping[str, bytes]
AMPLE = 64 * MIB
TINY = 1 * MIB
"""Chunks and arenas are then as small as possible: everything is spilled, striped and divided again."""


def fixed_records(count: int, form: Fixed, seed: int, *, keys: int | None = None) -> bytes:
    """With `keys`, at most that many different keys."""
    dice = Random(seed)
    data = bytearray(dice.randbytes(count * form.length))
    for row in range(count if keys else 0):
        begin = row * form.length + form.key_offset
        data[begin : begin + form.key_length] = dice.randrange(keys or 1).to_bytes(form.key_length)
    return bytes(data)


def lines(count: int, seed: int) -> bytes:
    dice = Random(seed)
    words = [b"", b"a", b"ab", b"a\0", b"pear", b"plum" * 9, b"\xff\xfe"]
    return b"".join(b"%b,%d,%b\n" % (dice.choice(words), dice.randrange(50), b"x" * dice.randrange(60)) for _ in range(count))


def expected(inputs: Sequence[Files], form: Format) -> bytes:
    """By key, worker and position, as Python sorts."""
    every: list[bytes] = []
    for files in inputs:
        for name in sorted(files, key=str.encode):
            every += records_of(form, files[name])
    every.sort(key=key_of(form))
    return b"".join(every)


@dataclass
class Worker:
    context: SortContext
    runs: Runs
    sorted: SortReport
    parts: PartStore
    merged: MergeReport | None = None

    def output(self) -> bytes:
        return b"".join(self.context.place.output_file(partition).read_bytes() for partition in self.context.own)


@contextmanager
def contexts(
    folder: Path,
    inputs: Sequence[Files],
    form: Format = GENSORT,
    *,
    memory: int = TINY,
    partitions: int = 3,
    threads: int = 2,
    proof: bool = True,
    sync: bool = False,
    attempt: int = 1,
) -> Iterator[list[SortContext]]:
    """One context for each worker. They own the same number of partitions each, in order."""
    for index, files in enumerate(inputs):
        for name, data in files.items():
            path = folder / str(index) / "input" / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    found = [find([folder / str(index) / "input"], form) for index in range(len(inputs))]
    samples = {index: sample(each, form, 400, index) for index, each in enumerate(found)}
    owners = tuple(worker for worker in range(len(inputs)) for _ in range(partitions))
    cut = PartitionMap(choose(samples, {index: each.size for index, each in enumerate(found)}, len(owners)), owners)
    made: list[SortContext] = []
    try:
        for index, each in enumerate(found):
            place = WorkerDirectory(folder / str(index) / "scratch", folder / str(index) / "output")
            place.lock(5)
            made.append(
                SortContext(
                    "job",
                    index,
                    len(inputs),
                    attempt,
                    cut,
                    form,
                    each,
                    InputReader(each, form),
                    place,
                    memory,
                    threads,
                    proof,
                    sync,
                )
            )
        yield made
    finally:
        for context in made:
            context.reader.close()
            context.place.unlock()


def sweep_all(made: Sequence[SortContext]) -> list[Worker]:
    return [Worker(context, *sweep(context), PartStore(context)) for context in made]


def declared_for(workers: Sequence[Worker], index: int) -> dict[int, tuple[Proof, ...]]:
    own = workers[index].context.own
    return {partition: tuple(worker.runs.declared[partition] for worker in workers) for partition in own}


def header(sender: Worker, receiver: Worker, partition: int) -> PartHeader:
    source = sender.runs.part(partition)
    own = sender.context
    return PartHeader(own.job, partition, own.index, own.attempt, receiver.context.index, source.proof, source.pieces)


def blocks(sender: Worker, partition: int) -> Iterator[bytes]:
    buffer = bytearray(MESSAGE)
    for block in sender.runs.part(partition).blocks(memoryview(buffer)):
        yield bytes(block)


def shuffle(workers: Sequence[Worker]) -> int:
    """Pass on every missing part. Returns the number of parts."""
    sent = 0
    for receiver in workers:
        for partition, sender in receiver.parts.lacking(declared_for(workers, receiver.context.index)):
            assert receiver.parts.receive(header(workers[sender], receiver, partition), blocks(workers[sender], partition))
            sent += 1
    return sent


def merge_all(workers: Sequence[Worker]) -> bytes:
    for worker in workers:
        worker.merged = merge(worker.context, worker.runs, worker.parts, declared_for(workers, worker.context.index))
    return b"".join(worker.output() for worker in workers)


def close_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.runs.close()
        worker.parts.close()


def sort_all(made: Sequence[SortContext]) -> bytes:
    workers = sweep_all(made)
    try:
        shuffle(workers)
        return merge_all(workers)
    finally:
        close_all(workers)
