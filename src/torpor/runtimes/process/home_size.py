"""Measure the disk space of a home: allocated blocks, hard links once.

It runs `du` with the lowest priority: a million files take seconds of CPU time.
"""

import asyncio
import contextlib
import os
from pathlib import Path

from torpor.domain.errors import Unavailable
from torpor.runtimes.host_programs import find

MEASURE_S = 600.0
LOWEST_PRIORITY = 19
KIB = 1024


async def measure(home: Path) -> int | None:
    """Return its size in bytes; None if the home does not exist."""
    du = find("du")
    if du is None:
        raise Unavailable("cannot measure homes: du is not installed")
    process = await asyncio.create_subprocess_exec(
        *(du, "-s", "-k", "-x", str(home)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
    try:
        async with asyncio.timeout(MEASURE_S):
            said, _ = await process.communicate()
    except TimeoutError as error:
        raise Unavailable(f"du did not measure {home} within {MEASURE_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    # Its exit code is also 1 if a file disappeared during the run.
    number = said.split(b"\t")[0]
    return int(number) * KIB if number.isdigit() else None
