"""Provide buffers that are reused, so that new memory is touched only once, and files that stay open for reading."""

import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from torpor.sort.data.files import to_sort_failed
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.batch import Bytes
from torpor.sort.sizes import MIB

HELD_OPEN = 128
"""The number of files that are kept open for reading. Beyond it, a file is opened for each read."""


LARGE = 4 * MIB


def aligned(size: int) -> Bytes:
    """Bytes that begin at a page, as direct I/O requires."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= LARGE:
        # Large pages are faster to touch and to look up. A kernel without them refuses, which does no harm.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


class ReusableBuffer:
    """Bytes that are used again and again. They grow when more is asked for, and then lose their content."""

    def __init__(self, size: int = 0) -> None:
        self._bytes = aligned(size)

    def of(self, size: int) -> Bytes:
        if len(self._bytes) < size:
            self._bytes = aligned(size)
        return self._bytes[:size]


class OpenFiles:
    """Read anywhere in many files, from any thread."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}
        self._lock = threading.Lock()

    def read(self, path: Path, offset: int, out: Bytes) -> None:
        view = out.data
        try:
            descriptor, held = self._open(path)
            try:
                while view:
                    size = os.preadv(descriptor, [view], offset)
                    if not size:
                        raise SortFailed(f"reading {path}: it ends too early, at byte {offset}")
                    view, offset = view[size:], offset + size
            finally:
                if not held:
                    os.close(descriptor)
        except OSError as error:
            raise to_sort_failed(error, path, "reading") from error

    def forget(self, path: Path) -> None:
        """Close the file before it is removed, because another file may get its name. No thread may be reading it."""
        with self._lock:
            descriptor = self._held.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """No thread may be reading."""
        with self._lock:
            for descriptor in self._held.values():
                os.close(descriptor)
            self._held.clear()

    def _open(self, path: Path) -> tuple[int, bool]:
        with self._lock:
            held = self._held.get(path)
            if held is not None:
                return held, True
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._held) >= HELD_OPEN:
                return descriptor, False
            self._held[path] = descriptor
            return descriptor, True
