"""Find and call programs of this machine."""

import asyncio
import subprocess
from collections.abc import Sequence

from torpor.runtimes.timeouts import finish_despite_cancel
from torpor.system_packages import find

__all__ = ["TRIAL_S", "ToolFailed", "call", "find"]

TRIAL_S = 30.0
"""For a call that decides how workspaces run: a busy machine must not count as one that cannot confine."""


class ToolFailed(Exception):
    """A tool of this machine failed. `said` is its output only, without the command.

    `exit_code` is None if it did not end in time, or a signal ended it.
    """

    def __init__(self, message: str, said: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.said = said or message
        self.exit_code = exit_code


async def call(*argv: str, stdin: str = "", within_s: float = 10.0) -> str:
    """Return its standard output; ToolFailed on another exit code than 0, or a timeout. Finishes even if cancelled."""
    return await finish_despite_cancel(asyncio.to_thread(_call, argv, stdin, within_s))


def _call(argv: Sequence[str], stdin: str, within_s: float) -> str:
    try:
        done = subprocess.run(argv, input=stdin.encode(), capture_output=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{words(argv)} did not finish within {within_s:g} s") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
        exit_code = done.returncode if done.returncode > 0 else None
        raise ToolFailed(f"{words(argv)}: exit code {done.returncode}: {one_line(said)[-500:]}", said, exit_code)
    return done.stdout.decode(errors="replace")


def one_line(said: str) -> str:
    return "; ".join(filter(None, map(str.strip, said.splitlines())))


def words(argv: Sequence[str]) -> str:
    return " ".join(argv)[:200]
