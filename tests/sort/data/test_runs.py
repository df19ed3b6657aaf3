"""Pieces and parts have the same bytes, for records in maps, files and memory."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.sort.kernels.oracle import key_of, records_of
from tests.sort.workers import AMPLE, TINY, Worker, contexts, fixed_records, lines, sweep_all
from torpor.sort.data.runs import Runs
from torpor.sort.record import GENSORT, Fixed, Format, Lines

ODD = Fixed(length=33, key_offset=30, key_length=3)
CASES: dict[str, tuple[Format, bytes, int]] = {
    "mapped": (GENSORT, fixed_records(20_000, GENSORT, 1), AMPLE),
    "spilled": (GENSORT, fixed_records(20_000, GENSORT, 1), TINY),
    "mapped, odd": (ODD, fixed_records(30_000, ODD, 2), AMPLE),
    "spilled, odd": (ODD, fixed_records(30_000, ODD, 2), TINY),
    "lines": (Lines(), lines(30_000, 3), TINY),
    "lines by field": (Lines(3, b","), lines(30_000, 3), TINY),
}


@pytest.fixture(params=CASES)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    form, data, memory = CASES[request.param]
    # In two files, so that mapped records are in two maps.
    half = len(records_of(form, data)) // 2
    first = b"".join(records_of(form, data)[:half])
    with contexts(tmp_path, [{"a": first, "b": data[len(first) :]}], form, memory=memory) as made:
        yield sweep_all(made)[0]


def whole(runs: Runs, partition: int, room: int) -> bytes:
    return b"".join(bytes(block) for block in runs.part(partition).blocks(memoryview(bytearray(room))))


def test_a_part_is_its_pieces_in_order_and_each_is_sorted(worker: Worker) -> None:
    form = worker.context.format
    for partition in range(3):
        part = worker.runs.part(partition)
        data = whole(worker.runs, partition, 1 << 20)
        assert part.proof == worker.sorted.declared[partition]
        assert sum(part.pieces) == len(data) == part.proof.size
        assert len(part.pieces) > 1
        for begin, end in pairwise(accumulate(part.pieces, initial=0)):
            keys = [key_of(form)(record) for record in records_of(form, data[begin:end])]
            assert keys == sorted(keys)


def test_the_buffer_does_not_change_the_bytes(worker: Worker) -> None:
    assert whole(worker.runs, 1, 5_000) == whole(worker.runs, 1, 1 << 20) == whole(worker.runs, 1, 99_991)


def test_records_are_found_from_any_byte(worker: Worker) -> None:
    form = worker.context.format
    piece = worker.runs.pieces(1)[0]
    data = np.empty(piece.size, dtype=np.uint8)
    piece.fill(0, data)
    records = records_of(form, data.tobytes())
    begins = list(accumulate(map(len, records), initial=0))
    for number in (0, 1, 2, len(records) // 2, len(records) - 1):
        wanted = (begins[number], key_of(form)(records[number]))
        assert piece.record_from(begins[number]) == wanted
        if number:
            assert piece.record_from(begins[number - 1] + 1) == wanted
    assert piece.record_from(begins[-2] + 1) is None
    assert piece.record_from(piece.size) is None
