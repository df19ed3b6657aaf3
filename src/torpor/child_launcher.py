"""Start a program that gets a signal when its parent dies, under another user where root must not run it.

Run as a script: python -I -S child_launcher.py MODE SIGNAL PARENT DIRECTORY PROGRAM ARGUMENT...
It changes the user as MODE says, asks the kernel for SIGNAL when PARENT dies, changes to DIRECTORY and executes PROGRAM.
A script instead of a preexec_fn, because Python code between fork and exec can deadlock in a process with threads. It imports
nothing of Torpor, so that it starts fast.
"""

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
CANNOT_LAUNCH = 71

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def keep_user() -> None:
    pass


def enter_user_namespace() -> None:
    """Inside, the user is `nobody` without any capability; on disk, files belong to the user that started the program."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1", encoding="ascii")


def become_nobody_user() -> None:
    """The user `nobody`, but with the capability to reach a folder below a private home directory."""
    # Only with this bit does access(2) consider the capabilities of users other than root, and PostgreSQL calls it to check
    # that it may run its own binary. A machine that forbids the bit runs only binaries that every user can reach.
    with contextlib.suppress(OSError):
        call("prctl", PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    keep = 1 << CAP_DAC_OVERRIDE
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    call("capset", header, struct.pack("=6I", keep, keep, keep, 0, 0, 0))
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


MODES: dict[str, Callable[[], None]] = {
    "self": keep_user,
    "namespace": enter_user_namespace,
    "nobody": become_nobody_user,
}


def main(mode: str, death_signal: str, parent: str, directory: str, *command: str) -> None:
    try:
        MODES[mode]()
        # After the change of user, which would clear it.
        call("prctl", PR_SET_PDEATHSIG, int(signal.Signals[death_signal]), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(CANNOT_LAUNCH)  # the parent died before it could be watched
        os.chdir(directory)
        os.execv(command[0], command)  # noqa: S606 - this script exists to execute it
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]} in mode {mode}: {error}\n")
        sys.exit(CANNOT_LAUNCH)


if __name__ == "__main__":
    main(*sys.argv[1:])
