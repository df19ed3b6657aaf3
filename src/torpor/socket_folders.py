"""Private folders with short names for sockets, and the removal of those whose process is dead.

The kernel allows a socket's path 107 bytes, so these folders lie in the temporary directory. A process holds a lock in each
folder of its own for as long as it lives; a folder whose lock is free was left behind by a kill -9.
"""

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from torpor.domain.errors import Hopeless

LOCK = "socket-folder.lock"
NAME = re.compile(r"torpor-([a-z0-9_]{8}|(bus-)?[0-9a-f]{20})")
HELD_WITHIN_S = 5.0
LOOK_AGAIN_S = 0.01
LONGEST_ROOT_BYTES = 60
"""A temporary directory whose path is longer leaves too little for the names of folder and socket."""


def root() -> Path:
    chosen = Path(tempfile.gettempdir())
    return chosen if len(os.fsencode(chosen)) <= LONGEST_ROOT_BYTES else Path("/tmp")  # noqa: S108 - every folder is checked


def make_private(folder: Path, owners: frozenset[int] | None = None) -> None:
    """In a directory that all users share, another user may have made it first; then it is refused."""
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    ours = owners or {os.geteuid()}
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in ours or seen.st_mode & 0o077:
        raise Hopeless(f"{folder} must be a folder of ours with mode 0700; remove it or find out who made it")


class Held:
    """A folder that no other process removes until it is released."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def release(self) -> None:
        """Remove the folder."""
        _remove(self.folder)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def hold(folder: Path, owners: frozenset[int] | None = None) -> Held:
    until = time.monotonic() + HELD_WITHIN_S
    while True:
        with contextlib.suppress(FileNotFoundError):  # a sweep has just removed it
            make_private(folder, owners)
            lock = _locked(folder, os.O_CREAT)
            if lock is not None:
                return Held(folder, lock)
        if time.monotonic() > until:
            raise Hopeless(f"{folder} is in use by another process; stop that one first")
        time.sleep(LOOK_AGAIN_S)


def hold_new() -> Held:
    return hold(Path(tempfile.mkdtemp(prefix="torpor-", dir=root())))


def sweep(where: Path | None = None) -> None:
    """Remove the folders of dead processes. A folder without a lock may belong to any program and stays."""
    for folder in _candidates(where or root()):
        lock = _locked(folder)
        if lock is not None:
            _remove(folder)
            os.close(lock)


def _candidates(where: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                # In a folder of another user, names may change their meaning while they are removed.
                if NAME.fullmatch(entry.name) and stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
                    yield Path(entry.path)


def _locked(folder: Path, flags: int = 0) -> int | None:
    """The descriptor of the folder's lock; None when another process holds it, or has just removed the folder."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, another process may have removed this file and made a new one.
        if os.path.samestat(os.fstat(lock), os.lstat(folder / LOCK)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _remove(folder: Path) -> None:
    """Sockets and locks only: whatever else lies in it keeps it."""
    with contextlib.suppress(OSError):
        names = [entry.name for entry in folder.iterdir() if entry.is_socket() or entry.name.endswith(".lock")]
        for name in sorted(names, key=lambda name: name == LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
