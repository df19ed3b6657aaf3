"""Share a busy CPU between workspaces, jobs and Torpor itself.

Each workspace has a weight (its template's `cpu_weight`, 100 by default), and so has each job: a user waits for a restore, so
it weighs as much as a workspace; an archive weighs a tenth. Where Torpor may use cgroups, the weight is that of the group: all
workspaces and jobs together are one group beside Torpor's own processes. Elsewhere it becomes a nice value, also of the first
session where the kernel schedules by sessions (autogroup).
"""

import asyncio
import contextlib
import errno
import math
import os
from pathlib import Path

from torpor.ports import CPU_WEIGHT, HomeJob
from torpor.runtimes.process.launch import SpawnedProcess

ARCHIVE_WEIGHT = CPU_WEIGHT // 10
NICE_OF_A_WORKSPACE = 5
"""Of the default weight: Torpor's own processes, at 0, go first, and a higher weight needs no privilege."""
NICE_STEP = 1.25
"""The kernel's: by so much the weight of a process falls from one nice value to the next."""
NICEST = 19
AGAIN_S = 0.1
TRIES = 100


def job_weight(job: HomeJob) -> int:
    return CPU_WEIGHT if job.writes else ARCHIVE_WEIGHT


def nice_of(weight: int) -> int:
    """The nice value that comes closest to a weight."""
    steps = round(math.log(weight / CPU_WEIGHT, NICE_STEP))
    return min(max(0, NICE_OF_A_WORKSPACE - steps), NICEST)


async def make_nice(spawned: SpawnedProcess, weight: int) -> None:
    """Set the nice value of all that it has started so far, which what it starts later inherits, and of its session."""
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + nice_of(weight), NICEST)
    with contextlib.suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PGRP, spawned.pid, nice)
    for _ in range(TRIES):
        if spawned.exit_code is not None or _is_session_nice(spawned.pid, nice):
            return
        await asyncio.sleep(AGAIN_S)


def _is_session_nice(pid: int, nice: int) -> bool:
    """Whether there is nothing left to try: without root, the kernel takes such a value once in a tenth of a second."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True
