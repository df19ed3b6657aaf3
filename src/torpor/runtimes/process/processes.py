"""Which process is it really, after all this time, and how does its whole tree end?

A process id is given to another once its owner has ended, so nothing is signalled by number alone: what we started is
recorded with its start time and the boot it belongs to, and compared before anything is done to it.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MARK = "WORKSPACE_MARK"
"""In the environment of everything that runs unconfined: where there is neither cgroup nor namespace it is all there is."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    start_time: int
    boot: str


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int) -> list[str]:
    """From the state on; the name before it may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


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
    """Through a handle on the process, so that it cannot become another between the look and the blow."""
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
    """Whether it was stopped; not when it has ended, or when something else has stopped it already."""
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
    """Everything below each of these processes, from one look at all of them."""
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
    """The process below `root` that is the first of its PID namespace, and has this number in the namespace around that."""
    for pid in descendants({"": root})[""]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
                if line.startswith("NSpid:") and line.split()[-2:] == [str(number), "1"]:
                    return pid
    return None


def written_bytes(pid: int) -> int | None:
    """What it has written to disks so far, together with children that it has waited for; None where that is not told."""
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
    """It, everything below it and everything in its session; nothing when it is no longer the one that we knew."""
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
    """Everything whose environment carries a mark that begins so, whoever its parent is by now."""
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
    """Kill until nothing is left. What is killed first is what could start more."""
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
    """End what an earlier life recorded and this boot still runs."""
    now = boot()
    for path in directory.glob("*.json"):
        with contextlib.suppress(ValueError, TypeError, OSError):
            identity = ProcessIdentity(**json.loads(path.read_bytes()))
            if identity.boot == now:
                end_tree(identity)
        path.unlink(missing_ok=True)


def count_of_user(user: int) -> int:
    """Threads count as processes for the kernel's limit."""
    count = 0
    for pid in all_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == user:
                count += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    return count
