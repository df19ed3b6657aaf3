"""Divide a worker's memory between its buffers."""

from dataclasses import dataclass

from torpor.sort.data.segments import Inputs
from torpor.sort.record import Fixed, Format
from torpor.sort.sizes import BLOCK, KIB, MIB, chunk_bytes, partition_bytes

STRIPE_CHUNKS = 8
"""The number of chunks in one run file: the most that each thread loses when a worker is killed."""
MAPPED_FILES = 64
LARGEST_ARENA = 128 * MIB
SMALLEST_ARENA = 256 * KIB
LARGEST_FLUSH = 8 * MIB


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """All fields but the threads are in bytes."""

    lazily: bool
    """The inputs stay mapped, and a run is only the order of its records. Each record is copied once, when it is needed."""
    chunk: int
    sweep_threads: int
    merge_threads: int
    arena: int
    """What one thread sorts at once when it merges."""
    block: int
    """What is gathered at once; it stays in the cache."""
    flush: int
    """What is written at once with direct I/O. Each thread has two such buffers."""
    received: int
    """For received parts that are kept in memory."""


def memory_budget(memory: int, threads: int, format: Format, inputs: Inputs, workers: int) -> MemoryBudget:  # noqa: A002
    lazily = _fits(memory, format, inputs, workers)
    # The offsets of lines and keys take about as much memory as the lines themselves.
    weight = 1 if isinstance(format, Fixed) else 2
    chunk = chunk_bytes(memory) // weight
    # One third is for keys and orders. A chunk is held twice: raw and gathered.
    sweep_threads = _clamp(memory // (4 * weight * chunk), threads)
    received = 0 if workers == 1 else memory // 4
    if lazily:
        received = max(received, min(memory // 2, memory - inputs.size - memory // 8)) if workers > 1 else 0
    spare = memory // 2 if received else memory * 2 // 3
    partition = partition_bytes(memory)
    merge_threads = _clamp(spare // (2 * weight * partition), threads)
    arena = min(LARGEST_ARENA, max(SMALLEST_ARENA, spare * 3 // (5 * weight * merge_threads)))
    block = min(BLOCK, max(64 * KIB, memory // 64 // 4096 * 4096))
    flush = min(LARGEST_FLUSH, max(block, memory // 64))
    return MemoryBudget(lazily, chunk, sweep_threads, merge_threads, arena, block, flush, received)


def _fits(memory: int, format: Format, inputs: Inputs, workers: int) -> bool:  # noqa: A002
    """Whether the inputs fit. Mapped inputs are in the page cache, not in our memory, but if they do not fit, each record is
    read from the disk by itself. Lines are never mapped: their offsets alone take about as much memory."""
    if not isinstance(format, Fixed) or len(inputs.segments) > MAPPED_FILES:
        return False
    keys = inputs.size // format.length * 8
    share = inputs.size // 2 if workers > 1 else 0
    return inputs.size + share <= memory and keys <= memory // 4


def _clamp(count: int, most: int) -> int:
    return max(1, min(count, most))
