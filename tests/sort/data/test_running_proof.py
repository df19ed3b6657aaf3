"""The proof of records is the same one by one, in blocks, by partition and from a file."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.sort.workers import fixed_records, lines
from torpor.sort.data.running_proof import RunningProof, declare, prove_file
from torpor.sort.kernels.batch import NEWLINE, FixedBatch
from torpor.sort.kernels.checksum import hashes, prove
from torpor.sort.kernels.order import sorted_packed
from torpor.sort.proof import Proof, total
from torpor.sort.record import GENSORT, Fixed, Format, Lines
from torpor.sort.sizes import KIB, MIB

ODD = Fixed(length=7, key_offset=2, key_length=3)
CASES: list[tuple[Format, bytes]] = [
    (GENSORT, fixed_records(3_000, GENSORT, 1)),
    (ODD, fixed_records(5_000, ODD, 2)),
    (Fixed(1, 0, 1), bytes(range(256))),
    (Lines(), lines(2_000, 3)),
    (GENSORT, b""),
]


@pytest.mark.parametrize(("form", "data"), CASES)
@pytest.mark.parametrize("step", [1, 99, 4_096, 1 << 20])
def test_blocks_may_be_cut_anywhere(form: Format, data: bytes, step: int) -> None:
    data = data[: 300 * step]
    array = np.frombuffer(data, dtype=np.uint8)
    prover = RunningProof(form)
    for begin in range(0, len(data), step):
        prover.add(array[begin : begin + step])
    whole = len(data) // form.length * form.length if isinstance(form, Fixed) else data.rfind(b"\n") + 1
    assert prover.proof() == prove(array[:whole], form)


def test_a_long_line_in_many_blocks_takes_about_as_long_as_at_once() -> None:
    line = np.full(16 * MIB, ord("x"), dtype=np.uint8)
    line[-1] = NEWLINE

    def in_blocks() -> Proof:
        prover = RunningProof(Lines())
        for begin in range(0, len(line), 64 * KIB):
            prover.add(line[begin : begin + 64 * KIB])
        return prover.proof()

    assert in_blocks() == prove(line, Lines())
    # CPU time of this thread, so that other processes do not count. Joined again with each block, it takes a hundred times as
    # long.
    assert cpu_seconds(in_blocks) < 10 * cpu_seconds(lambda: prove(line, Lines()))


def cpu_seconds(work: Callable[[], object]) -> float:
    """The best of three."""

    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return min(once() for _ in range(3))


@pytest.mark.parametrize(("form", "data"), CASES)
def test_the_proof_of_a_file_is_that_of_its_content(tmp_path: Path, form: Format, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert prove_file(path, form) == prove(np.frombuffer(data, dtype=np.uint8), form)
    path.write_bytes(data[:-1] + b"?")
    assert (prove_file(path, form) != prove(np.frombuffer(data, dtype=np.uint8), form)) is bool(data)


def test_partitions_are_proven_from_the_records_as_they_were_read() -> None:
    data = np.frombuffer(fixed_records(1_000, GENSORT, 5), dtype=np.uint8)
    batch = FixedBatch(data, GENSORT)
    packed = sorted_packed(batch)
    begins = np.array([0, 0, 400, 1_000, 1_000])
    read, declared = declare(batch, packed, begins, data[:0], begins * 100)
    assert read == total(declared) == prove(data, GENSORT)
    rows = (packed & np.uint64((1 << 24) - 1)).astype(np.intp)[:400]
    assert declared[1] == prove(np.ascontiguousarray(data.reshape(-1, 100)[rows]).reshape(-1), GENSORT)
    assert [proof.records for proof in declared] == [0, 400, 600, 0]
    assert len(hashes(batch)) == 1_000
