"""Choose the user id that a workspace runs as."""

import hashlib
import os
from pathlib import Path

# Above all ids that distributions, directories and container engines assign (systemd's list ends at 0x6FFFFFFF).
WANTED = range(0x7000_0000, 0x7FFF_0000)


def mapped_users() -> range:
    """The largest range of user ids that exist: inside a container there may be only 65536."""
    runs = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    start, length = max(((int(inside), int(length)) for inside, _, length in runs), key=lambda run: run[1], default=(0, 65536))
    return range(start, start + length)


def pick(workspace_id: str, mapped: range) -> int:
    """A function of the workspace's id, so that a home keeps its owner after each archive and restore."""
    span = (
        WANTED if WANTED.stop <= mapped.stop else range(min(20000, mapped.stop - 1), max(mapped.stop - 5000, mapped.start + 1))
    )
    number = int.from_bytes(hashlib.sha256(workspace_id.encode()).digest()[:8], "big")
    return span.start + number % len(span) if len(span) > 0 else mapped.stop - 1


def user_of(workspace_id: str, *, own: bool) -> int | None:
    """Return the user that runs the workspace and owns its home: a separate user if that works, else Torpor's user.

    None if Torpor is not root: it cannot change its user or the owner of files.
    """
    if os.getuid() != 0:
        return None
    return pick(workspace_id, mapped_users()) if own else os.getuid()
