"""Every loss, doubling and change is visible in the sum; a change of order or grouping is not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.kernels.inputs import any_data
from tests.sort.kernels.oracle import array, batch, records_of
from torpor.sort.kernels.checksum import prove
from torpor.sort.proof import Proof, total
from torpor.sort.record import GENSORT, Fixed, Format, Lines

PLACES = Fixed(100, 0, 10), Fixed(7, 0, 7), Fixed(8, 0, 8), Fixed(130, 0, 2), Lines()


@given(any_data(), st.lists(st.floats(0, 1), max_size=4))
def test_order_and_grouping_do_not_matter(case: tuple[Format, bytes], shares: list[float]) -> None:
    form, data = case
    records = records_of(form, data)
    whole = prove(array(data), form)
    assert (whole.records, whole.size) == (len(records), len(data))
    shuffled = records[::2][::-1] + records[1::2]
    cuts = [0, *sorted(int(share * len(records)) for share in shares), len(records)]
    groups = [shuffled[begin:end] for begin, end in itertools.pairwise(cuts)]
    assert total(prove(batch(form, b"".join(group)), form) for group in groups) == whole
    # The sum does not depend on the address in memory.
    moved = np.empty(len(data) + 1, dtype=np.uint8)
    moved[1:] = array(data)
    assert prove(moved[1:], form) == whole


@given(any_data(most=6), st.data())
def test_another_multiset_has_another_sum(case: tuple[Format, bytes], more: st.DataObject) -> None:
    form, data = case
    records = records_of(form, data)
    others = more.draw(st.lists(st.sampled_from(records), max_size=8)) if records else []
    same = sorted(records) == sorted(others)
    assert (prove(array(data), form).checksum == prove(array(b"".join(others)), form).checksum) == same


def _data(form: Format, rows: int = 12) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    length = form.length if isinstance(form, Fixed) else 300
    drawn = np.random.default_rng(8).integers(32, 127, size=(rows, length), dtype=np.uint8)
    if isinstance(form, Lines):
        drawn[:, -1] = 10
    return drawn


def _sum(form: Format, rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> int:
    return prove(rows.reshape(-1), form).checksum


@pytest.mark.parametrize("form", PLACES, ids=str)
def test_every_single_byte_matters(form: Format) -> None:
    rows = _data(form)
    before = _sum(form, rows)
    for place in range(rows.shape[1] - (form == Lines())):
        for bit in range(8):
            rows[3, place] ^= 1 << bit
            if form != Lines() or rows[3, place] != 10:
                assert _sum(form, rows) != before
            rows[3, place] ^= 1 << bit


@pytest.mark.parametrize("form", PLACES, ids=str)
def test_swapping_two_bytes_changes_the_sum(form: Format) -> None:
    rows = _data(form)
    before = _sum(form, rows)
    width = rows.shape[1] - (form == Lines())
    for first in range(width):
        # Within one record, and at the same place of two records.
        for (row, place), (other, target) in (((2, first), (2, (first + 4) % width)), ((2, first), (5, first))):
            if rows[row, place] == rows[other, target]:
                continue
            rows[row, place], rows[other, target] = rows[other, target], rows[row, place]
            assert _sum(form, rows) != before
            rows[row, place], rows[other, target] = rows[other, target], rows[row, place]
    assert _sum(form, rows) == before


@pytest.mark.parametrize("form", PLACES, ids=str)
def test_replacing_a_record_by_a_copy_of_another_changes_the_sum(form: Format) -> None:
    rows = _data(form)
    doubled = rows.copy()
    doubled[4] = rows[7]
    assert prove(doubled.reshape(-1), form).size == prove(rows.reshape(-1), form).size
    assert _sum(form, doubled) != _sum(form, rows)


@pytest.mark.parametrize("form", PLACES[:-1], ids=str)
def test_the_same_change_in_two_places_does_not_cancel(form: Format) -> None:
    """The highest bits of two words: a sum of 64-bit words times odd numbers would not notice."""
    rows = _data(form)
    before = _sum(form, rows)
    width = rows.shape[1]
    for first in range(width):
        for second in range(first + 1, width):
            rows[1, [first, second]] ^= 128
            assert _sum(form, rows) != before
            rows[1, [first, second]] ^= 128


def test_empty_records_of_zeros_and_lines_count() -> None:
    assert prove(array(b""), GENSORT) == Proof()
    assert prove(array(b""), Lines()) == Proof()
    one, two = prove(array(b"\n"), Lines()), prove(array(b"\n\n"), Lines())
    assert (one.records, one.size) == (1, 1)
    assert two == one + one
    assert one.checksum != 0


def test_zeros_at_the_end_of_a_line_matter() -> None:
    """Rows are filled up with zeros; the length distinguishes the line's own zeros from those."""
    sums = {
        prove(array(b"a" * length + b"\0" * zeros + b"\n"), Lines()).checksum for length in (0, 1, 130) for zeros in range(300)
    }
    assert len(sums) == 900


def test_swapping_long_stretches_of_a_line_changes_the_sum() -> None:
    one, other = b"a" * 128, b"b" * 128
    sums = {prove(array(line + b"end\n"), Lines()).checksum for line in (one + other, other + one, one + one, other + other)}
    assert len(sums) == 4


def test_the_position_of_the_key_does_not_change_the_sum() -> None:
    data = array(b"a,b\nc,d\n")
    assert prove(data, Lines(2, b",")) == prove(data, Lines()) == prove(batch(Lines(2, b","), b"a,b\nc,d\n"), Lines(2, b","))


def test_many_sums_are_spread_over_all_bits() -> None:
    """Records of almost only zeros, one bit apart: no bit is the same in the sums of all records."""
    rows = np.zeros((800, 100), dtype=np.uint8)
    rows.reshape(-1)[np.arange(800) * 100 + np.arange(800) // 8] = 1 << (np.arange(800) % 8)
    sums = np.array([prove(row, GENSORT).checksum for row in rows], dtype=np.uint64)
    assert len(set(sums.tolist())) == 800
    ones = np.unpackbits(sums.view(np.uint8)).reshape(800, 64).mean(axis=0)
    assert (abs(ones - 0.5) < 0.12).all()


def test_a_batch_of_another_format_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="LineBatch"):
        prove(batch(Lines(), b"a\n"), GENSORT)
    with pytest.raises(TypeError, match="FixedBatch"):
        prove(batch(GENSORT, bytes(100)), Lines())
