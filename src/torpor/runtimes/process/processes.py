"""Identify processes beyond their pid, and end whole process trees.

The kernel reuses pids, so a pid alone never decides where a signal goes: a process is recorded with its start time and its
boot, and both are compared before each signal.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torpor.inside.process_activity import stat_fields

MARK = "WORKSPACE_MARK"
"""In the environment of unconfined processes: without cgroups and namespaces it is the only way to find them."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    start_time: int
    boot: str


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    try:
        return ProcessIdentity(pid, int(stat_fields(pid)[19]), boot())
    except (OSError, IndexError, ValueError):
        return None


def is_alive(identity: ProcessIdentity) -> bool:
    try:
        return identify(identity.pid) == identity and stat_fields(identity.pid)[0] not in "ZX"
    except (OSError, IndexError):
        return False


def send(pid: int, number: int, *, if_still: Callable[[], bool]) -> None:
    """Signal through a pidfd, so that the pid cannot be reused between the check and the signal."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if if_still():
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def kill(identity: ProcessIdentity) -> None:
    send(identity.pid, signal.SIGKILL, if_still=lambda: identify(identity.pid) == identity)


def terminate(identity: ProcessIdentity) -> None:
    send(identity.pid, signal.SIGTERM, if_still=lambda: identify(identity.pid) == identity)


def suspend(identity: ProcessIdentity) -> bool:
    """Whether this call suspended it: not if it has ended, or was suspended already."""
    try:
        if stat_fields(identity.pid)[0] in "TtZX":
            return False
    except (OSError, IndexError):
        return False
    send(identity.pid, signal.SIGSTOP, if_still=lambda: identify(identity.pid) == identity)
    return is_alive(identity)


def resume(identity: ProcessIdentity) -> None:
    send(identity.pid, signal.SIGCONT, if_still=lambda: identify(identity.pid) == identity)


def descendants(roots: Mapping[str, int]) -> dict[str, set[int]]:
    """All descendants of each of these processes, from one pass over all processes."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in all_processes().items():
        children.setdefault(parent, []).append(pid)
    found: dict[str, set[int]] = {}
    for name, root in roots.items():
        found[name], to_visit = set(), list(children.get(root, ()))
        while to_visit:
            pid = to_visit.pop()
            if pid not in found[name]:
                found[name].add(pid)
                to_visit += children.get(pid, ())
    return found


def first_of_namespace(root: int, number: int) -> int | None:
    """The descendant of `root` that is pid 1 of its namespace, and has this pid in the parent namespace."""
    for pid in descendants({"": root})[""]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
                if line.startswith("NSpid:") and line.split()[-2:] == [str(number), "1"]:
                    return pid
    return None


def written_bytes(pid: int) -> int | None:
    """The bytes that it and its reaped children have written to disks; None if that is not readable."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "write_bytes":
                return int(value)
    return None


def all_processes() -> dict[int, tuple[int, int]]:
    """Each process with its parent and its session."""
    found: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = stat_fields(int(entry))
                found[int(entry)] = (int(fields[1]), int(fields[3]))
    return found


def tree(identity: ProcessIdentity) -> set[ProcessIdentity]:
    """The process, its descendants and its session; empty if the pid belongs to another process now."""
    if not is_alive(identity):
        return set()
    processes = all_processes()
    found = {identity.pid}
    while True:
        more = {pid for pid, (parent, session) in processes.items() if parent in found or session == identity.pid} - found
        if not more:
            break
        found |= more
    return {known for pid in found if (known := identify(pid)) is not None}


def find_marked(prefix: str) -> set[ProcessIdentity]:
    """All processes whose environment has a mark with this prefix, for any parent."""
    wanted = f"{MARK}={prefix}".encode()
    found: set[ProcessIdentity] = set()
    for pid in all_processes():
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and any(entry.startswith(wanted) for entry in entries):
                identity = identify(pid)
                found |= {identity} if identity else set()
    return found


def end_tree(identity: ProcessIdentity, *, within_s: float = 5.0) -> bool:
    """Kill until no process is left, older processes first, since they could start more."""
    return _end(lambda: tree(identity), within_s)


def end_marked(prefix: str, *, within_s: float = 5.0) -> bool:
    return _end(lambda: find_marked(prefix), within_s)


def _end(look: Callable[[], set[ProcessIdentity]], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    known: set[ProcessIdentity] = set()
    while True:
        known |= look()
        alive = {identity for identity in known if is_alive(identity)}
        if not alive:
            return True
        if time.monotonic() > deadline:
            return False
        for identity in sorted(alive, key=lambda one: one.start_time):
            kill(identity)
        time.sleep(0.002)


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def record(directory: Path, name: str, pid: int) -> ProcessIdentity | None:
    identity = identify(pid)
    if identity is not None:
        (directory / f"{name}.json").write_text(json.dumps(asdict(identity)))
    return identity


def forget(directory: Path, name: str) -> None:
    (directory / f"{name}.json").unlink(missing_ok=True)


def sweep(directory: Path) -> None:
    """End the processes that an earlier run recorded during this boot."""
    now = boot()
    for path in directory.glob("*.json"):
        with contextlib.suppress(ValueError, TypeError, OSError):
            identity = ProcessIdentity(**json.loads(path.read_bytes()))
            if identity.boot == now:
                end_tree(identity)
        path.unlink(missing_ok=True)


def count_of_user(user: int) -> int:
    """The number of the user's threads, which the kernel's limit counts as processes."""
    count = 0
    for pid in all_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == user:
                count += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    return count
