"""Decide whether workspaces can run as separate users without a sandbox that shows them interpreter and home.

It is decided once at the start, by a trial as such a user: with all files at their paths, or, for files below folders that only
root can enter, mounted for the workspace (`torpor.inside.closed_folders`). If both fail, workspaces run as Torpor's user.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torpor.inside.program import AgentOptions
from torpor.runtimes.host_programs import TRIAL_S, ToolFailed, call
from torpor.runtimes.process import sandbox, users
from torpor.runtimes.process.launch import parent_death_argv
from torpor.runtimes.process.paths import RuntimePaths

# The current directory is the home; Torpor's files must be readable as well.
LOOK = "import os, sys; os.listdir(); open(sys.argv[1]).close(); os.listdir(sys.argv[2])"

# The permanent errors of a file system or a container that cannot change owners.
NOT_ALLOWED = (errno.EPERM, errno.EINVAL)


def needed_directories(home: Path, programs: Path | None = None) -> tuple[str, ...]:
    """Return the directories that a workspace's user needs besides those of the system."""
    candidates = (sandbox.interpreter_home(), sandbox.inside_folder(), sandbox.site_folder(), programs, home)
    return tuple(str(path) for path in candidates if path is not None)


def agent_argv(script: str) -> list[str]:
    """Return the call that runs one of the scripts in torpor/inside, without a sandbox."""
    argv = [*sandbox.python_argv(), str(sandbox.inside_folder() / script)]
    return parent_death_argv(argv, no_new_privileges=True)


async def refusal(paths: RuntimePaths, *, within_s: float = TRIAL_S) -> str | None:
    """Return why separate users do not work; None if they work. Torpor must be root.

    Raise ToolFailed or OSError if the trial could not run: a full disk or a busy machine must not make workspaces run as root.
    """
    user = users.pick("", users.mapped_users())
    with trial_home(nearest_existing(paths.volumes)) as home:
        try:
            os.chown(home, user, user)
        except OSError as error:
            if error.errno not in NOT_ALLOWED:
                raise
            return str(error)
        try:
            await call(*agent_argv("trial.py"), stdin=trial(home, user).line().decode(), within_s=within_s)
        except ToolFailed as error:
            if error.exit_code is None:
                raise
            return error.said.splitlines()[-1]  # a traceback ends with its reason
    return None


def trial(home: Path, user: int) -> AgentOptions:
    looked_at = (str(sandbox.inside_folder() / "terminal.py"), str(sandbox.site_folder()))
    return AgentOptions(
        bridge_fd=-1,
        ports_fd=-1,
        control_fd=-1,
        port=0,
        socket="",
        home=str(home),
        command=(*sandbox.python_argv(), "-c", LOOK, *looked_at),
        environment={},
        user=user,
        alone=False,
        own_network=False,
        limits={},
        shown=needed_directories(home),
    )


@contextlib.contextmanager
def trial_home(folder: Path) -> Iterator[Path]:
    """Create an empty home for the trial."""
    home = Path(tempfile.mkdtemp(prefix=".trial-", dir=folder))
    try:
        yield home
    finally:
        home.rmdir()


def nearest_existing(path: Path) -> Path:
    """Return the path, or the closest folder above it that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())
