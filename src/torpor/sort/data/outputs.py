"""Write a sorted partition to the disk."""

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from torpor.sort.data.buffers import aligned
from torpor.sort.data.files import AtomicWriter, atomic_file
from torpor.sort.kernels.batch import Bytes

PAGE = 4096


class OutputWriter:
    """Write one file after the other, each in blocks that the caller puts into `room`.

    A file that must be on the disk before it counts is written with direct I/O: copying it to the page cache and waiting until
    the kernel has written it takes several times as long. While one buffer is written, the caller fills the other.
    """

    def __init__(self, block: int, flush: int) -> None:
        self.block = block
        """The best size of a block: it stays in the cache."""
        self._flush = max(flush, PAGE)
        """What is written at once with direct I/O. For a disk, more at once is better."""
        self._buffers = [aligned(0), aligned(0)]
        self._behind: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._writer: AtomicWriter | None = None
        self._direct = False
        self._filled = 0
        """Bytes in the first buffer that are not written yet."""
        self._offset = 0
        """Their offset in the file."""

    @contextmanager
    def to(self, final: Path, attempt: int, *, sync: bool) -> Iterator[None]:
        """Write the blocks that are taken within the `with` block to this file, which gets its name at the end."""
        with atomic_file(final, attempt, sync=sync, doing="writing the output") as writer:
            self._writer, self._filled, self._offset = writer, 0, 0
            self._direct = sync and _past_the_page_cache(writer.descriptor, on=True)
            try:
                yield
                self._finish(writer)
            finally:
                # After an error, too, a buffer that is still being written must not be filled again.
                if self._pending is not None:
                    self._pending.exception()
                self._pending = self._writer = None

    def room(self, size: int) -> Bytes:
        """The place for the next `size` bytes."""
        buffer = self._buffers[0]
        if len(buffer) < self._filled + size:
            larger = aligned(max(self._flush + self.block if self._direct else self.block, self._filled + size))
            larger[: self._filled] = buffer[: self._filled]
            self._buffers[0] = buffer = larger
        return buffer[self._filled : self._filled + size]

    def take(self, size: int) -> None:
        """Take `size` bytes that are in the room."""
        assert self._writer is not None
        self._filled += size
        if not self._direct:
            self._writer.write_at(self._buffers[0][: self._filled].data, self._offset)
            self._offset, self._filled = self._offset + self._filled, 0
        elif self._filled >= self._flush:
            self._write_behind(self._writer)

    def close(self) -> None:
        if self._behind is not None:
            self._behind.shutdown()

    def _write_behind(self, writer: AtomicWriter) -> None:
        """Write whole pages. The rest goes to the beginning of the other buffer."""
        self._wait()
        whole = self._filled // PAGE * PAGE
        full, other = self._buffers
        rest = self._filled - whole
        if len(other) < len(full):
            other = aligned(len(full))
        other[:rest] = full[whole : self._filled]
        if self._behind is None:
            self._behind = ThreadPoolExecutor(1, thread_name_prefix="output")
        self._pending = self._behind.submit(writer.write_at, full[:whole].data, self._offset)
        self._buffers, self._offset, self._filled = [other, full], self._offset + whole, rest

    def _finish(self, writer: AtomicWriter) -> None:
        if self._direct and self._filled >= PAGE:
            self._write_behind(writer)
        self._wait()
        if self._filled:
            # The tail does not fill a page.
            _past_the_page_cache(writer.descriptor, on=False)
            writer.write_at(self._buffers[0][: self._filled].data, self._offset)

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _past_the_page_cache(descriptor: int, *, on: bool) -> bool:
    """Switch direct I/O. False if the file system does not support it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True
