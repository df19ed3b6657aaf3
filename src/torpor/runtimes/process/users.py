"""As which user of this machine does a workspace run?"""

import hashlib
import os
from pathlib import Path

# Above everything that distributions, directories and container engines hand out (systemd's list ends at 0x6FFFFFFF).
WANTED = range(0x7000_0000, 0x7FFF_0000)


def mapped_users() -> range:
    """The largest run of user ids that exist here: inside a container there may be only 65536."""
    runs = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    start, length = max(((int(inside), int(length)) for inside, _, length in runs), key=lambda run: run[1], default=(0, 65536))
    return range(start, start + length)


def pick(workspace_id: str, mapped: range) -> int:
    """A function of the id, so that a home keeps its owner through every sleep."""
    span = (
        WANTED if WANTED.stop <= mapped.stop else range(min(20000, mapped.stop - 1), max(mapped.stop - 5000, mapped.start + 1))
    )
    number = int.from_bytes(hashlib.sha256(workspace_id.encode()).digest()[:8], "big")
    return span.start + number % len(span) if len(span) > 0 else mapped.stop - 1


def user_of(workspace_id: str, *, own: bool) -> int | None:
    """Return who runs the workspace and owns its home: a user of its own where that works, else Torpor's user.

    None where Torpor is not root: it can neither change its user nor give files away.
    """
    if os.getuid() != 0:
        return None
    return pick(workspace_id, mapped_users()) if own else os.getuid()
