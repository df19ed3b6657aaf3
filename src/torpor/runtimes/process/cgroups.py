"""How much may a workspace take of this machine, and how does all of it end at once?

One parent group for this data directory, one group below it for each container and each job. Version 1 has a hierarchy for
each controller, version 2 one for all; either way a group is a few directories. Everything here takes microseconds, except
`end`, which waits for the kernel: call that one in a thread.
"""

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torpor.ports import CPU_WEIGHT, Limits
from torpor.runtimes.process import processes

MOUNTS = Path("/proc/self/mountinfo")
NEEDED = {"memory", "pids"}
WEIGHTS = {"cpu"}
SHARES_PER_WEIGHT = 1024 / CPU_WEIGHT
"""Of version 1, whose default is 1024."""
FEWEST_SHARES = 2


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where the controllers are mounted; a process joins each of them."""

    version: int
    memory: Path
    processes: Path
    cpu: Path | None = None
    """None where a group cannot be given a weight; limits work without."""

    @property
    def needed(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.memory, self.processes)))

    @property
    def roots(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((*self.needed, *([self.cpu] if self.cpu else []))))


def find(mounts: Path = MOUNTS) -> Hierarchies | None:
    """From the kernel's own list; a machine may have both versions, and then the controllers are with the first."""
    controllers: dict[str, Path] = {}
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        point = Path(before.split()[4])
        if kind == "cgroup":
            for controller in {"memory", "pids", "cpu"} & set(options.split()[-1].split(",")):
                controllers[controller] = point
        elif kind == "cgroup2":
            with contextlib.suppress(OSError):
                found = set((point / "cgroup.controllers").read_text().split())
                if found >= NEEDED:
                    return Hierarchies(2, point, point, point if "cpu" in found else None)
    if controllers.keys() >= NEEDED:
        cpu = controllers.get("cpu")
        return Hierarchies(
            1, controllers["memory"], controllers["pids"], cpu if cpu is not None and os.access(cpu, os.W_OK) else None
        )
    return None


class Cgroups:
    def __init__(self, hierarchies: Hierarchies, tag: str) -> None:
        self.hierarchies = hierarchies
        self._parent = f"torpor-{tag}"

    def check(self) -> None:
        """OSError when `prepare` would find that this machine does not let us; changes nothing."""
        for root in self.hierarchies.needed:
            self._check(root, NEEDED)

    def check_weights(self) -> None:
        """The same for weights: OSError when groups have none here."""
        if self.hierarchies.cpu is None:
            raise FileNotFoundError(errno.ENOENT, "there is no cgroup with the cpu controller that is ours to write")
        self._check(self.hierarchies.cpu, WEIGHTS)

    def _check(self, root: Path, controllers: set[str]) -> None:
        written = [root]
        if self.hierarchies.version == 2 and not _is_handed_down(root, controllers):
            written += [root / "cgroup.subtree_control"]
            # The kernel's rule for every group but the first: either processes or groups with controllers.
            if (root / "cgroup.type").exists() and (root / "cgroup.procs").read_text().strip():
                raise OSError(errno.EBUSY, "has processes of its own and so cannot hand its controllers down", str(root))
        for path in written:
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "is not ours to write", str(path))

    def prepare(self) -> None:
        """Make the parent group; OSError when this machine does not let us. Without weights where it lets us do all else."""
        for root in self.hierarchies.needed:
            self._prepare(root, NEEDED)
        if self.hierarchies.cpu is not None:
            try:
                self._prepare(self.hierarchies.cpu, WEIGHTS)
            except OSError:
                self.hierarchies = replace(self.hierarchies, cpu=None)

    def _prepare(self, root: Path, controllers: set[str]) -> None:
        if self.hierarchies.version == 2:
            _hand_down(root, controllers)
        (root / self._parent).mkdir(exist_ok=True)
        if self.hierarchies.version == 2:
            _hand_down(root / self._parent, controllers)
        if not os.access(root / self._parent / "cgroup.procs", os.W_OK):
            raise PermissionError(f"{root / self._parent} is not ours to write")

    @property
    def has_weights(self) -> bool:
        """Known after `prepare`."""
        return self.hierarchies.cpu is not None

    def make(self, name: str, limits: Limits | None, *, cpu_weight: int = CPU_WEIGHT) -> list[Path]:
        """The files that a process writes itself into to belong to this group."""
        doors: list[Path] = []
        for root in self.hierarchies.roots:
            (root / self._parent / name).mkdir(exist_ok=True)
            doors.append(root / self._parent / name / "cgroup.procs")
        if self.hierarchies.cpu is not None:
            cpu = self.hierarchies.cpu / self._parent / name
            if self.hierarchies.version == 2:
                (cpu / "cpu.weight").write_text(str(cpu_weight))
            else:
                (cpu / "cpu.shares").write_text(str(max(FEWEST_SHARES, round(cpu_weight * SHARES_PER_WEIGHT))))
        if limits is not None:
            memory = self.hierarchies.memory / self._parent / name
            processes = self.hierarchies.processes / self._parent / name
            (processes / "pids.max").write_text(str(limits.processes))
            if self.hierarchies.version == 2:
                (memory / "memory.max").write_text(str(limits.memory_bytes))
                for optional, value in (("memory.swap.max", "0"), ("memory.oom.group", "0")):
                    with contextlib.suppress(OSError):
                        (memory / optional).write_text(value)
            else:
                (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
                with contextlib.suppress(OSError):  # without it a workspace may swap as much again
                    (memory / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))
        return doors

    def members(self, name: str) -> set[int]:
        found: set[int] = set()
        for root in self.hierarchies.roots:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (root / self._parent / name / "cgroup.procs").read_text().split()}
        return found

    def cpu_s(self, name: str) -> float | None:
        """The CPU seconds of all that ever ran in the group; None where this version does not count them in its hierarchies."""
        with contextlib.suppress(OSError, LookupError, ValueError):
            lines = (self.hierarchies.processes / self._parent / name / "cpu.stat").read_text().splitlines()
            return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6
        return None

    def _is_member(self, name: str, pid: int) -> bool:
        """Asked of the process: by now the number may be that of another."""
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            return any(line.endswith(f"/{self._parent}/{name}") for line in lines)
        return False

    def end(self, name: str, *, within_s: float = 10.0) -> bool:
        """Kill everything in the group and remove it. What cannot fork cannot run away, so this comes to an end."""
        deadline = time.monotonic() + within_s
        with contextlib.suppress(OSError):
            (self.hierarchies.processes / self._parent / name / "pids.max").write_text("0")
        while members := self.members(name):
            with contextlib.suppress(OSError):
                (self.hierarchies.processes / self._parent / name / "cgroup.kill").write_text("1")
            for pid in members - {0}:
                processes.send(pid, signal.SIGKILL, if_still=partial(self._is_member, name, pid))
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return self._remove(name, deadline)

    def _remove(self, name: str, deadline: float) -> bool:
        for root in self.hierarchies.roots:
            while True:
                try:
                    (root / self._parent / name).rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # the last process is still on its way out
                    if time.monotonic() > deadline:
                        return False
                    time.sleep(0.002)
                else:
                    break
        return True

    def names(self) -> set[str]:
        found: set[str] = set()
        for root in self.hierarchies.roots:
            with contextlib.suppress(OSError):
                found |= {path.name for path in (root / self._parent).iterdir() if path.is_dir()}
        return found

    def sweep(self) -> None:
        for name in self.names():
            self.end(name)

    def remove(self) -> None:
        self.sweep()
        for root in self.hierarchies.roots:
            with contextlib.suppress(OSError):
                (root / self._parent).rmdir()


def _hand_down(group: Path, controllers: set[str]) -> None:
    if not _is_handed_down(group, controllers):
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in sorted(controllers)))


def _is_handed_down(group: Path, controllers: set[str]) -> bool:
    return controllers <= set((group / "cgroup.subtree_control").read_text().split())
