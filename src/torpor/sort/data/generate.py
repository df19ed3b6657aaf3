"""Generate files with the records of the public benchmark."""

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torpor.atomic_file import replacing
from torpor.sort.data.files import PARTIAL, AtomicWriter, to_sort_failed
from torpor.sort.data.thread_pool import default_threads, parallel_map
from torpor.sort.errors import SortRefused
from torpor.sort.kernels.lcg import LENGTH, MODULUS, SPAN, ascii_records, binary_records

RECORDS_AT_ONCE = 2 * SPAN


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """The size of a generated file."""

    records: int
    size: int
    """In bytes."""


class _GenerateBuffers(threading.local):
    """The buffers of one thread, used for one block after the other."""

    def __init__(self) -> None:
        self.records = np.empty(RECORDS_AT_ONCE * LENGTH, np.uint8)


def generate(
    records: int,
    path: Path,
    *,
    ascii: bool = False,  # noqa: A002 - the option's name
    first: int = 0,
    skew: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> GeneratedFile:
    """Write the records first, first + 1, ... `progress` gets how many more bytes were written; calls do not overlap."""
    _check(records, path, first)
    fill = ascii_records if ascii else binary_records
    workspace = _GenerateBuffers()
    turn, told = threading.Lock(), threading.Lock()
    with _whole_or_nothing(path) as writer:

        def make(begin: int) -> None:
            block = workspace.records[: min(RECORDS_AT_ONCE, records - begin) * LENGTH]
            fill(first + begin, block, skew=skew)
            # The kernel allows one write to a file at a time, and threads that wait for it in the kernel spin.
            with turn:
                writer.write_at(block, begin * LENGTH)
            if progress is not None:
                with told:
                    progress(len(block))

        parallel_map(make, range(0, records, RECORDS_AT_ONCE), default_threads() if threads is None else threads)
    return GeneratedFile(records, records * LENGTH)


def _check(records: int, path: Path, first: int) -> None:
    if records < 0 or first < 0 or first + records > MODULUS:
        raise SortRefused(
            "bad_number", f"{records} records from number {first} on do not exist; numbers go from 0 to 2^128 - 1"
        )
    if os.path.lexists(path):
        raise SortRefused("exists", f"{path} exists and is not overwritten; remove it or choose another name")


@contextmanager
def _whole_or_nothing(path: Path) -> Iterator[AtomicWriter]:
    """A file under a unique temporary name, renamed at the end. Not synced: it can be generated again."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with replacing(path, aside, mode=0o666, sync=False) as descriptor:
            yield AtomicWriter(descriptor, path, "generating")
            _check(0, path, 0)  # Generating took a while.
    except OSError as error:
        raise to_sort_failed(error, path, "generating") from error
