"""Keep the last output of a container, with a limit on disk and in memory. Everything here blocks, except `last_lines`."""

import contextlib
from collections import deque
from pathlib import Path

LAST_LINES = 40
LAST_BYTES = 4096


class ContainerLog:
    """The log of one container: a file, and the previous one after it was full."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._size = 0
        self._recent: deque[bytes] = deque()
        self._recent_bytes = 0

    def begin(self) -> None:
        """A new container's log starts empty."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        older(self._path).unlink(missing_ok=True)
        self._path.write_bytes(b"")

    def remember(self, data: bytes) -> None:
        self._recent.append(data)
        self._recent_bytes += len(data)
        while self._recent_bytes - len(self._recent[0]) >= LAST_BYTES:
            self._recent_bytes -= len(self._recent.popleft())

    def write(self, data: bytes) -> None:
        # On a full disk, lines of the log are lost, but the program continues.
        with contextlib.suppress(OSError):
            if self._size + len(data) > self._limit:
                self._path.replace(older(self._path))
                self._size = 0
            with self._path.open("ab") as file:
                file.write(data)
            self._size += len(data)

    @property
    def last_lines(self) -> str:
        text = b"".join(self._recent)[-LAST_BYTES:].decode(errors="replace")
        return "\n".join(text.rstrip("\n").split("\n")[-LAST_LINES:])


def older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def tail(path: Path, lines: int) -> list[bytes]:
    """The last lines, each with its line end."""
    text = b""
    for part in (older(path), path):
        with contextlib.suppress(FileNotFoundError):
            text += part.read_bytes()
    return text.splitlines(keepends=True)[-lines:] if lines > 0 else []


def remove(path: Path) -> None:
    for part in (older(path), path):
        part.unlink(missing_ok=True)
