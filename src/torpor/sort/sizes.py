"""How large is a chunk, a block, a message, a partition, and how many of them are there?"""

from torpor.sort.errors import SortRefused

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

BLOCK = 2 * MIB
"""What is read, gathered or written at once: large enough for the disk, small enough for the cache."""
MESSAGE = 1 * MIB
"""What one message of a data stream carries at most."""
SMALLEST_MEMORY = 4 * MIB
MIN_SHARE = 16 * MIB
"""The input of one worker of `run`, at least. To start a worker takes 0.3 s of processor time, in which one that runs sorts
100 MB; where there are cores for all, workers start side by side, so a part of that is enough."""
SAMPLES = 4_000
"""Positions that each worker draws."""

UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}


def parse_size(text: str, what: str = "--memory") -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].upper() in "KMGT" and text else (text, "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18):
        raise SortRefused("bad_size", f"{what} {text!r} is not a size; allowed are whole bytes or a number with K, M, G or T")
    return int(number) * UNITS[unit]


def chunk_bytes(memory: int) -> int:
    """What is sorted at once in the sweep; two threads hold it raw, sorted and in keys."""
    return min(8 * MIB, max(memory // 16, 256 * KIB))


def partition_bytes(memory: int) -> int:
    """What a partition should weigh: two threads hold one each, with its keys, and samples miss by a third."""
    return min(64 * MIB, max(memory // 8, 256 * KIB))


def worker_count(total_bytes: int, most: int, min_share: int) -> int:
    """At most so many that each has its least share, but one always; a function of data and settings alone."""
    return max(1, min(most, total_bytes // min_share)) if min_share else most


def partitions(total_bytes: int, workers: int, memory: int) -> int:
    """As many for each worker; a function of data and settings alone."""
    each = -(-total_bytes // (workers * partition_bytes(memory)))
    return workers * max(1, each)
