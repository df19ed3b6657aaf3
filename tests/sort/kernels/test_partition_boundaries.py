"""The boundaries give every worker its share, for any distribution of keys."""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.sort.kernels.partition_boundaries import Boundary, choose
from torpor.sort.kernels.sample import positions, seed_of

WORKERS, RECORDS, SAMPLES, LENGTH = 4, 100_000, 4_000, 100
FAIR = 1.3

Keys = npt.NDArray[np.uint64]


def _half_equal(dice: np.random.Generator) -> Keys:
    return np.where(dice.random(WORKERS * RECORDS) < 0.5, np.uint64(1 << 40), _uniform(dice))


def _uniform(dice: np.random.Generator) -> Keys:
    return dice.integers(0, 1 << 63, size=WORKERS * RECORDS, dtype=np.uint64)


def _zipf(dice: np.random.Generator) -> Keys:
    return dice.zipf(1.3, size=WORKERS * RECORDS).astype(np.uint64)


SHAPES: dict[str, Callable[[np.random.Generator], Keys]] = {
    "uniform": _uniform,
    "all equal": lambda dice: np.full(WORKERS * RECORDS, 5, dtype=np.uint64),
    "half equal": _half_equal,
    "Zipf": _zipf,
    "sorted": lambda dice: np.sort(_uniform(dice)),
    "sorted, half equal": lambda dice: np.sort(_half_equal(dice)),
    "descending": lambda dice: np.sort(_uniform(dice))[::-1].copy(),
    "two keys": lambda dice: dice.integers(0, 2, size=WORKERS * RECORDS).astype(np.uint64),
}


def _drawn(keys: list[Keys]) -> dict[int, list[tuple[bytes, int]]]:
    samples = {}
    for worker, own in enumerate(keys):
        rows = positions(len(own), SAMPLES, seed_of(worker, [len(own) * LENGTH])).tolist()
        samples[worker] = [(int(own[row]).to_bytes(10), row * LENGTH) for row in rows]
    return samples


def _loads(keys: list[Keys], boundaries: tuple[Boundary, ...]) -> list[int]:
    """The number of records in each partition, by key, worker and position."""
    below = []
    for key, worker, position in boundaries:
        number = int.from_bytes(key)
        count = 0
        for index, own in enumerate(keys):
            equal = own == np.uint64(number)
            offsets = np.arange(len(own)) * LENGTH
            taken = equal if index < worker else equal & (offsets < position) if index == worker else np.zeros_like(equal)
            count += int((own < np.uint64(number)).sum() + taken.sum())
        below.append(count)
    edges = [0, *below, sum(map(len, keys))]
    return [after - before for before, after in itertools.pairwise(edges)]


@pytest.mark.parametrize("each", [1, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_worker_gets_much_more_than_its_share(shape: str, each: int) -> None:
    keys = np.split(SHAPES[shape](np.random.default_rng(11)), WORKERS)
    boundaries = choose(_drawn(keys), dict.fromkeys(range(WORKERS), RECORDS * LENGTH), WORKERS * each)
    loads = np.array(_loads(keys, boundaries))
    assert loads.sum() == WORKERS * RECORDS
    assert loads.reshape(WORKERS, each).sum(axis=1).max() <= FAIR * RECORDS
    assert loads.max() <= FAIR * RECORDS / each


def test_samples_are_weighted_by_the_input_size_of_their_worker() -> None:
    """One worker has almost all records, and all its keys are above the others'. It is not divided as if it had a quarter."""
    dice = np.random.default_rng(2)
    keys = [dice.integers(0, 1000, size=4_000, dtype=np.uint64) for _ in range(3)]
    keys.append(dice.integers(1 << 40, 1 << 50, size=388_000, dtype=np.uint64))
    boundaries = choose(_drawn(keys), {worker: len(own) * LENGTH for worker, own in enumerate(keys)}, 4)
    assert max(_loads(keys, boundaries)) <= FAIR * 100_000


def test_without_samples_all_records_go_to_the_last_partition() -> None:
    assert choose({}, {}, 3) == (Boundary(b"", 0, 0),) * 2
    assert choose({0: [], 1: []}, {0: 0, 1: 0}, 1) == ()


def test_a_worker_without_records_changes_nothing() -> None:
    samples = {0: [(bytes([number]), number) for number in range(100)]}
    assert choose({**samples, 1: []}, {0: 100, 1: 0}, 5) == choose(samples, {0: 100}, 5)


def test_fewer_samples_than_partitions() -> None:
    boundaries = choose({0: [(b"b", 100), (b"a", 0)]}, {0: 200}, 6)
    assert len(boundaries) == 5
    assert set(boundaries) == {Boundary(b"a", 0, 0), Boundary(b"b", 0, 100)}


def test_zero_partitions_are_an_error() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        choose({}, {}, 0)


@given(
    st.dictionaries(st.integers(0, 3), st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 1000)), max_size=20)),
    st.dictionaries(st.integers(0, 3), st.integers(0, 10**15)),
    st.integers(1, 30),
)
def test_boundaries_never_descend_and_are_samples(
    samples: dict[int, list[tuple[bytes, int]]], sizes: dict[int, int], partitions: int
) -> None:
    boundaries = choose(samples, sizes, partitions)
    assert len(boundaries) == partitions - 1
    assert list(boundaries) == sorted(boundaries)
    drawn = {(key, worker, position) for worker, own in samples.items() for key, position in own}
    assert set(boundaries) <= (drawn or {(b"", 0, 0)})
    backwards = {worker: own[::-1] for worker, own in reversed(samples.items())}
    assert choose(backwards, sizes, partitions) == boundaries
