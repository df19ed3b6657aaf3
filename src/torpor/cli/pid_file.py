"""Find the process of a `torpor up` in a data directory.

The process holds a lock on its pid file while it runs, so a file that remains after a crash is recognised.
"""

from collections.abc import Sequence
from pathlib import Path

from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.file_lock import try_lock
from torpor.paths import PID_FILE


def running_pid(data: Path) -> int | None:
    """The process that runs here, or None."""
    path = data / PID_FILE
    try:
        with path.open(encoding="utf-8") as file:
            return None if try_lock(file) else _pid_in(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_torpor(argv: Sequence[str]) -> bool:
    """Whether these arguments are those of a `torpor up`: a pid may belong to another program by now."""
    return "up" in argv and any(Path(word).name == "torpor" for word in argv[: argv.index("up")])


def argv_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def already_running(data: Path, pid: int | None) -> CommandError:
    who = f" (process {pid})" if pid else ""
    return CommandError(
        ExitCode.REFUSED, f"torpor is already running in {data}{who}", code="already_up", advice="`torpor down` stops it"
    )


def _pid_in(path: Path) -> int | None:
    text = path.read_text(encoding="utf-8").strip()
    return int(text) if text.isdecimal() else None
