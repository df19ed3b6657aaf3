"""Translate OSErrors on files of a home to Failed, with the path in the message."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.errors import Code, Failed

ERRNO_MEANS = {errno.ENOSPC: Code.DISK_FULL, errno.EDQUOT: Code.DISK_FULL}

HINTS = {
    errno.EPERM: " (only root can change the owner of files)",
    errno.ENOTSUP: " (this file system does not support such extended attributes)",
}


@dataclass(frozen=True, slots=True)
class FileOperation:
    """The operation in progress when an error occurs."""

    verb: str
    otherwise: Code
    """The code of an error that is not in ERRNO_MEANS."""
    missing_means_changed: bool
    """A name that was listed and is now missing: another process changes the home."""
    gives_hints: bool


READING = FileOperation("read", Code.HOME_UNREADABLE, missing_means_changed=True, gives_hints=False)
RESTORING = FileOperation("restore", Code.TAR_EXTRACT_FAILED, missing_means_changed=False, gives_hints=True)


def home_changed_error(path: str) -> Failed:
    return Failed(Code.HOME_CHANGED, f"{path!r} changed while it was read: a process still writes to this home", path=path)


class FileErrors:
    """A context manager that translates the OSErrors of its block."""

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: FileOperation, path: str | Path) -> None:
        self._doing = doing
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        doing, path, number = self._doing, os.fspath(self._path), error.errno or 0
        if doing.missing_means_changed and number == errno.ENOENT:
            raise home_changed_error(path) from error
        code = ERRNO_MEANS.get(number, doing.otherwise)
        hint = HINTS.get(number, "") if doing.gives_hints else ""
        raise Failed(code, f"cannot {doing.verb} {path!r}: {error.strerror}{hint}", path=path) from error
