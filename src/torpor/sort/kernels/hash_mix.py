"""Mix words, so that each bit of the result depends on each bit of the input."""

import numpy as np

from torpor.sort.kernels.batch import Words

# The increment and the multipliers of the public splitmix64 generator.
GOLDEN = 0x9E3779B97F4A7C15
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


def mix64(words: Words) -> Words:
    """One-to-one, in place: words that differ in one bit differ in about half of the bits afterwards."""
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= FIRST
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= SECOND
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def seeded_hash(numbers: Words, seed: int) -> Words:
    """Pseudorandom numbers that depend only on each number and the seed."""
    return mix64(numbers * np.uint64(GOLDEN) + np.uint64((seed + GOLDEN) % (1 << 64)))
