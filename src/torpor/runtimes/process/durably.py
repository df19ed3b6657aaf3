"""How is a small file written so that it is whole or not there, even after the power failed?"""

import os
from pathlib import Path


def write(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Written aside, flushed, renamed, and the directory flushed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
