"""Remove a directory tree, or give it to another user, for any depth and without following links.

The traversal uses one open directory that goes down by name and up by `..`: paths, Python's stack and the table of open files
have a maximum, the depth of a workspace's tree has none. Everything here blocks: call it in a thread.
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
    """Remove the tree as far as possible. Errors are logged, not raised."""
    errors: list[OSError] = []
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        if os.getuid() != 0:
            path.chmod(stat.S_IRWXU)
        for directory, name, is_directory in _bottom_up(path, errors.append):
            try:
                (os.rmdir if is_directory else os.unlink)(name, dir_fd=directory)
            except OSError as error:
                errors.append(error)
        path.rmdir()
    except OSError as error:
        errors.append(error)
    errors = [error for error in errors if not isinstance(error, FileNotFoundError)]
    if errors:
        log.warning("tree_not_removed", path=str(path), why=str(errors[0]), troubles=len(errors))


def give_tree(top: Path, user: int, is_given_up: Callable[[], bool] = lambda: False) -> None:
    """Give a whole home to its user: files restored from an archive of another machine have another owner.

    The top directory is last, because its owner states that all is done. If given up, it raises, and the next call repeats it.
    """
    for directory, name, _ in _bottom_up(top, _raise):
        if is_given_up():
            raise InterruptedError(errno.EINTR, "given up", str(top))
        # chown drops set-user-id bits, as it should: the archive had another owner.
        os.chown(name, user, user, dir_fd=directory, follow_symlinks=False)
    os.chown(top, user, user, follow_symlinks=False)


def _raise(error: OSError) -> None:
    raise error


def _bottom_up(top: Path, on_error: Callable[[OSError], None]) -> Iterator[tuple[int, str, bool]]:
    """Each entry below the top, after its content: its open parent directory, its name, whether it is a directory."""
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
                    on_error(error)
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
                    raise OSError(errno.ESTALE, "the tree was changed during the traversal", str(top))
                yield here, own_name, True
    finally:
        os.close(here)


def _open(name: str, directory: int) -> int:
    if os.getuid() != 0:
        # Package caches contain read-only directories, which cannot be changed without root.
        os.chmod(name, stat.S_IRWXU, dir_fd=directory)
    return os.open(name, DIRECTORY, dir_fd=directory)


def _identity(directory: int) -> tuple[int, int]:
    facts = os.fstat(directory)
    return facts.st_dev, facts.st_ino
