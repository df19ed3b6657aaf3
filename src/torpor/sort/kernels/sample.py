"""Choose the records that are sampled to estimate the distribution of keys."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from torpor.sort.kernels.batch import Offsets
from torpor.sort.kernels.hash_mix import seeded_hash


def positions(records: int, count: int, seed: int) -> Offsets:
    """`count` distinct record numbers, ascending: a random one from each of as many stretches of similar length.

    Only the arguments decide, not the release of a library: a job that is run again is cut at the same places.
    """
    count = min(records, count)
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    numbers = np.arange(count + 1, dtype=np.int64)
    each, left = divmod(records, count)
    edges = numbers * each + numbers * left // count
    draws = seeded_hash(numbers[:-1].astype(np.uint64), seed)
    return edges[:-1] + (draws % np.diff(edges).astype(np.uint64)).astype(np.int64)


def seed_of(index: int, sizes: Sequence[int]) -> int:
    """A worker's seed, from its index and the sizes of its inputs; never from the time."""
    text = ",".join(map(str, (index, *sizes)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
