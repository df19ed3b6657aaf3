"""Is a `torpor up` at work in this data directory, and which process is it?

It holds a lock on its pid file for as long as it lives, so a file that a crash left behind deceives nobody.
"""

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from torpor.cli.exit_codes import CommandError, ExitCode

PID_FILE = "torpor.pid"


def running_pid(data: Path) -> int | None:
    """The process at work here, None when there is none."""
    path = data / PID_FILE
    try:
        with path.open(encoding="utf-8") as file:
            return None if _lock(file) else _pid_in(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_torpor(argv: Sequence[str]) -> bool:
    """Whether a process with these arguments is a `torpor up`: a pid may have gone to somebody else."""
    return "up" in argv and any(Path(word).name == "torpor" for word in argv[: argv.index("up")])


def argv_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def already_running(data: Path, pid: int | None) -> CommandError:
    who = f" (process {pid})" if pid else ""
    return CommandError(
        ExitCode.REFUSED, f"torpor is already up in {data}{who}", code="already_up", advice="`torpor down` stops it"
    )


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(path: Path) -> int | None:
    text = path.read_text(encoding="utf-8").strip()
    return int(text) if text.isdecimal() else None
