"""Choose the boundaries that divide all records into partitions of similar size."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple


class Boundary(NamedTuple):
    """The first place, in the order of all records, that belongs to the next partition."""

    key: bytes
    worker: int
    position: int


Drawn = Sequence[tuple[bytes, int]]
"""The keys and positions of the records that one worker sampled."""


def choose(samples: Mapping[int, Drawn], sizes: Mapping[int, int], partitions: int) -> tuple[Boundary, ...]:
    """The boundaries between `partitions` partitions, ascending.

    Each sample represents its share of its worker's input. Worker and position are part of a boundary, so records with equal
    keys can be divided. Without any sample all boundaries are the lowest place, and all records go to the last partition.
    """
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    weighed = sorted(
        (Boundary(key, worker, position), sizes.get(worker, 0) / len(drawn))
        for worker, drawn in samples.items()
        for key, position in drawn
    )
    if not weighed:
        return (Boundary(b"", 0, 0),) * (partitions - 1)
    # A sample counts as the middle of the records that it represents.
    weights = [weight for _, weight in weighed]
    below = [until - weight / 2 for until, weight in zip(accumulate(weights), weights, strict=True)]
    whole = sum(weights)
    chosen = []
    place = 0
    for partition in range(1, partitions):
        target = whole * partition / partitions
        while place + 1 < len(weighed) and below[place] < target:
            place += 1
        chosen.append(weighed[place][0])
    return tuple(chosen)
