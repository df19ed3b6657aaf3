"""An object of an archive store in a directory whose reads do not return for a while."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Reads wait until the end of the block, and find nothing then."""
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # no read waits
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
