"""Decide whether workspaces can run as users of their own where no sandbox shows them interpreter and home.

Decided once at the start, by trying it as such a user: with everything where it lies, or, below folders that only root may
enter, mounted for the workspace alone (`torpor.inside.closed_folders`). Where both fail, workspaces run as Torpor's user.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torpor.inside.program import Orders
from torpor.runtimes.process import sandbox, users
from torpor.runtimes.process.launch import dying_with_us
from torpor.runtimes.process.places import Places
from torpor.runtimes.process.tools import TRIAL_S, ToolFailed, call

# The current directory is the home; what Torpor brings along must be readable, too.
LOOK = "import os, sys; os.listdir(); open(sys.argv[1]).close(); os.listdir(sys.argv[2])"


def needed(home: Path, programs: Path | None = None) -> tuple[str, ...]:
    """Return the directories that a workspace's user needs besides those of the system."""
    candidates = (sandbox.interpreter_home(), sandbox.inside_folder(), sandbox.site_folder(), programs, home)
    return tuple(str(path) for path in candidates if path is not None)


def agent_argv(script: str) -> list[str]:
    """Return the call that runs one of the scripts in torpor/inside, without a sandbox."""
    argv = [*sandbox.python_argv(), str(sandbox.inside_folder() / script)]
    return dying_with_us(argv, no_new_privileges=True)


async def refusal(places: Places) -> str | None:
    """Return why users of their own are impossible here; None when they work. Torpor must be root."""
    user = users.pick("", users.mapped_users())
    try:
        with trial_home(nearest(places.volumes), user) as home:
            await call(*agent_argv("trial.py"), stdin=trial(home, user).line().decode(), within_s=TRIAL_S)
    except ToolFailed as error:
        return error.said.splitlines()[-1]  # a traceback ends with its reason
    except OSError as error:
        return str(error)
    return None


def trial(home: Path, user: int) -> Orders:
    looked_at = (str(sandbox.inside_folder() / "terminal.py"), str(sandbox.site_folder()))
    return Orders(
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
        shown=needed(home),
    )


@contextlib.contextmanager
def trial_home(folder: Path, user: int) -> Iterator[Path]:
    """Make an empty home for as long as the trial takes."""
    home = Path(tempfile.mkdtemp(prefix=".trial-", dir=folder))
    try:
        os.chown(home, user, user)
        yield home
    finally:
        home.rmdir()


def nearest(path: Path) -> Path:
    """Return the path, or the closest folder above it that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())
