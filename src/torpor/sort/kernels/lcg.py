"""Compute the bytes of record number i of the public benchmark's generator.

The state of record i is X(i + 1) of X' = aX + c modulo 2^128 with X(0) = 0. Any number of steps is again one multiplication and
one addition, so any state is computed directly, and all states of a span are one array of factors times the span's first state.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torpor.sort.kernels.batch import Bytes, Words

LENGTH = 100
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
INCREMENT = 0x4A696D47726179524950202020202001
MODULUS = 1 << 128

SPAN = 16384
"""Records made at once. With fewer, threads wait for each other between two calls longer than the calls take."""
SKEWED_KEYS = 1 << 16
"""The number of keys from which the Zipf half of skewed records is drawn."""

_WORD = (1 << 64) - 1
_HALF = np.uint64((1 << 32) - 1)
_BITS = {bits: np.uint64(bits) for bits in (16, 32, 48)}
_DIGITS = b"0123456789ABCDEF"
_BASE = 95
"""The number of printable characters, including the space."""
# NumPy copies sixteen bytes at once only as a complex number. It is not used for calculation.
_SIXTEEN = np.dtype(np.complex128)


class LcgStates(NamedTuple):
    high: Words
    low: Words


class _Jumps(NamedTuple):
    """X(i + k) = factor[k] * X(i) + addend[k]. The low words of the factors are also there in halves."""

    factor: LcgStates
    factor_top: Words
    factor_bottom: Words
    addend: LcgStates


def state(number: int) -> int:
    """The 128 bits of one record."""
    return _steps(number + 1)[1]


def states(first: int, count: int) -> LcgStates:
    """The states of the records first, first + 1, ..."""
    parts = [_states(start, present) for _, present, start in _spans(first, count)]
    if not parts:
        return LcgStates(np.empty(0, np.uint64), np.empty(0, np.uint64))
    return LcgStates(np.concatenate([part.high for part in parts]), np.concatenate([part.low for part in parts]))


def binary_records(first: int, out: Bytes, *, skew: bool = False) -> None:
    """Ten bytes of key, 00 11, the number in 32 hexadecimal digits, 88 99 AA BB, 48 bytes of filler, CC DD EE FF."""
    _fill(first, out, b"\x00\x11", b"\x88\x99\xaa\xbb", b"\xcc\xdd\xee\xff", _put_binary_key, skew)


def ascii_records(first: int, out: Bytes, *, skew: bool = False) -> None:
    """Ten printable characters of key, two spaces, the number in 32 digits, two spaces, 52 characters of filler, CR LF."""
    _fill(first, out, b"  ", b"  ", b"\r\n", _put_ascii_key, skew)


def ranks(own: LcgStates) -> NDArray[np.intp]:
    """The record whose key a skewed record borrows: record 0 for half of them, else record r with a weight of 1 / r."""
    # No key contains these bits, so the borrowed key does not depend on the record's own key.
    draws = (own.low >> _BITS[16]).astype(np.uint32)
    return np.searchsorted(_shares(), draws, side="right")


# ---- states


def _steps(count: int) -> tuple[int, int]:
    """This many steps as one: X(i + count) = factor * X(i) + addend."""
    factor, addend = 1, 0
    twice_factor, twice_addend = MULTIPLIER, INCREMENT
    while count:
        if count & 1:
            factor, addend = factor * twice_factor % MODULUS, (addend * twice_factor + twice_addend) % MODULUS
        twice_factor, twice_addend = twice_factor * twice_factor % MODULUS, (twice_factor + 1) * twice_addend % MODULUS
        count >>= 1
    return factor, addend


def _spans(first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """The begin of each span, its number of records, and the state of its first record."""
    factor, addend = _steps(SPAN)
    start = state(first)
    for begin in range(0, count, SPAN):
        yield begin, min(SPAN, count - begin), start
        start = (factor * start + addend) % MODULUS


def _states(start: int, count: int) -> LcgStates:
    """The states from this one on; at most a span of them."""
    jumps = _jumps()
    return _multiplied(_Jumps(*(_first(part, count) for part in jumps)), start)


def _first(part: LcgStates | Words, count: int) -> Any:
    return LcgStates(part.high[:count], part.low[:count]) if isinstance(part, LcgStates) else part[:count]


def _multiplied(jumps: _Jumps, start: int) -> LcgStates:
    """factor * start + addend modulo 2^128, in 64-bit words whose product is computed from halves."""
    start_high, start_low = np.uint64(start >> 64), np.uint64(start & _WORD)
    start_top, start_bottom = np.uint64((start & _WORD) >> 32), start_low & _HALF
    low = jumps.factor.low * start_low
    carried = jumps.factor_bottom * start_bottom
    carried >>= _BITS[32]
    carried += jumps.factor_top * start_bottom
    middle = jumps.factor_bottom * start_top
    middle += carried & _HALF
    middle >>= _BITS[32]
    carried >>= _BITS[32]
    high = jumps.factor_top * start_top
    high += middle
    high += carried
    high += jumps.factor.high * start_low
    high += jumps.factor.low * start_high
    high += jumps.addend.high
    low += jumps.addend.low
    high += low < jumps.addend.low
    return LcgStates(high, low)


@cache
def _jumps() -> _Jumps:
    """For k = 0 .. SPAN - 1."""
    pairs = accumulate(
        range(SPAN - 1),
        lambda pair, _: (pair[0] * MULTIPLIER % MODULUS, (pair[1] * MULTIPLIER + INCREMENT) % MODULUS),
        initial=(1, 0),
    )
    factors, addends = zip(*pairs, strict=True)
    factor, addend = _words(factors), _words(addends)
    return _Jumps(factor, factor.low >> _BITS[32], factor.low & _HALF, addend)


def _words(numbers: tuple[int, ...]) -> LcgStates:
    return LcgStates(
        np.array([number >> 64 for number in numbers], np.uint64), np.array([number & _WORD for number in numbers], np.uint64)
    )


@cache
def _shares() -> NDArray[np.uint32]:
    """Up to which of 2^32 draws each rank but the last is chosen. Only whole numbers, so it is the same on every machine."""
    weights = list(accumulate((1 << 48) // rank for rank in range(1, SKEWED_KEYS + 1)))
    half = 1 << 31
    return np.array([half, *(half + half * weight // weights[-1] for weight in weights[:-1])], np.uint32)


@cache
def _lent() -> LcgStates:
    """The states whose keys skewed records borrow."""
    return states(0, SKEWED_KEYS + 1)


# ---- bytes


def _fill(
    first: int,
    out: Bytes,
    behind_key: bytes,
    behind_number: bytes,
    end: bytes,
    put_key: Callable[[Bytes, LcgStates], None],
    skew: bool,
) -> None:
    if len(out) % LENGTH:
        raise ValueError(f"{len(out)} bytes are not a whole number of records of {LENGTH} bytes")
    filler = LENGTH - 10 - len(behind_key) - 32 - len(behind_number) - len(end)
    filler_at = LENGTH - len(end) - filler
    for begin, count, start in _spans(first, len(out) // LENGTH):
        rows = out[begin * LENGTH : (begin + count) * LENGTH]
        own = _states(start, count)
        _put_constant(rows, first + begin, bytes(10) + behind_key, behind_number + bytes(filler) + end)
        if skew:
            chosen = ranks(own)
            put_key(rows, LcgStates(_lent().high[chosen], _lent().low[chosen]))
        else:
            put_key(rows, own)
        _put_filler(rows, own.low, filler_at, filler)


def _put_constant(rows: Bytes, first: int, before: bytes, behind: bytes) -> None:
    """The bytes that a record shares with its neighbours, and the last four digits of its number."""
    whole = rows.view(f"V{LENGTH}")
    digits = _field(rows, np.dtype(np.uint32), len(before) + 28)
    count = len(whole)
    begin = 0
    while begin < count:
        number = first + begin
        # The other 28 digits stay the same until the last four overflow.
        stop = min(count, begin + 0x10000 - number % 0x10000)
        whole[begin:stop] = np.void(before + b"%032X" % number + behind)
        digits[begin:stop] = _four_digits()[number % 0x10000 :][: stop - begin]
        begin = stop


def _put_binary_key(rows: Bytes, keys: LcgStates) -> None:
    _field(rows, np.dtype(">u8"), 0)[:] = keys.high
    _field(rows, np.dtype(">u2"), 8)[:] = keys.low >> _BITS[48]


def _put_ascii_key(rows: Bytes, keys: LcgStates) -> None:
    """Digits to the base 95, the least significant first: eight of the high word and two of the low, two at a time."""
    pair = np.uint64(_BASE * _BASE)
    rest = keys.high
    for at in (0, 2, 4, 6):
        quotient = rest // pair
        _field(rows, np.dtype(np.uint16), at)[:] = _two_characters()[(rest - quotient * pair).view(np.intp)]
        rest = quotient
    _field(rows, np.dtype(np.uint16), 8)[:] = _two_characters()[(keys.low % pair).view(np.intp)]


def _put_filler(rows: Bytes, low: Words, at: int, size: int) -> None:
    """The low bits in hexadecimal digits, each four times."""
    if size == 52:
        leading = ((low >> _BITS[48]) & np.uint64(15)).view(np.intp)
        _field(rows, np.dtype(np.uint32), at)[:] = _one_digit()[leading]
    halves = low.view("<u2").reshape(-1, 4)
    indices = np.empty(len(low), np.intp)
    found = np.empty(len(low), _SIXTEEN)
    for place in range(3):
        indices[:] = halves[:, 2 - place]
        # No index is out of range, and "wrap" is the fastest mode.
        _sixteen_digits().take(indices, out=found, mode="wrap")
        _field(rows, _SIXTEEN, at + size - 48 + 16 * place)[:] = found


def _field(rows: Bytes, kind: np.dtype[Any], at: int) -> NDArray[Any]:
    """The same bytes of every record, as one array."""
    return np.ndarray((len(rows) // LENGTH,), kind, rows, offset=at, strides=(LENGTH,))


def _digits_of(numbers: NDArray[np.intp], width: int) -> Bytes:
    shifts = np.arange(4 * (width - 1), -4, -4)
    digits = np.frombuffer(_DIGITS, np.uint8)
    return digits.take((numbers[:, None] >> shifts) & 15)


@cache
def _one_digit() -> NDArray[np.uint32]:
    return np.repeat(_digits_of(np.arange(16), 1), 4, axis=1).view(np.uint32)[:, 0]


@cache
def _four_digits() -> NDArray[np.uint32]:
    return _digits_of(np.arange(0x10000), 4).view(np.uint32)[:, 0]


@cache
def _sixteen_digits() -> NDArray[np.complex128]:
    return np.repeat(_digits_of(np.arange(0x10000), 4), 4, axis=1).view(_SIXTEEN)[:, 0]


@cache
def _two_characters() -> NDArray[np.uint16]:
    numbers = np.arange(_BASE * _BASE)
    return np.stack([numbers % _BASE + 32, numbers // _BASE + 32], axis=1).astype(np.uint8).view(np.uint16)[:, 0]
