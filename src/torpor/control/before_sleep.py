"""Run the `before_sleep` command of a workspace that is about to be stopped.

The command does not count as use of the workspace. Its result is logged, here and in the log of the workspace. It cannot
prevent the stop.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from torpor.domain.errors import TorporError
from torpor.domain.records import Workspace
from torpor.ports import RunningCommand, Runtime

log = structlog.get_logger()

KEPT_BYTES = 4096
"""The last bytes of the output are kept."""
WRITE_LOG_S = 2.0
"""Timeout for the write to the log of the workspace."""


class LastOutput:
    """The last part of the output of a command."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, data: bytes) -> None:
        self._kept = (self._kept + data[-KEPT_BYTES:])[-KEPT_BYTES:]

    def __str__(self) -> str:
        """Without control characters: logs are read on terminals."""
        text = self._kept.decode(errors="replace").rstrip("\n")
        return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


async def run_before_sleep(runtime: Runtime, workspace: Workspace, command: Sequence[str], *, within_s: float) -> None:
    """Run the command to its end. Raise only a cancellation, which ends the command."""
    output = LastOutput()
    exit_code: int | None = None
    try:
        async with asyncio.timeout(within_s):
            running = await runtime.start_command(workspace.id, command)
            try:
                exit_code = await _until_ended(running, output)
            finally:
                await running.close()
    except TimeoutError:
        became = f"did not end within {within_s:g} s and was killed"
    except TorporError as error:
        became = f"could not be completed: {error.message}"
    except Exception as error:
        became = f"could not be completed: {type(error).__name__}: {error}"
    else:
        became = f"ended with exit code {exit_code}"
    has_failed = exit_code != 0
    (log.warning if has_failed else log.info)(
        "before_sleep_failed" if has_failed else "before_sleep_ended",
        workspace=workspace.id,
        name=workspace.name,
        became=became,
        output=str(output),
    )
    await _tell_its_users(runtime, workspace, f"before_sleep {became}", output)


async def _until_ended(running: RunningCommand, output: LastOutput) -> int:
    await running.end_input()
    while (said := await running.read()) is not None:
        output.add(said.data)
    return await running.exit_code()


async def _tell_its_users(runtime: Runtime, workspace: Workspace, line: str, output: LastOutput) -> None:
    lines = [*str(output).split("\n"), f"torpor: {line}"]
    with contextlib.suppress(TorporError, TimeoutError, OSError):
        async with asyncio.timeout(WRITE_LOG_S):
            await runtime.append_log(workspace.id, "".join(f"{one}\n" for one in lines if one).encode())
