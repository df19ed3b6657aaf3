"""How does a sorted partition reach the disk?"""

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from torpor.sort.buffers import aligned
from torpor.sort.files import Writer, writing
from torpor.sort.kernels.batch import Bytes

PAGE = 4096


class Sink:
    """Takes a file's bytes in blocks that the caller lays into `room`. What was taken is written behind the caller's back while
    he fills the next block. Past the page cache, where the file must be on the disk before it counts anyway."""

    def __init__(self, block: int) -> None:
        self._block = max(block, PAGE)
        self._buffers = [aligned(0), aligned(0)]
        self._behind: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._writer: Writer | None = None
        self._left = 0
        """Bytes at the front of the buffer that did not fill a page."""
        self._offset = 0

    @contextmanager
    def to(self, final: Path, attempt: int, *, sync: bool) -> Iterator[None]:
        with writing(final, attempt, sync=sync, doing="writing the output") as writer:
            self._writer, self._left, self._offset, self._pending = writer, 0, 0, None
            direct = sync and _past_the_page_cache(writer.descriptor, on=True)
            if direct and self._behind is None:
                self._behind = ThreadPoolExecutor(1, thread_name_prefix="output")
            try:
                self._direct = direct
                yield
                self._finish()
            finally:
                # A block that is still being written must not be laid over, whatever went wrong.
                self._wait(quietly=True)
                self._writer = None

    @property
    def block(self) -> int:
        return self._block

    def room(self, size: int) -> Bytes:
        """Where the next so many bytes are to be laid."""
        buffer = self._buffers[0]
        if len(buffer) < self._left + size:
            larger = aligned(max(self._block + PAGE, self._left + size))
            larger[: self._left] = buffer[: self._left]
            self._buffers[0] = buffer = larger
        return buffer[self._left : self._left + size]

    def take(self, size: int) -> None:
        """So many bytes lie in the room."""
        assert self._writer is not None
        filled = self._left + size
        if not self._direct:
            self._writer.write_at(self._buffers[0][:filled].data, self._offset)
            self._offset += filled
            return
        whole = filled // PAGE * PAGE
        self._left = filled - whole
        if not whole:
            return
        self._wait()
        full, other = self._buffers
        if len(other) < self._left:
            other = aligned(self._block + PAGE)
        other[: self._left] = full[whole:filled]
        assert self._behind is not None
        self._pending = self._behind.submit(self._writer.write_at, full[:whole].data, self._offset)
        self._offset += whole
        self._buffers = [other, full]

    def _finish(self) -> None:
        self._wait()
        if self._left:
            assert self._writer is not None
            # The tail is not a whole page.
            _past_the_page_cache(self._writer.descriptor, on=False)
            self._writer.write_at(self._buffers[0][: self._left].data, self._offset)
            self._offset += self._left

    def _wait(self, *, quietly: bool = False) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            trouble = pending.exception()
            if trouble is not None and not quietly:
                raise trouble

    def close(self) -> None:
        if self._behind is not None:
            self._behind.shutdown()


def _past_the_page_cache(descriptor: int, *, on: bool) -> bool:
    """False where the file system does not know how."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True
