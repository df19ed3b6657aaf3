"""Compute a sum that shows a lost, doubled or changed record, for any order of the records."""

import numpy as np

from torpor.sort.kernels.batch import Batch, Bytes, FixedBatch, LineBatch, Offsets, Words, batch_of
from torpor.sort.kernels.hash_mix import mix64, seeded_hash
from torpor.sort.kernels.spans import WIDEST, copy_spans, sliding_units
from torpor.sort.proof import MODULUS, Proof
from torpor.sort.record import Fixed, Format, Lines

# A record is a row of 32-bit words. Its hash is the sum of each word times an odd 64-bit number for the word's place, mixed so
# that words of two records cannot be exchanged without a change of the sum. 64-bit words would be fewer, but a change of the
# highest bits of two words would cancel out.
PLACE_SEED = 0x746F72706F72
UNIT_SEED = 0x736F7274
LENGTH_FACTOR = 0xD6E8FEB86659FD93
HALF = 4

# Words that are widened and multiplied at once: they stay in the cache, eight bytes each.
WORDS_AT_ONCE = 1 << 16
# Bytes of lines whose hashes are mixed and added at once.
BYTES_AT_ONCE = 1 << 21


def prove(records: Batch | Bytes, format: Format) -> Proof:  # noqa: A002 - the product's word for it
    """Number, bytes and checksum of these records. The proofs of any grouping of them add up to the same."""
    if isinstance(format, Fixed):
        data = records.data if isinstance(records, FixedBatch) else _array(records)
        return _prove_fixed(FixedBatch(data, format))
    # The places of the keys do not matter here.
    return _prove_lines(records if isinstance(records, LineBatch) else _lines(_array(records)))


def _array(records: Batch | Bytes) -> Bytes:
    if not isinstance(records, np.ndarray):
        raise TypeError(f"{type(records).__name__} does not hold records of this format")
    return records


def _lines(data: Bytes) -> LineBatch:
    batch = batch_of(Lines(), data)
    assert isinstance(batch, LineBatch)
    return batch


def _prove_fixed(batch: FixedBatch) -> Proof:
    return Proof(len(batch), len(batch.data), int(hashes(batch).sum(dtype=np.uint64)))


def hashes(batch: FixedBatch) -> Words:
    """The hash of each record. Their sum is the checksum of all."""
    length, count = batch.format.length, len(batch)
    width = -(-length // HALF)
    factors = _factors(width)
    at_once = min(max(WORDS_AT_ONCE // width, 1), count)
    wide = np.empty((at_once, width), dtype=np.uint64)
    table = batch.data.reshape(count, length)
    in_place = length % HALF == 0 and batch.data.ctypes.data % HALF == 0
    padded = np.zeros((0 if in_place else at_once, width * HALF), dtype=np.uint8)
    found = np.empty(count, dtype=np.uint64)
    for begin in range(0, count, at_once or 1):
        rows = table[begin : begin + at_once]
        if not in_place:
            padded[: len(rows), :length] = rows
            rows = padded[: len(rows)]
        np.copyto(wide[: len(rows)], rows.view("<u4"))
        np.vecdot(wide[: len(rows)], factors, out=found[begin : begin + len(rows)])
    # Without it a record of zeros would add nothing.
    found += np.uint64(length * LENGTH_FACTOR % MODULUS)
    return mix64(found)


def _prove_lines(batch: LineBatch) -> Proof:
    lengths = batch.sizes()
    reached = np.cumsum(lengths)
    size = int(reached[-1]) if len(batch) else 0
    room = _room(size)
    checksum, begin, done = 0, 0, 0
    while begin < len(batch):
        until = max(int(np.searchsorted(reached, done + BYTES_AT_ONCE, side="right")), begin + 1)
        checksum += _sum_of_lines(batch.data, batch.starts[begin:until], lengths[begin:until], room)
        begin, done = until, int(reached[until - 1])
    return Proof(len(batch), size, checksum % MODULUS)


def _sum_of_lines(data: Bytes, starts: Offsets, lengths: Offsets, room: Words) -> int:
    """Each line is cut into units, the last of them shorter. Each unit is hashed as a record, and they are added by their
    places."""
    units = (lengths - 1) // WIDEST
    rest = units * WIDEST
    hashes = _hash_short(data, starts + rest, lengths - rest, room)
    if rest.any():
        long = np.flatnonzero(units)
        counts = units[long]
        firsts = np.cumsum(counts) - counts
        within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(firsts, counts)
        whole = (
            sliding_units(data, WIDEST)[np.repeat(starts[long], counts) + within * WIDEST].view(np.uint8).reshape(-1, WIDEST)
        )
        mixed = mix64(_linear(whole, _factors(WIDEST // HALF), room))
        mixed *= _unit_factors(within)
        hashes[long] += np.add.reduceat(mixed, firsts)
    # Units of zeros add nothing; the length shows that they are there.
    hashes += lengths.astype(np.uint64) * np.uint64(LENGTH_FACTOR)
    return int(mix64(hashes).sum(dtype=np.uint64))


def _hash_short(data: Bytes, starts: Offsets, lengths: Offsets, room: Words) -> Words:
    """The hash of each stretch of at most a unit. Zeros that fill up a row add nothing to it, so rows may have any width."""
    hashes = np.empty(len(starts), dtype=np.uint64)
    width, above = HALF, 0
    while above < WIDEST:
        chosen = np.flatnonzero((lengths > above) & (lengths <= width))
        if len(chosen):
            rows = np.zeros(len(chosen) * width, dtype=np.uint8)
            copy_spans(data, starts[chosen], lengths[chosen], rows, np.arange(len(chosen), dtype=np.int64) * width)
            hashes[chosen] = _linear(rows.reshape(-1, width), _factors(width // HALF), room)
        width, above = width * 2, width
    return mix64(hashes)


def _factors(width: int) -> Words:
    return seeded_hash(np.arange(width, dtype=np.uint64), PLACE_SEED) | np.uint64(1)


def _unit_factors(places: Offsets) -> Words:
    # Most lines have few units, so the numbers are looked up and not computed for each.
    return (seeded_hash(np.arange(int(places.max()) + 1, dtype=np.uint64), UNIT_SEED) | np.uint64(1))[places]


def _room(words: int) -> Words:
    return np.empty(min(words, WORDS_AT_ONCE), dtype=np.uint64)


def _linear(rows: Bytes, factors: Words, room: Words) -> Words:
    """The sum of each row's words times their factors, modulo 2^64."""
    words = rows.view("<u4")
    count, width = words.shape
    sums = np.empty(count, dtype=np.uint64)
    at_once = max(len(room) // width, 1)
    wide = room if len(room) >= width else np.empty(width, dtype=np.uint64)
    for begin in range(0, count, at_once):
        block = words[begin : begin + at_once]
        widened = wide[: block.size].reshape(block.shape)
        np.copyto(widened, block)
        np.vecdot(widened, factors, out=sums[begin : begin + at_once])
    return sums
