"""Open the directories of a home by their paths, one name at a time, without following links."""

import os

from torpor.archives.unpack import OPEN_DIRECTORY


class Directories:
    """Keeps the directories down to the last one open, because neighbours share them."""

    def __init__(self, home: int) -> None:
        self._home = home
        self._names: list[bytes] = []
        self._fds: list[int] = []
        self._last = b""

    def open(self, path: bytes) -> int:
        """The directory with this path; empty: the home itself. It stays open until another one is opened."""
        if path == self._last:
            return self._fds[-1] if self._fds else self._home
        names = path.split(b"/") if path else []
        shared = 0
        for ours, wanted in zip(self._names, names, strict=False):
            if ours != wanted:
                break
            shared += 1
        self._close_to(shared)
        self._last = b"\0"  # no path, until all is open
        for name in names[shared:]:
            self._fds.append(os.open(name, OPEN_DIRECTORY, dir_fd=self._fds[-1] if self._fds else self._home))
            self._names.append(name)
        self._last = path
        return self._fds[-1] if self._fds else self._home

    def parent_of(self, path: bytes) -> tuple[int, bytes]:
        """The open directory of this entry, and its name in it."""
        above, _, name = path.rpartition(b"/")
        return self.open(above), name

    def close(self) -> None:
        self._close_to(0)
        self._last = b""

    def _close_to(self, count: int) -> None:
        while len(self._fds) > count:
            os.close(self._fds.pop())
            self._names.pop()
