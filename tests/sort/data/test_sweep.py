"""A sweep declares its records, keeps complete runs of an earlier sweep, and refuses changed inputs."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.sort.workers import AMPLE, TINY, contexts, expected, fixed_records, header, lines, merge_all, shuffle, sweep_all
from tests.sort.workers import blocks as blocks_of
from torpor.sort.data.context import SortContext, StopRequested
from torpor.sort.data.sweep import sweep
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.checksum import prove
from torpor.sort.proof import Proof, total
from torpor.sort.record import GENSORT, Format, Lines

MEMORIES = pytest.mark.parametrize("memory", [TINY, AMPLE], ids=["tiny", "ample"])
RECORDS = fixed_records(30_000, GENSORT, seed=1)


def proven(data: bytes, form: Format) -> Proof:
    return prove(np.frombuffer(data, dtype=np.uint8), form)


@MEMORIES
def test_declared_proofs_are_those_of_the_parts_and_add_up_to_the_input(tmp_path: Path, memory: int) -> None:
    given = [{"a": RECORDS}, {"b": RECORDS[:90_000]}]
    with contexts(tmp_path, given, memory=memory) as made:
        for worker, files in zip(sweep_all(made), given, strict=True):
            assert worker.sorted.proof == proven(b"".join(files.values()), GENSORT) == total(worker.sorted.declared)
            for partition, declared in enumerate(worker.sorted.declared):
                assert declared == proven(b"".join(blocks_of(worker, partition)), GENSORT)


def test_parts_of_lines_are_declared(tmp_path: Path) -> None:
    data = lines(20_000, seed=3)
    with contexts(tmp_path, [{"a": data[:-1]}], Lines(2, b",")) as made:
        (worker,) = sweep_all(made)
        assert worker.sorted.proof == proven(data, Lines())
        for partition, declared in enumerate(worker.sorted.declared):
            assert declared == proven(b"".join(blocks_of(worker, partition)), Lines())


@MEMORIES
def test_without_proof_records_and_bytes_are_counted_still(tmp_path: Path, memory: int) -> None:
    with contexts(tmp_path, [{"a": RECORDS}], memory=memory, proof=False) as made:
        _, report = sweep(made[0])
        assert report.proof == Proof(30_000, 3_000_000, 0)
        assert sum(proof.records for proof in report.declared) == 30_000


@MEMORIES
def test_progress_rises_to_its_end(tmp_path: Path, memory: int) -> None:
    seen: list[float] = []
    with contexts(tmp_path, [{"a": RECORDS}], memory=memory, threads=1) as made:
        sweep(followed(made[0], seen))
    assert seen == sorted(seen)
    assert seen[-1] == 100.0


def followed(context: SortContext, seen: list[float]) -> SortContext:
    return replace(context, progress=seen.append)


@MEMORIES
def test_a_stop_leaves_no_incomplete_file(tmp_path: Path, memory: int) -> None:
    with contexts(tmp_path, [{"a": RECORDS}], memory=memory) as made:
        made[0].stop.set()
        with pytest.raises(StopRequested):
            sweep(made[0])
        assert not list(made[0].place.runs.iterdir())


@MEMORIES
def test_a_changed_input_fails_the_job(tmp_path: Path, memory: int) -> None:
    with contexts(tmp_path, [{"a": RECORDS}], memory=memory) as made:
        os.utime(tmp_path / "0" / "input" / "a", ns=(1, 1))
        with pytest.raises(SortFailed, match="was changed during the sort"):
            sweep(made[0])


# ---- kept runs


def stripes(context: SortContext) -> dict[str, int]:
    """The run files, with their inode numbers, which change when a file is written again."""
    return {path.name: path.stat().st_ino for path in sorted(context.place.runs.iterdir())}


def swept_twice(folder: Path, damage: str) -> tuple[dict[str, int], dict[str, int]]:
    given = [{"a": fixed_records(60_000, GENSORT, seed=5)}]
    with contexts(folder, given) as made:
        (first,) = sweep_all(made)
        before = stripes(made[0])
        assert len(before) >= 3
        # Held open, so that the inode number of a removed file is not given to its successor.
        held = [path.open("rb") for path in made[0].place.runs.iterdir()]
        victim = made[0].place.run_file(1)
        match damage:
            case "none":
                pass
            case "file":
                victim.unlink()
            case "manifest":
                made[0].place.manifest_of(victim).unlink()
            case "torn manifest":
                made[0].place.manifest_of(victim).write_bytes(b'{"name": "run.0')
            case "byte":
                data = bytearray(victim.read_bytes())
                data[1234] ^= 1
                victim.write_bytes(data)
            case "short":
                os.truncate(victim, 5000)
    with contexts(folder, given, attempt=2) as made:
        workers = sweep_all(made)
        assert workers[0].sorted.declared == first.sorted.declared
        assert merge_all(workers) == expected(given, GENSORT)
        after = stripes(made[0])
    for file in held:
        file.close()
    return before, after


def test_complete_runs_are_kept(tmp_path: Path) -> None:
    before, after = swept_twice(tmp_path, "none")
    assert before == after


@pytest.mark.parametrize("damage", ["file", "manifest", "torn manifest", "byte", "short"])
def test_only_incomplete_runs_are_written_again(tmp_path: Path, damage: str) -> None:
    before, after = swept_twice(tmp_path, damage)
    assert {name for name in after if after[name] != before[name]} == {"run.00001"}


def test_runs_with_other_boundaries_are_written_again(tmp_path: Path) -> None:
    given = [{"a": RECORDS}]
    with contexts(tmp_path, given, partitions=3) as made:
        sweep_all(made)
    with contexts(tmp_path, given, partitions=4) as made:
        assert merge_all(sweep_all(made)) == expected(given, GENSORT)


def test_a_part_can_be_sent_again_from_kept_runs(tmp_path: Path) -> None:
    given = [{"a": RECORDS}, {"a": RECORDS[:1_000_000]}]
    with contexts(tmp_path, given) as made:
        workers = sweep_all(made)
        first = [b"".join(blocks_of(workers[0], partition)) for partition in range(6)]
        heads = [header(workers[0], workers[1], partition) for partition in range(6)]
    with contexts(tmp_path, given) as made:
        workers = sweep_all(made)
        assert [b"".join(blocks_of(workers[0], partition)) for partition in range(6)] == first
        assert [header(workers[0], workers[1], partition) for partition in range(6)] == heads
        assert shuffle(workers) == 6
