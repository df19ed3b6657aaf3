"""How does the embedded bus die with whoever started it, and not run as root where that can be had?

Run as a script: python -I -S launch.py MODE PARENT DIRECTORY PROGRAM ARGUMENT...
It puts on another skin, asks the kernel for SIGTERM when PARENT dies, goes to DIRECTORY and becomes PROGRAM.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
CANNOT_LAUNCH = 71

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def stay_as_we_are() -> None:
    pass


def be_nobody_in_a_namespace() -> None:
    """Inside we are nobody and without any capability; on disk what we write belongs to whoever started us."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1", encoding="ascii")


MODES: dict[str, Callable[[], None]] = {"self": stay_as_we_are, "namespace": be_nobody_in_a_namespace}


def main(mode: str, parent: str, directory: str, *command: str) -> None:
    try:
        MODES[mode]()
        # After the change of identity, which would clear it.
        call("prctl", PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(CANNOT_LAUNCH)  # the parent died before it could be watched
        os.chdir(directory)
        os.execv(command[0], command)  # noqa: S606 - to become it is the whole point
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]} in mode {mode}: {error}\n")
        sys.exit(CANNOT_LAUNCH)


if __name__ == "__main__":
    main(*sys.argv[1:])
