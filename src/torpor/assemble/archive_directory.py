"""Find out whether the archive directory of a data directory is new, present or lost.

The first start makes the directory before anything else. If it is missing later, the archived homes were in it; an empty
directory in its place would hide the loss.
"""

from enum import Enum
from pathlib import Path

from torpor.domain.errors import Refused
from torpor.runtimes.process.paths import runtime_paths

NAME = "archives"
ADVICE = (
    "mount it or restore it from a backup, then start again; if this installation keeps its archives elsewhere, "
    "set TORPOR_ARCHIVE_URL"
)


class ArchiveDirectory(Enum):
    NEW = "new"
    """This data directory was never used."""
    PRESENT = "present"
    LOST = "lost"


def inspect(data: Path) -> ArchiveDirectory:
    if (data / NAME).exists():
        return ArchiveDirectory.PRESENT
    traces = (data / "postgres", runtime_paths(data).known_identity)
    return ArchiveDirectory.LOST if any(trace.exists() for trace in traces) else ArchiveDirectory.NEW


def missing_message(data: Path) -> str:
    return f"the archive directory {data / NAME} is missing, and this installation has run before"


def ensure(data: Path) -> None:
    """Make the directory on a first start; refuse a data directory that has lost it."""
    if inspect(data) is ArchiveDirectory.LOST:
        raise Refused("archives_lost", f"{missing_message(data)}; {ADVICE}")
    try:
        (data / NAME).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused("bad_data", f"the data directory {data} cannot be used: {error.strerror}") from error
