"""Measure the size of a home on disk, hard links once. Run by file path with the home as its last argument."""

import json
import os
import sys
from collections.abc import Iterator

BLOCK = 512


def entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """All files and folders below. A folder that cannot be read, or has just been removed, has none."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue


def measure(folder: str) -> int:
    seen: set[tuple[int, int]] = set()
    total = os.stat(folder).st_blocks * BLOCK  # noqa: PTH116
    for entry in entries(folder):
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if facts.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
            if (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
        total += facts.st_blocks * BLOCK
    return total


if __name__ == "__main__":
    print(json.dumps({"result": {"bytes": measure(sys.argv[-1])}}))
