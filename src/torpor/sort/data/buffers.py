"""Where do bytes lie on their way, so that memory is touched for the first time only once?"""

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
"""Files that are kept open for reading; beyond it, each is opened when it is read."""


LARGE = 4 * MIB


def aligned(size: int) -> Bytes:
    """Bytes that begin with a page, as writing past the page cache wants them."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= LARGE:
        # Large pages are touched, and found again, much faster; a kernel without them does without.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


class ReusableBuffer:
    """Bytes that are used again and again; they grow when more is asked for, and what was in them is then lost."""

    def __init__(self, size: int = 0) -> None:
        self._bytes = aligned(size)

    def of(self, size: int) -> Bytes:
        if len(self._bytes) < size:
            self._bytes = aligned(size)
        return self._bytes[:size]


class OpenFiles:
    """Reads anywhere in many files, from any thread."""

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
                        raise SortFailed(f"reading {path}: it ends at byte {offset}, before it should")
                    view, offset = view[size:], offset + size
            finally:
                if not held:
                    os.close(descriptor)
        except OSError as error:
            raise to_sort_failed(error, path, "reading") from error

    def forget(self, path: Path) -> None:
        """It is about to be removed, and another file may get its name. Nobody may be reading it."""
        with self._lock:
            descriptor = self._held.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Nobody may be reading."""
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
