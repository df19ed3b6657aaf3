"""Hold a lock on a file or a directory, for one process at a time.

These are flock(2) locks: the kernel releases them when the process ends, also after a kill -9.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO


def try_lock(descriptor: int | IO[str]) -> bool:
    """Take the exclusive lock without waiting; False when another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_current(descriptor: int, path: str | Path, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> bool:
    """Whether `path` still names what `descriptor` has open.

    Between opening and locking, another process may have removed it and made a new one. A lock on a removed file excludes
    no process.
    """
    try:
        named = os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(descriptor), named)


class PidLock:
    """A locked file with the process id of its holder."""

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        """Open the file, and make it if it is missing; OSError when that fails."""
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self._is_held = False

    def take(self) -> bool:
        """Take the lock without waiting, and write down our process id; False when another process holds it."""
        assert self._descriptor is not None, "closed"
        if not try_lock(self._descriptor):
            return False
        self._is_held = True
        # The id is only for messages: the lock holds on a full disk too.
        with contextlib.suppress(OSError):
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return True

    @property
    def holder(self) -> str:
        """The process id in the file; empty when there is none."""
        assert self._descriptor is not None, "closed"
        return os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()

    def close(self) -> None:
        """Release the lock. May be called again."""
        if self._descriptor is not None:
            if self._is_held:
                with contextlib.suppress(OSError):
                    os.truncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
