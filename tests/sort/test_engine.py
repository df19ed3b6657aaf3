"""Input directories become the same sorted bytes for any memory, format and number of workers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sort.workers import AMPLE, TINY, Files, contexts, expected, fixed_records, lines, sort_all, sweep_all
from torpor.sort.data.runs import MappedRuns, SpilledRuns
from torpor.sort.record import GENSORT, Fixed, Format, Lines

OFFSET = Fixed(length=37, key_offset=11, key_length=13)
Make = Callable[[int, int], bytes]

FORMATS: dict[str, tuple[Format, Make]] = {
    "gensort": (GENSORT, lambda count, seed: fixed_records(count, GENSORT, seed)),
    "few keys": (GENSORT, lambda count, seed: fixed_records(count, GENSORT, seed, keys=7)),
    "equal keys": (GENSORT, lambda count, seed: fixed_records(count, GENSORT, seed, keys=1)),
    "key offset": (OFFSET, lambda count, seed: fixed_records(count * 3, OFFSET, seed, keys=100_000)),
    "lines": (Lines(), lambda count, seed: lines(count * 2, seed)),
    "lines by field": (Lines(2, b","), lambda count, seed: lines(count * 2, seed)[:-1]),
}


def inputs(make: Make, workers: int, count: int) -> list[Files]:
    """The last worker has almost no records, and one file of each worker is empty."""
    return [
        {"b": make(count if worker < 2 else 3, worker), "a/x": make(count // 3, 50 + worker), "c": b""}
        for worker in range(workers)
    ]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("memory", [TINY, AMPLE], ids=["tiny", "ample"])
def test_the_output_is_what_python_sorts(tmp_path: Path, name: str, workers: int, memory: int) -> None:
    form, make = FORMATS[name]
    given = inputs(make, workers, 12_000)
    with contexts(tmp_path, given, form, memory=memory) as made:
        assert sort_all(made) == expected(given, form)


def test_runs_stay_mapped_if_memory_allows_and_are_spilled_otherwise(tmp_path: Path) -> None:
    given = inputs(FORMATS["gensort"][1], 1, 12_000)
    with contexts(tmp_path, given, memory=AMPLE) as made:
        assert isinstance(sweep_all(made)[0].runs, MappedRuns)
        assert not list(made[0].place.runs.iterdir())
    with contexts(tmp_path, given, memory=TINY) as made:
        runs = sweep_all(made)[0].runs
        assert isinstance(runs, SpilledRuns)
        assert len(runs.stripes) > 0
        assert len(list(made[0].place.runs.iterdir())) == len(runs.stripes)


@pytest.mark.parametrize("partitions", [1, 2, 40])
@pytest.mark.parametrize("threads", [1, 5])
def test_the_number_of_partitions_and_threads_changes_no_byte(tmp_path: Path, partitions: int, threads: int) -> None:
    given = inputs(FORMATS["few keys"][1], 2, 9_000)
    with contexts(tmp_path, given, partitions=partitions, threads=threads) as made:
        assert sort_all(made) == expected(given, GENSORT)


@pytest.mark.parametrize("proof", [True, False])
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("memory", [TINY, AMPLE], ids=["tiny", "ample"])
def test_proof_and_durability_change_no_byte(tmp_path: Path, proof: bool, sync: bool, memory: int) -> None:
    given = inputs(FORMATS["gensort"][1], 2, 8_000)
    with contexts(tmp_path, given, proof=proof, sync=sync, memory=memory) as made:
        assert sort_all(made) == expected(given, GENSORT)


@pytest.mark.parametrize("memory", [TINY, AMPLE], ids=["tiny", "ample"])
@pytest.mark.parametrize("files", [{}, {"empty": b""}, {"one": bytes(100)}], ids=["no file", "empty", "one record"])
def test_empty_and_tiny_inputs_are_sorted(tmp_path: Path, memory: int, files: Files) -> None:
    (tmp_path / "0" / "input").mkdir(parents=True)
    with contexts(tmp_path, [files], memory=memory) as made:
        assert sort_all(made) == expected([files], GENSORT)
        assert [path.name for path in sorted(made[0].place.output.glob("p*"))] == [f"partition.{n:05d}" for n in range(3)]
