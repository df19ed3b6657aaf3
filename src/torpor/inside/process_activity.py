"""Read the CPU time of a container's processes, and the foreground command of each of its terminals.

The kernel has these facts. Torpor uses this module outside of containers, too. Everything here blocks.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat, counted from the state.
GROUP_TO_FOREGROUND = slice(2, 6)
"""Group, session, terminal, and the terminal's foreground group."""
CPU_TIMES = slice(11, 15)
"""User and kernel time, of the process and of its ended children."""
RESIDENT_PAGES = 21
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LONGEST_COMMAND_BYTES = 4096


class TerminalCommand(NamedTuple):
    """The foreground command of a terminal; the fields of `torpor.domain.busy.Foreground`."""

    terminal: int
    group: int
    command: str
    cpu_s: float
    quiet_s: float | None


class _Process(NamedTuple):
    group: int
    session: int
    terminal: int
    foreground_group: int
    cpu_s: float


def cpu_and_foregrounds(pids: Iterable[int]) -> tuple[float, tuple[TerminalCommand, ...]]:
    """Return the CPU seconds of these processes, and the foreground commands of their terminals."""
    processes = {pid: process for pid in pids if (process := _process(pid)) is not None}
    leaders = [pid for pid, process in processes.items() if pid == process.session and process.terminal]
    found = [one for leader in sorted(leaders) if (one := _foreground(leader, processes)) is not None]
    return sum(process.cpu_s for process in processes.values()), tuple(found)


def resident_bytes(pids: Iterable[int]) -> int:
    """The resident memory of these processes. Memory that processes share is counted for each of them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int(stat_fields(pid)[RESIDENT_PAGES]) * PAGE_BYTES
    return total


def _process(pid: int) -> _Process | None:
    """None if it has ended."""
    try:
        fields = stat_fields(pid)
        group, session, terminal, foreground_group = map(int, fields[GROUP_TO_FOREGROUND])
        return _Process(group, session, terminal, foreground_group, sum(map(int, fields[CPU_TIMES])) / TICKS_PER_S)
    except (OSError, IndexError, ValueError):
        return None


def _foreground(leader: int, processes: Mapping[int, _Process]) -> TerminalCommand | None:
    """The foreground command in the terminal of this session; None if it is the shell."""
    shell = processes[leader]
    group = shell.foreground_group
    members = [pid for pid, process in processes.items() if (process.session, process.group) == (leader, group)]
    if group == shell.group or not members:
        return None
    first = group if group in members else min(members)
    cpu_s = sum(processes[pid].cpu_s for pid in members)
    return TerminalCommand(shell.terminal, group, _command(first), cpu_s, _quiet_s(leader, shell.terminal))


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/cmdline").open("rb") as file:
        return file.read(LONGEST_COMMAND_BYTES).rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return "?"


def _quiet_s(leader: int, terminal: int) -> float | None:
    """Seconds since the terminal's last input (its access time) or output (its modification time), exact to eight seconds."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{leader}/fd"):  # noqa: PTH208
            facts = os.stat(f"/proc/{leader}/fd/{name}")  # noqa: PTH116
            if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == terminal:
                return time.time() - max(facts.st_atime, facts.st_mtime)
    return None


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: the name before them may contain spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
