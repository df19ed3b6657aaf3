"""Write a file so that it is complete or absent, also after a crash or a power cut."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write(path: Path, content: bytes, *, partial: Path | None = None, mode: int = 0o600, sync: bool = True) -> None:
    """Replace the file. With `sync` it survives a power cut. `partial`: its name until it is complete."""
    partial = partial or path.with_name(f".{path.name}.{os.getpid()}.partial")
    with replacing(path, partial, mode=mode, sync=sync) as descriptor:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def replacing(path: Path, partial: Path, *, mode: int, sync: bool) -> Iterator[int]:
    """The descriptor of `partial`, which is renamed to `path` when the block succeeds and removed when it fails.

    `partial` is a new file: one that another process or user left there, or a link, would keep its own mode and owner.
    """
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            yield descriptor
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)
        if sync:
            sync_directory(path.parent)
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Its entries survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: Path) -> None:
    """Everything on it survives a power cut: for a tree of many files one call instead of one for each file."""
    import ctypes  # most commands write files and need no syncfs

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
