"""Read from a container's own cgroup whether the kernel ended a process because memory ran out.

Podman does not tell, and Docker only for the first process.
"""

import contextlib
from pathlib import Path

SENTENCE = "(the container used more memory than its limit)\n"
COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of cgroup version 2 and 1."""
COUNTER = "oom_kill"


def processes_ended(files: tuple[str, ...] = COUNTERS) -> int:
    """How many processes of this container the kernel has ended; 0 if it cannot be read."""
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(file).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == COUNTER:
                    return int(value)
    return 0
