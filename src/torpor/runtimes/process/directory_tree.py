"""How is a whole tree removed, or given to another user, however deep it is and whatever links are in it?

By one open directory that goes down by name and up by `..`: a path has a greatest length, the stack of Python and the table
of open files have theirs, and a tree that a workspace made has none. Everything here blocks: call it in a thread.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

log = structlog.get_logger()

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Gone, or as much of it as can be; what stays is told to the log and stops nobody's other work."""
    troubles: list[OSError] = []
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        if os.getuid() != 0:
            path.chmod(stat.S_IRWXU)
        for directory, name, is_directory in _bottom_up(path, troubles.append):
            try:
                (os.rmdir if is_directory else os.unlink)(name, dir_fd=directory)
            except OSError as error:
                troubles.append(error)
        path.rmdir()
    except OSError as error:
        troubles.append(error)
    troubles = [error for error in troubles if not isinstance(error, FileNotFoundError)]
    if troubles:
        log.warning("tree_not_removed", path=str(path), why=str(troubles[0]), troubles=len(troubles))


def give_tree(top: Path, user: int, is_given_up: Callable[[], bool] = lambda: False) -> None:
    """Make a whole home its user's: one that was restored from another machine's archive belongs to a stranger.

    The top comes last: its owner tells whether all of this was done. Given up half-way, it raises; the next call does it all.
    """
    for directory, name, _ in _bottom_up(top, _raise):
        if is_given_up():
            raise InterruptedError(errno.EINTR, "given up half-way", str(top))
        # chown drops set-user-id bits, and that is right: the archive's owner was another.
        os.chown(name, user, user, dir_fd=directory, follow_symlinks=False)
    os.chown(top, user, user, follow_symlinks=False)


def _raise(error: OSError) -> None:
    raise error


def _bottom_up(top: Path, trouble: Callable[[OSError], None]) -> Iterator[tuple[int, str, bool]]:
    """Each entry below the top, after all that is in it: the open directory it lies in, its name, whether it is one itself."""
    here = os.open(top, DIRECTORY)
    try:
        levels = [("", _identity(here), iter(os.listdir(here)))]  # noqa: PTH208 - an open directory has no path
        while True:
            own_name, _, names = levels[-1]
            for name in names:
                try:
                    is_directory = stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
                    deeper = _open(name, here) if is_directory else None
                except OSError as error:
                    trouble(error)
                    continue
                if deeper is None:
                    yield here, name, False
                    continue
                os.close(here)
                here = deeper
                levels.append((name, _identity(here), iter(os.listdir(here))))  # noqa: PTH208
                break
            else:
                levels.pop()
                if not levels:
                    return
                back = os.open("..", DIRECTORY, dir_fd=here)
                os.close(here)
                here = back
                if _identity(here) != levels[-1][1]:
                    raise OSError(errno.ESTALE, "the tree was changed meanwhile", str(top))
                yield here, own_name, True
    finally:
        os.close(here)


def _open(name: str, directory: int) -> int:
    if os.getuid() != 0:
        # Package caches are full of read-only directories, and where we are not root they stop us.
        os.chmod(name, stat.S_IRWXU, dir_fd=directory)
    return os.open(name, DIRECTORY, dir_fd=directory)


def _identity(directory: int) -> tuple[int, int]:
    facts = os.fstat(directory)
    return facts.st_dev, facts.st_ino
