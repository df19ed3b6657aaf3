"""Share a busy CPU between workspaces, jobs and Torpor itself.

Each workspace has a weight (its template's `cpu_weight`, 100 by default), and so has each job: a user waits for a restore, so
it has the weight of a workspace; an archive job has a tenth. With cgroups, it is the weight of the group: all workspaces and
jobs together are one group beside Torpor's processes. Without, it becomes a nice value, also of the session if the kernel
schedules by sessions (autogroup).
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
"""The nice value of the default weight. Torpor's processes, at 0, have priority, and a higher weight needs no privilege."""
NICE_STEP = 1.25
"""The kernel's factor between the weights of two neighbouring nice values."""
NICEST = 19
AGAIN_S = 0.1
TRIES = 100


def job_weight(job: HomeJob) -> int:
    return CPU_WEIGHT if job.writes else ARCHIVE_WEIGHT


def nice_of(weight: int) -> int:
    """The nice value that is closest to a weight."""
    steps = round(math.log(weight / CPU_WEIGHT, NICE_STEP))
    return min(max(0, NICE_OF_A_WORKSPACE - steps), NICEST)


async def make_nice(spawned: SpawnedProcess, weight: int) -> None:
    """Set the nice value of its process group, which later children inherit, and of its session."""
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + nice_of(weight), NICEST)
    with contextlib.suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PGRP, spawned.pid, nice)
    for _ in range(TRIES):
        if spawned.exit_code is not None or _is_session_nice(spawned.pid, nice):
            return
        await asyncio.sleep(AGAIN_S)


def _is_session_nice(pid: int, nice: int) -> bool:
    """False if a retry can succeed: without root, the kernel accepts one change per tenth of a second."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True
