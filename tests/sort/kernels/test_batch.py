"""A batch finds its records and keys, and reads the right five bytes of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.kernels.inputs import any_data
from tests.sort.kernels.oracle import array, batch, key_of, positions_of, records_of
from torpor.sort.kernels.batch import batch_of
from torpor.sort.record import GENSORT, Fixed, Format, Lines


@given(any_data())
def test_records_and_keys(case: tuple[Format, bytes]) -> None:
    form, data = case
    records = records_of(form, data)
    found = batch(form, data)
    assert len(found) == len(records)
    keys = [key_of(form)(record) for record in records]
    assert [found.key(row) for row in range(len(found))] == keys
    assert found.key_lengths().tolist() == [len(key) for key in keys]
    assert found.sizes().tolist() == [len(record) for record in records]


@given(any_data(), st.integers(0, 40))
def test_prefix_is_five_bytes_padded_with_zeros(case: tuple[Format, bytes], at: int) -> None:
    form, data = case
    found = batch(form, data)
    expected = [int.from_bytes(found.key(row)[at : at + 5].ljust(5, b"\0")) for row in range(len(found))]
    assert found.prefix(at).tolist() == expected
    rows = [row for row in range(len(found)) for _ in range(1 + row % 2)][::-1]
    assert found.prefix(at, np.array(rows, dtype=np.intp)).tolist() == [expected[row] for row in rows]


@given(any_data(), st.integers(0, 400))
def test_row_at_is_the_first_row_at_or_after_an_offset(case: tuple[Format, bytes], offset: int) -> None:
    form, data = case
    positions = positions_of(records_of(form, data))
    assert batch(form, data).row_at(offset) == sum(position < offset for position in positions)
    assert batch(form, data).row_at(-offset) == 0


def test_fields_are_split_like_gnu_sort() -> None:
    data = b"a,b,c\n\nb\n,\nx,,z\n,last\n"
    assert [batch(Lines(1, b","), data).key(row) for row in range(6)] == [b"a", b"", b"b", b"", b"x", b""]
    assert [batch(Lines(2, b","), data).key(row) for row in range(6)] == [b"b", b"", b"", b"", b"", b"last"]
    assert [batch(Lines(3, b","), data).key(row) for row in range(6)] == [b"c", b"", b"", b"", b"z", b""]
    assert [batch(Lines(1_000_000_000, b","), data).key(row) for row in range(6)] == [b""] * 6


def test_incomplete_records_are_refused() -> None:
    with pytest.raises(ValueError, match="whole records of 100"):
        batch(GENSORT, bytes(150))
    with pytest.raises(ValueError, match="newline"):
        batch(Lines(), b"a\nb")
    with pytest.raises(ValueError, match="one row"):
        batch_of(Fixed(2, 0, 2), array(bytes(8))[::2])


@pytest.mark.parametrize("form", [GENSORT, Lines()])
def test_a_row_out_of_range_is_an_error(form: Format) -> None:
    one = batch(form, bytes(99) + b"\n")
    for row in (-1, 1):
        with pytest.raises(IndexError):
            one.key(row)
