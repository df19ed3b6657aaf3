"""The sampled records are distinct, spread over all, and the same in every run."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torpor.sort.kernels.sample import positions, seed_of


@given(st.integers(0, 10**12), st.integers(0, 5000), st.integers(0, (1 << 64) - 1))
def test_positions_are_distinct_ascending_and_in_range(records: int, count: int, seed: int) -> None:
    drawn = positions(records, count, seed)
    assert len(drawn) == min(records, count)
    assert (np.diff(drawn) > 0).all()
    assert len(drawn) == 0 or (drawn[0] >= 0 and drawn[-1] < records)


def test_few_records_are_all_sampled() -> None:
    assert positions(7, 4000, 1).tolist() == list(range(7))


def test_a_seed_always_gives_the_same_positions() -> None:
    """Fixed values: another release of a library must not cut the same data at other places."""
    assert positions(1_000_000, 4, 42).tolist() == [25413, 392291, 513858, 755764]
    assert seed_of(3, [100, 200]) == 1880557259726276750


def test_other_seeds_give_other_positions() -> None:
    assert positions(10**9, 100, 1).tolist() != positions(10**9, 100, 2).tolist()
    seeds = {seed_of(0, []), seed_of(1, []), seed_of(0, [1]), seed_of(0, [1, 2]), seed_of(0, [2, 1]), seed_of(0, [12])}
    assert len(seeds) == 6


def test_positions_are_evenly_spread_without_a_period() -> None:
    drawn = positions(1 << 30, 1 << 16, 9)
    for modulus in (2, 10, 64):
        counts = np.bincount(drawn % modulus, minlength=modulus)
        fair = len(drawn) / modulus
        assert abs(counts - fair).max() < 6 * fair**0.5
