"""Find a program's failed closes with strace."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

TRACER = ("strace", "-D", "-f", "-q", "--seccomp-bpf", "-e", "trace=close,clone,clone3", "-o")
# Only threads have a place for their pid in the parent; forks have none.
THREAD_BEGUN = re.compile(r"^(\d+) +.*\bclone3?\b.*parent_tid=\[(\d+)\]")
CLOSE_FAILED = re.compile(r"^(\d+) +.*\bclose\b.* = -1 EBADF")


def strace(output: Path, *, delay_us: int = 0) -> tuple[str, ...]:
    """The arguments before a command that write its closes to `output`. The tracer is its child, so signals reach the
    command.

    `delay_us`: every close takes this much longer, so that other threads have time to open files.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    tried = subprocess.run((*TRACER, "/dev/null", "true"), capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode != 0:
        pytest.skip(f"strace cannot trace on this machine: {tried.stderr.strip()}")
    slower = ("-e", f"inject=close:delay_exit={delay_us}") if delay_us else ()
    return (*TRACER, str(output), *slower)


def failed_closes(output: Path) -> list[str]:
    """Of the program and its threads, without its children."""
    lines = _written(output)
    threads, failed = {lines[0].split()[0]}, []
    for line in lines:
        if (begun := THREAD_BEGUN.match(line)) and begun[1] in threads:
            threads.add(begun[2])
        if (close := CLOSE_FAILED.match(line)) and close[1] in threads:
            failed.append(line)
    return failed


def _written(output: Path) -> list[str]:
    """All lines: the tracer may write the last ones after the program has ended."""
    return wait_until(lambda: _lines_to_the_end(output), every_s=0.05, otherwise=lambda: "strace writes no end of the program")


def _lines_to_the_end(output: Path) -> list[str] | None:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines() if output.exists() else []
    pid = lines[0].split()[0] if lines else ""
    return lines if any(line.split()[:2] == [pid, "+++"] for line in lines) else None
