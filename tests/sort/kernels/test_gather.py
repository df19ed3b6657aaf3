"""The gathered bytes are exactly the chosen records in the chosen order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.kernels.inputs import any_data
from tests.sort.kernels.oracle import batch, records_of
from torpor.sort.kernels.batch import Batch
from torpor.sort.kernels.gather import gather
from torpor.sort.record import GENSORT, Fixed, Format, Lines

SLACK = 9


def gathered(found: Batch, rows: list[int], size: int) -> bytes:
    out = np.full(size + SLACK, 238, dtype=np.uint8)
    assert gather(found, np.array(rows, dtype=np.intp), out) == size
    assert (out[size:] == 238).all(), "written beyond the last record"
    return out[:size].tobytes()


@given(any_data(), st.data())
def test_gather_equals_joining_slices(case: tuple[Format, bytes], more: st.DataObject) -> None:
    form, data = case
    records = records_of(form, data)
    rows = more.draw(st.lists(st.integers(0, len(records) - 1), max_size=60)) if records else []
    expected = b"".join(records[row] for row in rows)
    assert gathered(batch(form, data), rows, len(expected)) == expected


@pytest.mark.parametrize("length", [*range(1, 70), 127, 128, 129, 255, 256, 257, 1000, 5000])
def test_lines_of_every_length(length: int) -> None:
    lines = [bytes([97 + (row + place) % 26 for place in range(length - 1)]) + b"\n" for row in range(5)]
    assert gathered(batch(Lines(), b"".join(lines)), [4, 0, 3, 3], 4 * length) == lines[4] + lines[0] + lines[3] + lines[3]


@pytest.mark.parametrize("form", [GENSORT, Lines()])
def test_many_records_in_any_order(form: Format) -> None:
    dice = np.random.default_rng(4)
    table = dice.integers(65, 91, size=(31_474, 100), dtype=np.uint8)
    table[:, 99] = 10
    rows = dice.permutation(len(table)).astype(np.intp)
    out = np.empty(table.size, dtype=np.uint8)
    assert gather(batch(form, table.tobytes()), rows, out) == table.size
    assert np.array_equal(out.reshape(-1, 100), table[rows])


@pytest.mark.parametrize("form", [Fixed(2, 0, 2), Lines()])
def test_rows_out_of_range_and_a_small_buffer_are_refused(form: Format) -> None:
    found = batch(form, b"a\nb\n")
    for rows in ([0, 2], [-1]):
        with pytest.raises(IndexError, match="not all among 2"):
            gather(found, np.array(rows, dtype=np.intp), np.empty(100, dtype=np.uint8))
    with pytest.raises(ValueError, match="4 bytes of records do not fit into 3"):
        gather(found, np.array([1, 0], dtype=np.intp), np.empty(3, dtype=np.uint8))
