"""Folders that every user of this machine can reach.

pytest's own are for their owner, and each new session closes them again.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def open_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="torpor-test-") as directory:
        reachable_for_all(Path(directory))
        yield Path(directory)


def reachable_for_all(path: Path) -> None:
    """Let other users pass through this folder and our own folders above it."""
    for folder in (path, *path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
