"""The CRC of every record is the one that zlib computes."""

import zlib
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sort.kernels.oracle import array
from torpor.sort.kernels.batch import Bytes
from torpor.sort.kernels.crc32 import BLOCK, FEWEST_EXAMINED, LONGEST_TABLED, SAMPLE, Crc32
from torpor.sort.kernels.lcg import ascii_records, binary_records

MANY = FEWEST_EXAMINED + 5


def check(length: int, data: Bytes) -> None:
    whole = data.tobytes()
    expected = [zlib.crc32(whole[begin : begin + length]) for begin in range(0, len(whole), length)]
    assert Crc32(length).of(data).tolist() == expected


def dice(length: int, count: int = MANY) -> Bytes:
    return np.random.default_rng(length).integers(0, 256, (count, length), dtype=np.uint8)


@given(st.data())
def test_the_crc_of_any_few_records_is_that_of_zlib(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40))
    count = data.draw(st.integers(0, 5))
    check(length, array(data.draw(st.binary(min_size=length * count, max_size=length * count))))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 99, 100, LONGEST_TABLED - 1, LONGEST_TABLED, LONGEST_TABLED + 1, 5000])
def test_the_crc_is_correct_for_every_kind_of_length(length: int) -> None:
    check(length, dice(length, 300 if length > 1000 else MANY).reshape(-1))


@pytest.mark.parametrize("length", [2, 3, 10, 100, 101])
@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_the_crc_is_correct_for_equal_bytes_at_some_positions(length: int, random: Random) -> None:
    records = dice(length)
    for place in range(length):
        kind = random.choice(["own", "constant", "repeated", "repeated"])
        if kind == "constant":
            records[:, place] = random.randrange(256)
        elif kind == "repeated" and place:
            records[:, place] = records[:, place - 1]
    check(length, records.reshape(-1))


@pytest.mark.parametrize("row", [0, 1, SAMPLE - 1, SAMPLE, SAMPLE + 1, 700, MANY - 2, MANY - 1])
@pytest.mark.parametrize("place", [0, 1, 4, 8, 9])
@pytest.mark.parametrize("alike", ["all", "each"])
def test_the_crc_is_correct_if_one_byte_differs(row: int, place: int, alike: str) -> None:
    """If all records are the same, or each consists of one repeated byte, one of them may differ at any place."""
    records = np.full((MANY, 10), 7, np.uint8) if alike == "all" else np.repeat(dice(1), 10, axis=1)
    records[row, place] ^= 0x41
    check(10, records.reshape(-1))


def test_the_crc_is_correct_over_several_blocks() -> None:
    records = dice(10, BLOCK // 10 * 2 + 1)
    records[: BLOCK // 10, 3:7] = records[: BLOCK // 10, 2:3]
    records[BLOCK // 10 :, 8] = 1
    check(10, records.reshape(-1))


def test_the_buffer_is_reused() -> None:
    crc = Crc32(10)
    large, small = dice(10, 2000), dice(10, 3)
    small[:] = 1
    crc.of(large.reshape(-1))
    assert crc.of(small.reshape(-1)).tolist() == [zlib.crc32(bytes([1] * 10))] * 3


def test_generated_records() -> None:
    out = np.empty(20_000 * 100, np.uint8)
    for fill in (binary_records, ascii_records):
        fill(65_536 - 10_000, out)
        check(100, out)


def test_the_public_sum_over_a_million_records() -> None:
    crc, out, found = Crc32(100), np.empty(10_000 * 100, np.uint8), 0
    for first in range(0, 1_000_000, 10_000):
        binary_records(first, out)
        found += int(crc.of(out).sum(dtype=np.uint64))
    assert found == 0x7A27E2D0D55DE


def test_half_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="15 bytes are not a whole number of records of 10 bytes"):
        Crc32(10).of(np.zeros(15, np.uint8))
