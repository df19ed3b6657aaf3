"""Choose the sizes of chunks, blocks, messages and partitions, and the number of workers and partitions."""

from torpor.sort.errors import SortRefused

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

BLOCK = 2 * MIB
"""The bytes that are read, gathered or written at once: large enough for the disk, small enough for the cache."""
MESSAGE = 1 * MIB
"""The most bytes in one message of a data stream."""
SMALLEST_MEMORY = 4 * MIB
MIN_SHARE = 16 * MIB
"""The least input of one worker of `run`. Starting a worker takes 0.3 s of CPU time, in which a running worker sorts 100 MB.
Where there are cores for all, workers start in parallel, so a part of that is enough."""
SAMPLES = 4_000
"""The number of positions that each worker samples."""

UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}


def parse_size(text: str, what: str = "--memory") -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].upper() in "KMGT" and text else (text, "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18):
        raise SortRefused("bad_size", f"{what} {text!r} is not a size; allowed are whole bytes or a number with K, M, G or T")
    return int(number) * UNITS[unit]


def chunk_bytes(memory: int) -> int:
    """The bytes that the sweep sorts at once. Two threads hold them raw, sorted and as keys."""
    return min(8 * MIB, max(memory // 16, 256 * KIB))


def partition_bytes(memory: int) -> int:
    """The intended size of a partition. Two threads hold one each, with its keys, and samples are wrong by up to a third."""
    return min(64 * MIB, max(memory // 8, 256 * KIB))


def worker_count(total_bytes: int, most: int, min_share: int) -> int:
    """The number of workers so that each gets its least share; at least one. It depends only on data and settings."""
    return max(1, min(most, total_bytes // min_share)) if min_share else most


def partitions(total_bytes: int, workers: int, memory: int) -> int:
    """The number of partitions, the same for each worker. It depends only on data and settings."""
    each = -(-total_bytes // (workers * partition_bytes(memory)))
    return workers * max(1, each)
