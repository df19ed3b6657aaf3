"""The order is the stable one by whole keys."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.kernels.inputs import any_data
from tests.sort.kernels.oracle import batch, key_of, ordered, records_of
from torpor.sort.kernels.batch import batch_of
from torpor.sort.kernels.order import MOST_ROWS, merged_order, packed_sort, rows_of, sort_order, sorted_packed
from torpor.sort.record import GENSORT, Fixed, Format, Lines


@given(any_data())
def test_the_order_equals_that_of_python(case: tuple[Format, bytes]) -> None:
    form, data = case
    assert sort_order(batch(form, data)).tolist() == ordered(form, data)


@given(any_data())
def test_packed_words_hold_the_order_below_and_ascending_prefixes_above(case: tuple[Format, bytes]) -> None:
    form, data = case
    found = batch(form, data)
    packed = sorted_packed(found)
    assert (packed >> np.uint64(24)).tolist() == found.prefix(0, rows_of(packed)).tolist()
    assert (packed >> np.uint64(24)).tolist() == sorted(found.prefix(0).tolist())
    assert rows_of(packed).tolist() == ordered(form, data)


@given(any_data(), st.data())
def test_pieces_of_sorted_chunks_sort_together_without_their_prefixes_read_again(
    case: tuple[Format, bytes], drawn: st.DataObject
) -> None:
    form, data = case
    records = records_of(form, data)
    half = len(records) // 2
    sorted_chunks = [sorted_packed(batch(form, b"".join(chunk))) for chunk in (records[:half], records[half:])]
    pieces = []
    for packed, first in zip(sorted_chunks, (0, half), strict=True):
        begin = drawn.draw(st.integers(0, len(packed)))
        pieces.append((packed[begin : drawn.draw(st.integers(begin, len(packed)))], first))
    found = batch(form, data)
    rows = sorted(row + first for packed, first in pieces for row in rows_of(packed).tolist())
    room = np.empty(len(records), dtype=np.uint64)
    assert merged_order(found, pieces, room).tolist() == sorted(rows, key=found.key)


@pytest.mark.parametrize("far", [5, 4, 1])
def test_truncated_prefixes_are_compared_again(far: int) -> None:
    """So many rows that some of the forty bits of prefix are left out, unless the keys have enough of them in common."""
    form, count = Fixed(5, 0, 5), 1 << 25
    keys = np.zeros((64, 5), dtype=np.uint8)
    keys[:, -far:] = np.random.default_rng(far).integers(0, 256, (64, far), dtype=np.uint8)
    keys[1::2, :4] = keys[::2, :4]
    data = np.zeros(count * 5, dtype=np.uint8)
    data[-64 * 5 :] = keys.reshape(-1)
    packed = sorted_packed(batch_of(form, data[-64 * 5 :]))
    order = merged_order(batch_of(form, data), [(packed, count - 64)], np.empty(64, dtype=np.uint64))
    assert order.tolist() == (rows_of(packed) + (count - 64)).tolist()


def _shapes() -> dict[str, list[bytes]]:
    dice = random.Random(7)
    drawn = [dice.randbytes(10) for _ in range(3000)]
    hot = dice.randbytes(10)
    return {
        "nothing": [],
        "one": drawn[:1],
        "random": drawn,
        "ascending": sorted(drawn),
        "descending": sorted(drawn, reverse=True),
        "doubled": drawn[:1000] * 3,
        "all equal": [hot] * 3000,
        "half equal": [dice.choice((hot, key)) for key in drawn],
        "prefix equal": [hot[:5] + key[5:] for key in drawn],
        "few prefixes": [bytes([dice.randrange(3)]) * 5 + key[5:] for key in drawn],
        "last byte only": [hot[:9] + key[9:] for key in drawn],
        "few prefixes, last byte": [bytes([dice.randrange(3)]) * 5 + hot[:4] + key[9:] for key in drawn],
        "highest": [b"\xff" * 9 + key[9:] for key in drawn],
    }


@pytest.mark.parametrize("shape", _shapes())
def test_shapes_of_keys(shape: str) -> None:
    keys = _shapes()[shape]
    data = b"".join(key + row.to_bytes(90) for row, key in enumerate(keys))
    assert sort_order(batch(GENSORT, data)).tolist() == ordered(GENSORT, data)
    # The same as lines that end in the key's hexadecimal digits, after a common beginning.
    for shared in (b"", b"abc", b"abcdefg" * 7, b"long " * 100):
        text = b"".join(shared + key.hex().encode() + b"\n" for key in keys)
        assert sort_order(batch(Lines(), text)).tolist() == ordered(Lines(), text)


def test_long_keys_that_differ_in_one_byte_are_sorted_correctly() -> None:
    form = Fixed(50, 10, 33)
    data = b"".join(bytes(10 + place) + b"\1" + bytes(39 - place) for place in range(40)) * 5
    assert sort_order(batch(form, data)).tolist() == ordered(form, data)
    deep = Fixed(2000, 0, 2000)
    data = b"".join(bytes(1990) + bytes([99 - row % 50]) + bytes(9) for row in range(200))
    assert sort_order(batch(deep, data)).tolist() == ordered(deep, data)


def test_keys_that_are_prefixes_of_others_are_sorted_correctly() -> None:
    lines = [b"a" * length + b"\0" * zeros for length in range(13) for zeros in range(13)] * 3
    random.Random(3).shuffle(lines)
    data = b"".join(line + b"\n" for line in lines)
    assert sort_order(batch(Lines(), data)).tolist() == ordered(Lines(), data)


def test_a_sort_of_many_is_sorted_whole_and_stable() -> None:
    dice = np.random.default_rng(5)
    data = dice.integers(0, 256, size=(300_000, 16), dtype=np.uint8)
    data[:, :4] = 0
    data[:, 4] &= 3
    data[::2, 5:10] = 7
    found = batch_of(Fixed(16, 0, 10), data.reshape(-1))
    rows = sort_order(found)
    assert np.array_equal(np.sort(rows), np.arange(len(data)))
    keys = np.zeros((len(data), 16), dtype=np.uint8)
    keys[:, :10] = data[rows, :10]
    high, low = keys.view(">u8").astype(np.uint64).T
    rises = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    ties = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    assert (rises | ties).all()
    assert ties.sum() > 100_000
    assert (rows[1:][ties] > rows[:-1][ties]).all()


def test_prefixes_sort_with_their_index() -> None:
    prefixes = np.array([3, (1 << 40) - 1, 3, 0], dtype=np.uint64)
    assert packed_sort(prefixes).tolist() == [3, 3 << 24, (3 << 24) | 2, (((1 << 40) - 1) << 24) | 1]


def test_more_rows_than_bits_are_refused() -> None:
    most = Fixed(1, 0, 1)
    data = np.zeros(MOST_ROWS + 1, dtype=np.uint8)
    with pytest.raises(ValueError, match="mixed up"):
        sorted_packed(batch_of(most, data))
    with pytest.raises(ValueError, match="mixed up"):
        packed_sort(np.zeros(MOST_ROWS + 1, dtype=np.uint64))
    words = np.zeros(MOST_ROWS + 1, dtype=np.uint64)
    with pytest.raises(ValueError, match="mixed up"):
        merged_order(batch_of(most, data), [(words, 0)], words)
    data[0] = 1
    assert sort_order(batch_of(most, data[:-1]))[-2:].tolist() == [MOST_ROWS - 1, 0]


def test_the_oracle_extracts_keys() -> None:
    assert key_of(Lines(2, b","))(b"a,b,c\n") == b"b"
    assert key_of(Fixed(4, 1, 2))(b"abcd") == b"bc"
