"""Mount a small real disk that a test can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str = "2m") -> Iterator[Path]:
    """A new tmpfs; skips the test if it cannot be mounted."""
    if os.getuid():
        pytest.skip("only root may mount a small disk")
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk could not be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(disk: Path) -> Path:
    """Fill the rest of the disk."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for block in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(block))
            except OSError:
                continue
    return path
