"""Make private folders with short paths for sockets, and remove those of dead processes.

The kernel allows a socket's path 107 bytes, so these folders lie in the temporary directory. A process holds a lock in each
of its folders while it runs; a folder whose lock is free was left behind by a kill -9.
"""

import asyncio
import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from torpor.domain.errors import Hopeless
from torpor.file_lock import is_current, try_lock

LOCK = "socket-folder.lock"
NAME = re.compile(r"torpor-([a-z0-9_]{8}|(bus-)?[0-9a-f]{20})")
HELD_WITHIN_S = 5.0
LOOK_AGAIN_S = 0.01
UNPRIVILEGED_USER = 65534
LONGEST_ROOT_BYTES = 60
"""A temporary directory whose path is longer leaves too little for the names of folder and socket."""


def root() -> Path:
    chosen = Path(tempfile.gettempdir())
    return chosen if len(os.fsencode(chosen)) <= LONGEST_ROOT_BYTES else Path("/tmp")  # noqa: S108 - every folder is checked


def make_private(folder: Path, owners: frozenset[int] | None = None) -> None:
    """Hopeless when another user made it first, which is possible in a directory that all users share."""
    # Not `exist_ok`: a folder that a sweep removes meanwhile would raise FileExistsError.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = folder.lstat()
    ours = owners or {os.geteuid()}
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in ours or seen.st_mode & 0o077:
        raise Hopeless(f"{folder} must be a folder of this user with mode 0700; find out who created it, and remove it")


class SocketFolder:
    """A folder that no other process removes until it is released."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def release(self) -> None:
        """Remove the folder."""
        with contextlib.suppress(OSError), _opened(self.folder) as inside:
            _remove(self.folder, inside)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


async def hold(folder: Path, owners: frozenset[int] | None = None) -> SocketFolder:
    until = time.monotonic() + HELD_WITHIN_S
    while True:
        # It is missing when a sweep has just removed it.
        with contextlib.suppress(FileNotFoundError):
            make_private(folder, owners)
            with _opened(folder) as inside:
                lock = _locked(inside, os.O_CREAT)
            if lock is not None:
                return SocketFolder(folder, lock)
        if time.monotonic() > until:
            raise Hopeless(f"{folder} is in use by another process; stop that one first")
        await asyncio.sleep(LOOK_AGAIN_S)


async def hold_new() -> SocketFolder:
    return await hold(Path(tempfile.mkdtemp(prefix="torpor-", dir=root())))


def sweep(where: Path | None = None) -> None:
    """Remove the folders of dead processes. A folder without a lock may belong to any program and stays."""
    for folder in _candidates(where or root()):
        with contextlib.suppress(OSError), _opened(folder) as inside:
            lock = _locked(inside) if _is_swept(os.fstat(inside)) else None
            if lock is not None:
                _remove(folder, inside)
                os.close(lock)


def _candidates(where: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if NAME.fullmatch(entry.name) and _is_swept(entry.stat(follow_symlinks=False)):
                    yield Path(entry.path)


def _is_swept(seen: os.stat_result) -> bool:
    """Root also removes the folders of the user that its PostgreSQL runs as."""
    owners = (0, UNPRIVILEGED_USER) if os.geteuid() == 0 else (os.geteuid(),)
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid in owners


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor instead of the path: another user could replace a path in a shared directory meanwhile."""
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield inside
    finally:
        os.close(inside)


def _locked(inside: int, flags: int = 0) -> int | None:
    """The descriptor of the folder's lock; None when another process holds it, or has just removed the folder."""
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600, dir_fd=inside)
    except OSError:
        return None
    try:
        if try_lock(lock) and is_current(lock, LOCK, dir_fd=inside, follow_symlinks=False):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _remove(folder: Path, inside: int) -> None:
    """Remove sockets and locks, and the folder if it is empty then."""
    with contextlib.suppress(OSError):
        with os.scandir(inside) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".lock") or _is_socket(entry)]
        for name in sorted(names, key=lambda name: name == LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=inside)
        folder.rmdir()


def _is_socket(entry: "os.DirEntry[str]") -> bool:
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
