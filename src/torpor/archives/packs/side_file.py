"""Keep large tables of an archive job in a file without a name, so that the memory of a job does not grow with the home.

The file is beside the home or in the folder for temporary files. If neither has space, the table is kept in memory.
"""

import mmap
import os
import tempfile
from array import array
from pathlib import Path

MOST_BYTES_IN_MEMORY = 16 << 20
"""Of one table."""
BUFFER_BYTES = 1 << 20


def side_folders(home: Path) -> tuple[Path, ...]:
    try:
        return home.parent, Path(tempfile.gettempdir())
    except OSError:
        return (home.parent,)


def zeros(code: str, count: int, folders: tuple[Path, ...]) -> "array[int] | memoryview[int]":
    """So many numbers of 8 bytes: signed with code `q`, unsigned with `Q`."""
    size = 8 * count
    if size > MOST_BYTES_IN_MEMORY:
        for folder in folders:
            try:
                with tempfile.TemporaryFile(dir=folder) as file:
                    # Reserved now: a full disk would kill the process when it writes to the mapping.
                    os.posix_fallocate(file.fileno(), 0, size)
                    return memoryview(mmap.mmap(file.fileno(), size)).cast("B").cast(code)  # type: ignore[call-overload, no-any-return]
            except OSError:
                continue
    return array(code, bytes(size))


class SideFile:
    """Pieces of bytes that can be read again. A piece is named by the number that `add` returns, and by its length."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._fd: int | None = None
        self._written = 0
        """Bytes in the file; later ones are in the buffer."""
        self._buffer = bytearray()

    def add(self, data: bytes) -> int:
        start = self._written + len(self._buffer)
        self._buffer += data
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()
        return start

    def read(self, start: int, length: int) -> bytes:
        if start >= self._written:
            begin = start - self._written
            return bytes(self._buffer[begin : begin + length])
        assert self._fd is not None
        in_file = min(length, self._written - start)
        return os.pread(self._fd, in_file, start) + self._buffer[: length - in_file]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _flush(self) -> None:
        if self._fd is None:
            self._fd = _open(self._folders)
            if self._fd is None:
                self._folders = ()  # everything stays in the buffer
                return
        try:
            view = memoryview(self._buffer)
            while view:
                done = os.pwrite(self._fd, view, self._written + len(self._buffer) - len(view))
                view = view[done:]
        except OSError:
            return  # the disk is full; the buffer has it, and it is tried again later
        finally:
            view.release()
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def __del__(self) -> None:
        self.close()


def _open(folders: tuple[Path, ...]) -> int | None:
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                return os.dup(file.fileno())
        except OSError:
            continue
    return None
