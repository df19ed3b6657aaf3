"""Start a workspace's program.

It starts as early as possible: this module is loaded first and loads little. The agent (`agent`) takes several times as long
to load, and the program does not wait for it.
"""

import contextlib
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

CHUNK = 1 << 16
OOM_SCORE = 300
"""When memory runs out, the kernel must choose a process of the workspace, not the agent."""
COULD_NOT_START = 127


class AgentOptions(NamedTuple):
    """The first line on standard input."""

    port: int
    socket: str
    """The Unix socket on which the program listens instead of the port; empty for the port."""
    home: str
    command: tuple[str, ...]
    environment: dict[str, str]
    user: int | None
    """Become this user and group (if started as root)."""
    alone: bool
    """Whether all visible processes belong to this container: the agent is process 1 of its own PID namespace."""
    own_network: bool
    """Whether everything on loopback belongs to this container."""
    limits: dict[str, int]
    """Resource limits by name (`RLIMIT_NPROC`), where there is no cgroup."""
    shown: tuple[str, ...] = ()
    """Directories that the user must reach although it may not enter a folder above them; see `closed_folders`."""
    bridge_fd: int = -1
    ports_fd: int = -1
    control_fd: int = -1
    """Inherited sockets; an agent that listens by itself (`engine_agent`) has none."""

    @classmethod
    def parse(cls, line: bytes) -> "AgentOptions":
        return cls.from_json(json.loads(line))

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "AgentOptions":
        return cls(**{**given, "command": tuple(given["command"]), "shown": tuple(given["shown"])})

    def line(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


class StartedProgram(NamedTuple):
    orders: AgentOptions
    program: "subprocess.Popen[bytes]"
    open_files: tuple[int, int]
    """The limit of open files for all programs; the agent itself needs more."""


def start_program(orders: AgentOptions, output: int | None = None) -> StartedProgram:
    """Start the program as the workspace's user. Its output goes to this descriptor, or to that of the agent."""
    if not orders.alone:
        adopt_orphans()
    leave_keyring()
    os.umask(0o022)
    if orders.shown:
        show_closed_folders(orders.shown)
    give_up_root(orders)
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    streams = (subprocess.DEVNULL, output)
    try:
        program = start(orders.command, orders.home, orders.environment, streams, lambda: before_exec(open_files))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot start {orders.command[0] if orders.command else 'an empty command'}: {error}\n")
        raise SystemExit(COULD_NOT_START) from error
    return StartedProgram(orders, program, open_files)


def read_orders() -> AgentOptions:
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, CHUNK)
        if not data:
            raise SystemExit("Torpor ended before it sent the options of the program")
        line += data
    return AgentOptions.parse(bytes(line))


def leave_keyring() -> None:
    """Leave Torpor's session keyring: its keys (a Kerberos ticket, the passphrase of a disk) are inherited by child
    processes."""
    import ctypes  # the standard library has no other way

    keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if keyctl is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        # 1 is KEYCTL_JOIN_SESSION_KEYRING; without a name it creates a new one.
        if libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None) < 0 and ctypes.get_errno() not in (
            errno.ENOSYS,
            errno.EPERM,
        ):
            raise SystemExit(f"cannot leave Torpor's session keyring: {os.strerror(ctypes.get_errno())}")


def show_closed_folders(paths: tuple[str, ...]) -> None:
    from torpor.inside.closed_folders import show  # needed only without a sandbox, and slow to load

    try:
        show(paths)
    except OSError as error:
        sys.stderr.write(f"cannot show its folders to the workspace's user: {error}\n")
        raise SystemExit(COULD_NOT_START) from error


def give_up_root(orders: AgentOptions) -> None:
    if orders.user is not None:
        os.setgroups([])
        os.setresgid(orders.user, orders.user, orders.user)
        os.setresuid(orders.user, orders.user, orders.user)
    for name, value in orders.limits.items():
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bounded, bounded))


def adopt_orphans() -> None:
    import ctypes  # needed only without a PID namespace, and slow to load

    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def start(
    argv: tuple[str, ...],
    home: str,
    environment: dict[str, str],
    streams: tuple[int, int | None],
    before: Callable[[], None],
    executable: str | None = None,
) -> "subprocess.Popen[bytes]":
    """`streams`: standard input, and standard output and error."""
    stdin, output = streams
    return subprocess.Popen(
        argv,
        executable=executable,
        cwd=home,
        env=environment,
        stdin=stdin,
        stdout=output,
        stderr=output,
        bufsize=0,
        start_new_session=True,
        # Safe, because there is only one thread; from outside there would be a race.
        preexec_fn=before,
    )


def before_exec(open_files: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write(str(OOM_SCORE))
