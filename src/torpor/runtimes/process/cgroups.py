"""Limit the memory, processes and CPU of containers and jobs with cgroups, and kill all their processes.

This data directory has one parent group, with one group for each container and each job. Version 1 has a hierarchy for each
controller, version 2 one for all; in both a group is a few directories. Everything here takes microseconds, except `end`,
which waits for the kernel: call it in a thread.
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
"""For version 1, where the default is 1024 shares."""
FEWEST_SHARES = 2
PERIOD_US = 100_000
FEWEST_QUOTA_US = 1_000
"""The limits of the kernel."""
MEMORY_FILES = {1: ("memory.usage_in_bytes", "total_inactive_file"), 2: ("memory.current", "inactive_file")}
"""By version: the file with the memory in use, and the field of memory.stat with the file pages that can be dropped."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mount points of the controllers; a process joins a group in each."""

    version: int
    memory: Path
    processes: Path
    cpu: Path | None = None
    """None if groups cannot have a weight; limits do not need it."""

    @property
    def needed(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.memory, self.processes)))

    @property
    def roots(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((*self.needed, *([self.cpu] if self.cpu else []))))


def find(mounts: Path = MOUNTS) -> Hierarchies | None:
    """Find them in the kernel's list of mounts. If a machine has both versions, version 1 has the controllers."""
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
        """Raise OSError if `prepare` would fail; change no group."""
        for root in self.hierarchies.needed:
            self._check(root, NEEDED)

    def check_weights(self) -> None:
        """Raise OSError if groups cannot have weights."""
        if self.hierarchies.cpu is None:
            raise FileNotFoundError(errno.ENOENT, "there is no writable cgroup with the cpu controller")
        self._check(self.hierarchies.cpu, WEIGHTS)

    def _check(self, root: Path, controllers: set[str]) -> None:
        written = [root]
        if self.hierarchies.version == 2 and not _is_handed_down(root, controllers):
            written += [root / "cgroup.subtree_control"]
            # A rule of the kernel for every group except the root: it has either processes or groups with controllers.
            if (root / "cgroup.type").exists() and (root / "cgroup.procs").read_text().strip():
                raise OSError(errno.EBUSY, "contains processes, so it cannot delegate its controllers", str(root))
        for path in written:
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable", str(path))

    def prepare(self) -> None:
        """Create the parent group; OSError if that is not permitted. Continues without weights if only those fail."""
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
            raise PermissionError(f"{root / self._parent} is not writable")

    @property
    def has_weights(self) -> bool:
        """Known after `prepare`."""
        return self.hierarchies.cpu is not None

    def make(self, name: str, limits: Limits | None, *, cpu_weight: int = CPU_WEIGHT) -> list[Path]:
        """Create a group. Return the files that a process writes its id to, in order to join."""
        files: list[Path] = []
        for root in self.hierarchies.roots:
            (root / self._parent / name).mkdir(exist_ok=True)
            files.append(root / self._parent / name / "cgroup.procs")
        if self.hierarchies.cpu is not None:
            cpu = self.hierarchies.cpu / self._parent / name
            if self.hierarchies.version == 2:
                (cpu / "cpu.weight").write_text(str(cpu_weight))
            else:
                (cpu / "cpu.shares").write_text(str(max(FEWEST_SHARES, round(cpu_weight * SHARES_PER_WEIGHT))))
            self._limit_cores(cpu, limits)
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
                with contextlib.suppress(OSError):  # without it a workspace can use the same amount of swap
                    (memory / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))
        return files

    def _limit_cores(self, group: Path, limits: Limits | None) -> None:
        """Without a limit nothing is written: a kernel may lack quotas (CONFIG_CFS_BANDWIDTH)."""
        if limits is None or limits.cpu_cores is None:
            return
        quota_us = max(FEWEST_QUOTA_US, round(limits.cpu_cores * PERIOD_US))
        if self.hierarchies.version == 2:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))

    def members(self, name: str) -> set[int]:
        found: set[int] = set()
        for root in self.hierarchies.roots:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (root / self._parent / name / "cgroup.procs").read_text().split()}
        return found

    def cpu_s(self, name: str) -> float | None:
        """The CPU seconds of all processes that ran in the group; None if these hierarchies do not count them."""
        with contextlib.suppress(OSError, LookupError, ValueError):
            lines = (self.hierarchies.processes / self._parent / name / "cpu.stat").read_text().splitlines()
            return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6
        return None

    def memory_bytes(self, name: str) -> int | None:
        """The memory of all processes in the group, without file pages that the kernel can drop; None when it has no group."""
        usage, inactive = MEMORY_FILES[self.hierarchies.version]
        group = self.hierarchies.memory / self._parent / name
        with contextlib.suppress(OSError, LookupError, ValueError):
            counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return max(0, int((group / usage).read_text()) - int(counts[inactive]))
        return None

    def _is_member(self, name: str, pid: int) -> bool:
        """Check /proc/PID, since the pid may belong to another process by now."""
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            return any(line.endswith(f"/{self._parent}/{name}") for line in lines)
        return False

    def end(self, name: str, *, within_s: float = 10.0) -> bool:
        """Kill all processes of the group and remove it. With pids.max 0 they cannot fork, so this terminates."""
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
                except OSError:  # the last process has not ended yet
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
