"""Every record has the bytes for its number, for any begin of a range."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.sort.kernels import slow_generator
from torpor.sort.kernels import lcg
from torpor.sort.kernels.lcg import LENGTH, SPAN, ascii_records, binary_records

SEVERAL_SPANS = 2 * SPAN + 3
SLOW_STATES = slow_generator.states(SEVERAL_SPANS)

Fill = Callable[..., None]
BOTH = pytest.mark.parametrize(
    ("fill", "slow"), [(binary_records, slow_generator.binary), (ascii_records, slow_generator.ascii_)], ids=["binary", "ascii"]
)


def made(fill: Fill, first: int, count: int, *, skew: bool = False) -> list[bytes]:
    # Not zeros: unwritten bytes must not be taken for right ones.
    out = np.full(count * LENGTH, 0xA5, np.uint8)
    fill(first, out, skew=skew)
    return [out[row * LENGTH : (row + 1) * LENGTH].tobytes() for row in range(count)]


def test_the_first_keys() -> None:
    assert made(binary_records, 0, 1)[0][:10] == b"JimGrayRIP"
    assert made(ascii_records, 0, 1)[0][:10] == b"AsfAGHM5om"


@BOTH
def test_vectorized_generation_equals_single_steps(fill: Fill, slow: Callable[[int, int], bytes]) -> None:
    expected = [slow(number, state) for number, state in enumerate(SLOW_STATES)]
    assert made(fill, 0, SEVERAL_SPANS) == expected
    for first, count in [(1, 1), (SPAN - 1, 2), (SPAN, SPAN), (17, SEVERAL_SPANS - 17), (5, 0)]:
        assert made(fill, first, count) == expected[first : first + count]


@BOTH
@pytest.mark.parametrize("first", [0xFFFF - 3, 2**32 - 4, 2**64 - 2 - 4, 2**80 + 0xFFFE])
def test_record_numbers_with_carry_and_above_64_bits_are_correct(
    fill: Fill, slow: Callable[[int, int], bytes], first: int
) -> None:
    state = lcg.state(first)
    expected = []
    for number in range(first, first + 8):
        expected.append(slow(number, state))
        state = (slow_generator.MULTIPLIER * state + slow_generator.INCREMENT) % 2**128
    assert made(fill, first, 8) == expected


def test_a_leap_equals_as_many_single_steps() -> None:
    assert [lcg.state(number) for number in range(SEVERAL_SPANS)] == SLOW_STATES
    # Two leaps of different length reach the same state: X(i + j) directly, and from X(i) by j single steps.
    far = 10**30
    state = lcg.state(far)
    for _ in range(1000):
        state = (slow_generator.MULTIPLIER * state + slow_generator.INCREMENT) % 2**128
    assert lcg.state(far + 1000) == state


def test_states_are_split_in_64_bit_words() -> None:
    found = lcg.states(3, SEVERAL_SPANS - 3)
    assert [(high << 64) | low for high, low in zip(found.high.tolist(), found.low.tolist(), strict=True)] == SLOW_STATES[3:]
    assert len(lcg.states(3, 0).high) == 0


@BOTH
def test_a_skewed_record_borrows_a_key_and_keeps_the_rest(fill: Fill, slow: Callable[[int, int, int], bytes]) -> None:
    lent = slow_generator.states(lcg.SKEWED_KEYS + 1)
    chosen = lcg.ranks(lcg.states(0, SEVERAL_SPANS)).tolist()
    expected = [slow(number, SLOW_STATES[number], lent[rank]) for number, rank in enumerate(chosen)]
    assert made(fill, 0, SEVERAL_SPANS, skew=True) == expected
    assert made(fill, 100, 50, skew=True) == expected[100:150]


def test_half_of_the_skewed_keys_are_equal_and_the_rest_are_zipf() -> None:
    count = 1 << 20
    times = Counter(lcg.ranks(lcg.states(0, count)).tolist())
    assert times[0] == pytest.approx(count / 2, rel=0.01)
    assert max(times) <= lcg.SKEWED_KEYS
    assert min(times) == 0
    harmonic = sum(1 / rank for rank in range(1, lcg.SKEWED_KEYS + 1))
    for rank in (1, 2, 3, 10, 30):
        assert times[rank] == pytest.approx(count / 2 / harmonic / rank, rel=0.1)
    # Rare keys occur, too.
    assert sum(rank > lcg.SKEWED_KEYS // 2 for rank in times) > 10_000


def test_draws_at_the_limits_give_the_first_and_the_last_rank() -> None:
    draws = np.array([0, 2**31 - 1, 2**31, 2**32 - 1], np.uint64)
    none = np.zeros(4, np.uint64)
    assert lcg.ranks(lcg.LcgStates(none, draws << np.uint64(16))).tolist() == [0, 0, 1, lcg.SKEWED_KEYS]


@BOTH
def test_half_a_record_is_refused(fill: Fill, slow: object) -> None:
    with pytest.raises(ValueError, match="150 bytes are not a whole number of records of 100 bytes"):
        fill(0, np.empty(150, np.uint8))
