"""How is a directory one process's alone?

By flock(2) on the directory itself, which the kernel releases when the process ends in any way.
"""

import os
import time
from pathlib import Path
from types import TracebackType

from torpor.file_lock import is_current, try_lock
from torpor.sort.data.files import remove, to_sort_failed
from torpor.sort.errors import SortRefused

POLL_S = 0.05


class DirectoryLock:
    """Makes the directory and takes it; waits so long for another process, and then names it."""

    def __init__(self, directory: Path, what: str, pid_name: str, wait_s: float, *, mode: int) -> None:
        self._pid_file = directory / pid_name
        self._descriptor = _locked(directory, what, self._pid_file, time.monotonic() + wait_s, mode)
        try:
            self._pid_file.write_text(f"{os.getpid()}\n")
        except OSError as error:
            os.close(self._descriptor)
            raise to_sort_failed(error, self._pid_file, "writing") from error

    def release(self) -> None:
        remove(self._pid_file)  # Before the unlock: after it, another process may own the file.
        os.close(self._descriptor)

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _locked(directory: Path, what: str, pid_file: Path, end: float, mode: int) -> int:
    while True:
        make_directory(directory, what, mode)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # Another process has just removed it.
        except OSError as error:
            raise SortRefused("bad_directory", f"the {what} directory {directory} cannot be read: {error.strerror}") from error
        if _take(descriptor, directory):
            return descriptor
        os.close(descriptor)
        if time.monotonic() >= end:
            raise SortRefused(
                "in_use", f"the {what} directory {directory} is in use by {_holder(pid_file)}; wait for it or end it"
            )
        time.sleep(POLL_S)


def make_directory(directory: Path, what: str, mode: int) -> None:
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise SortRefused(
            "bad_directory", f"the {what} directory {directory} cannot be created: there is a file in its place"
        ) from error
    except OSError as error:
        raise SortRefused("bad_directory", f"the {what} directory {directory} cannot be created: {error.strerror}") from error


def _take(descriptor: int, directory: Path) -> bool:
    return try_lock(descriptor) and is_current(descriptor, directory)


def _holder(pid_file: Path) -> str:
    try:
        return f"process {int(pid_file.read_text())}"
    except (OSError, ValueError):
        return "another process"
