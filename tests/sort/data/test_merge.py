"""Output is complete, proven and kept, and no other file ever gets its name."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sort.kernels.oracle import key_of, records_of
from tests.sort.workers import (
    AMPLE,
    TINY,
    Worker,
    close_all,
    contexts,
    declared_for,
    expected,
    fixed_records,
    merge_all,
    shuffle,
    sweep_all,
)
from tests.support.small_disk import small_disk
from torpor.sort.data.context import StopRequested
from torpor.sort.data.merge import Merger, merge
from torpor.sort.data.oversized_partitions import split_partition
from torpor.sort.data.pieces import MemoryPiece
from torpor.sort.errors import SortFailed
from torpor.sort.proof import Proof
from torpor.sort.record import GENSORT, Fixed, Lines

MEMORIES = pytest.mark.parametrize("memory", [TINY, AMPLE], ids=["tiny", "ample"])
GIVEN = [{"a": fixed_records(12_000, GENSORT, seed=1)}, {"a": fixed_records(9_000, GENSORT, seed=2, keys=40)}]


@pytest.fixture
def pair(tmp_path: Path, memory: int) -> Iterator[list[Worker]]:
    with contexts(tmp_path, GIVEN, memory=memory) as made:
        workers = sweep_all(made)
        shuffle(workers)
        yield workers
        close_all(workers)


def outputs(worker: Worker) -> list[str]:
    return sorted(path.name for path in worker.context.place.output.iterdir() if not path.name.startswith("."))


@MEMORIES
def test_the_report_matches_the_files(pair: list[Worker]) -> None:
    merge_all(pair)
    for worker in pair:
        assert worker.merged is not None
        assert tuple(file.partition for file in worker.merged.files) == worker.context.own
        for file in worker.merged.files:
            records = records_of(GENSORT, worker.context.place.output_file(file.partition).read_bytes())
            assert file.proof.records == len(records)
            assert (file.first_key, file.last_key) == (records[0][:10], records[-1][:10])


@MEMORIES
def test_partitions_can_be_merged_separately_in_any_order(pair: list[Worker]) -> None:
    for worker in pair:
        merger = Merger(worker.context, worker.runs, worker.parts, declared_for(pair, worker.context.index))
        for partition in reversed(worker.context.own):
            assert not worker.context.place.output_file(partition).exists()
            merger.merge_partition(partition)
        merger.close()
    assert b"".join(worker.output() for worker in pair) == expected(GIVEN, GENSORT)


@MEMORIES
def test_a_partition_that_differs_from_its_declaration_is_not_written(pair: list[Worker]) -> None:
    worker = pair[0]
    declared = declared_for(pair, 0)
    first, *others = declared[1]
    declared[1] = (first + Proof(0, 0, 1), *others)
    with pytest.raises(SortFailed, match="partition 1 should have"):
        merge(worker.context, worker.runs, worker.parts, declared)
    assert "partition.00001" not in outputs(worker)
    assert not [name for name in outputs(worker) if name.endswith(".partial")]


@pytest.mark.parametrize("memory", [TINY], ids=["tiny"])
@pytest.mark.parametrize("what", ["run", "part"])
def test_a_flipped_byte_on_the_disk_is_detected(pair: list[Worker], what: str) -> None:
    worker = pair[0]
    place = worker.context.place
    path = sorted((place.parts if what == "part" else place.runs).iterdir())[0]
    data = bytearray(path.read_bytes())
    # A byte of a value, of a record that stays here.
    data[50] ^= 1
    path.write_bytes(data)
    with pytest.raises(SortFailed, match="should have"):
        merge_all(pair)


@MEMORIES
def test_a_stop_leaves_no_incomplete_file(pair: list[Worker]) -> None:
    worker = pair[0]

    def stop_at_once(done: float) -> None:
        if done:
            worker.context.stop.set()

    context = replace(worker.context, progress=stop_at_once)
    with pytest.raises(StopRequested):
        merge(context, worker.runs, worker.parts, declared_for(pair, 0))
    assert not [name for name in outputs(worker) if name.endswith(".partial")]


@MEMORIES
@pytest.mark.parametrize("damage", ["none", "byte", "short", "gone", "manifest"])
def test_complete_outputs_are_kept(pair: list[Worker], damage: str) -> None:
    merge_all(pair)
    place = pair[0].context.place
    before = {partition: place.output_file(partition).stat().st_mtime_ns for partition in pair[0].context.own}
    for partition in before:
        os.utime(place.output_file(partition), ns=(1, 1))
    victim = place.output_file(1)
    match damage:
        case "byte":
            data = bytearray(victim.read_bytes())
            data[-1] ^= 1
            victim.write_bytes(data)
        case "short":
            victim.write_bytes(victim.read_bytes()[:-100])
        case "gone":
            victim.unlink()
        case "manifest":
            place.manifest_of(victim).unlink()
    first = pair[0].merged
    assert merge_all(pair) == expected(GIVEN, GENSORT)
    assert pair[0].merged is not None
    assert first is not None
    assert pair[0].merged.files == first.files
    again = {partition for partition in before if place.output_file(partition).stat().st_mtime_ns != 1}
    assert again == (set() if damage == "none" else {1})


@pytest.mark.parametrize("sync", [True, False])
def test_a_full_disk_fails_the_job_and_leaves_no_file(tmp_path: Path, sync: bool) -> None:
    given = [{"a": fixed_records(40_000, GENSORT, seed=8)}]
    (tmp_path / "0").mkdir()
    with small_disk(tmp_path / "0" / "output"), contexts(tmp_path, given, memory=AMPLE, sync=sync) as made:
        workers = sweep_all(made)
        with pytest.raises(SortFailed, match="no space is left"):
            merge_all(workers)
        for name in outputs(workers[0]):
            assert (made[0].place.output / name).stat().st_size == made[0].place.output_file(int(name[-5:])).stat().st_size
            assert not name.endswith(".partial")
        assert len(outputs(workers[0])) < 3
        close_all(workers)


# ---- split partitions

SHORT = Fixed(length=4, key_offset=1, key_length=2)


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.binary(min_size=4, max_size=4), max_size=30), min_size=1, max_size=6),
    st.integers(min_value=1, max_value=60),
    st.booleans(),
)
def test_a_divided_partition_is_merged_to_the_same_bytes(pieces: list[list[bytes]], most: int, few: bool) -> None:
    if few:
        pieces = [[record[:1] + b"kk" + record[3:] for record in piece] for piece in pieces]
    ordered = [sorted(piece, key=key_of(SHORT)) for piece in pieces]
    sources = [MemoryPiece(np.frombuffer(b"".join(piece), dtype=np.uint8), SHORT) for piece in ordered]
    found: list[bytes] = []
    for stretches in split_partition(sources, most):
        together = b"".join(source.data[start:end].tobytes() for source, (start, end) in zip(sources, stretches, strict=True))
        assert len(together) <= max(most, 4)
        found += sorted(records_of(SHORT, together), key=key_of(SHORT))
    assert found == sorted(chain.from_iterable(ordered), key=key_of(SHORT))


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.text("ab\0,", max_size=12), max_size=12), min_size=1, max_size=4),
    st.integers(min_value=1, max_value=60),
    st.sampled_from([Lines(), Lines(2, b",")]),
)
def test_lines_are_divided_between_lines(texts: list[list[str]], most: int, form: Lines) -> None:
    ordered = [sorted((text.encode() + b"\n" for text in piece), key=key_of(form)) for piece in texts]
    sources = [MemoryPiece(np.frombuffer(b"".join(piece), dtype=np.uint8), form) for piece in ordered]
    found: list[bytes] = []
    for stretches in split_partition(sources, most):
        together = b"".join(source.data[start:end].tobytes() for source, (start, end) in zip(sources, stretches, strict=True))
        records = records_of(form, together)
        assert len(together) <= most or len(records) == 1
        found += sorted(records, key=key_of(form))
    assert found == sorted(chain.from_iterable(ordered), key=key_of(form))
