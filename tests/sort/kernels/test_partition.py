"""Every record is in the partition for its (key, worker, position)."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.kernels.inputs import any_data
from tests.sort.kernels.oracle import batch, key_of, positions_of, records_of
from torpor.sort.kernels.batch import batch_of
from torpor.sort.kernels.order import MOST_ROWS, rows_of, sorted_packed
from torpor.sort.kernels.partition import boundary_table, split
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.record import GENSORT, Fixed, Format


def naive(form: Format, data: bytes, boundaries: list[Boundary], worker: int, base: int) -> list[int]:
    """For every row the number of boundaries at or below it."""
    records = records_of(form, data)
    places = [
        (key_of(form)(record), worker, base + offset) for record, offset in zip(records, positions_of(records), strict=True)
    ]
    return [sum(boundary <= place for boundary in boundaries) for place in places]


def check(form: Format, data: bytes, boundaries: list[Boundary], worker: int, base: int) -> None:
    found = batch(form, data)
    packed = sorted_packed(found)
    begins = split(found, packed, boundary_table(boundaries), worker, base)
    assert len(begins) == len(boundaries) + 2
    assert begins[0] == 0
    assert begins[-1] == len(found)
    sizes = np.diff(begins)
    assert (sizes >= 0).all()
    partitions = np.empty(len(found), dtype=np.int64)
    partitions[rows_of(packed)] = np.repeat(np.arange(len(sizes)), sizes)
    assert partitions.tolist() == naive(form, data, boundaries, worker, base)


@given(any_data(), st.data(), st.integers(0, 2), st.integers(0, 500))
def test_partitioning_equals_comparing_every_record_with_every_boundary(
    case: tuple[Format, bytes], more: st.DataObject, worker: int, base: int
) -> None:
    form, data = case
    records = records_of(form, data)
    # Keys of the records, shortened and lengthened ones, and others: a boundary may be a record of any worker.
    own = [key_of(form)(record) for record in records]
    keys = st.sampled_from([b"", b"\0", b"\xff" * 12, *own, *(key[:-1] for key in own), *(key + b"\0" for key in own)])
    places = st.sampled_from([0, 1, base, *(base + offset for offset in positions_of(records)), base + len(data), 10**12])
    drawn = more.draw(st.lists(st.builds(Boundary, keys, st.integers(0, 2), places), max_size=12))
    check(form, data, sorted(drawn), worker, base)


@pytest.mark.parametrize("worker", range(3))
@pytest.mark.parametrize("kinds", [1, 2, 300])
def test_a_frequent_key_is_divided_by_worker_and_position(worker: int, kinds: int) -> None:
    dice = random.Random(kinds)
    keys = [dice.randbytes(10) for _ in range(kinds)]
    data = b"".join(dice.choice(keys) + bytes(90) for _ in range(500))
    boundaries = sorted(Boundary(dice.choice(keys), dice.randrange(3), 100 * dice.randrange(2000)) for _ in range(40))
    check(GENSORT, data, boundaries, worker, 50_000)


def test_no_boundary_and_no_record() -> None:
    check(GENSORT, bytes(300), [], 0, 0)
    check(GENSORT, b"", [], 0, 0)
    check(GENSORT, b"", [Boundary(b"a", 0, 0), Boundary(b"a", 0, 7)], 0, 0)


def test_the_highest_row_of_the_highest_key() -> None:
    """All 24 bits of rows are in use, and all bits of the prefix are set, so an increment would overflow."""
    full = batch_of(Fixed(5, 0, 5), np.full(5 * MOST_ROWS, 255, dtype=np.uint8))
    packed = sorted_packed(full)
    last = 5 * (MOST_ROWS - 1)
    boundaries = [Boundary(b"\xff" * 5, 0, last - 4), Boundary(b"\xff" * 5, 0, last + 1), Boundary(b"\xff" * 5, 1, 0)]
    assert split(full, packed, boundary_table(boundaries), 0, 0).tolist() == [0, MOST_ROWS - 1, MOST_ROWS, MOST_ROWS, MOST_ROWS]
