"""Read and write the small files beside a home: its marker, the revision it was opened with, the newest epoch.

Until the home is complete, the volume has the file `half-made` instead of a marker; a rename turns it into the marker. The
other files are read as a value, as None if the file does not exist, or as `UnreadableFile`: one damaged file concerns only one
workspace, and the caller decides what it means. Unavailable is raised only if this process lacks resources to read. Everything
here blocks.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torpor import atomic_file
from torpor.domain.errors import Unavailable
from torpor.domain.records import Marker

T = TypeVar("T")

MARKER, OPENED, EPOCH = "marker.json", "opened.json", "epoch.json"
HALF_MADE = "half-made"
EPOCH_ASIDE = ".epoch.aside"

PROCESS_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of this process, not of the file."""
IS_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
MOST_BYTES = 4096
# The database stores epochs as 64-bit numbers, and the next one must fit, too.
MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file or directory that exists but cannot be read or has invalid content."""

    path: Path
    why: str


def read_marker(volume: Path) -> Marker | UnreadableFile | None:
    return _read(
        volume / MARKER,
        lambda facts: Marker(_text(facts, "workspace_id"), _number(facts, "generation"), _text(facts, "manifest_root")),
    )


def read_opened(volume: Path) -> int | UnreadableFile | None:
    return _read(volume / OPENED, lambda facts: _number(facts, "revision"))


def read_epoch(volume: Path) -> int | UnreadableFile | None:
    return _read(volume / EPOCH, lambda facts: _number(facts, "epoch"))


def is_half_made(volume: Path) -> bool:
    """Whether the file `half-made` exists, or the volume is empty. A volume that lost its small files is not half-made."""
    try:
        names = set(os.listdir(volume))  # noqa: PTH208
    except OSError as error:
        _unreadable(error, volume)
        return False
    return names <= {EPOCH, EPOCH_ASIDE} or (HALF_MADE in names and not names & {MARKER, OPENED})


def directory_exists(path: Path) -> bool | UnreadableFile:
    """Whether it exists; UnreadableFile if that cannot be determined."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return False if error.errno in IS_MISSING else _unreadable(error, path)


def is_empty_folder(path: Path) -> bool:
    """Also False if that cannot be determined."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def write_half_made(volume: Path) -> None:
    (volume / HALF_MADE).touch()


def write_marker(volume: Path, marker: Marker) -> None:
    facts = {"workspace_id": marker.workspace_id, "generation": marker.generation, "manifest_root": marker.manifest_root}
    content = json.dumps(facts).encode()
    if not (volume / HALF_MADE).exists():
        atomic_file.write(volume / MARKER, content)
        return
    atomic_file.write(volume / HALF_MADE, content)
    (volume / HALF_MADE).replace(volume / MARKER)
    atomic_file.sync_directory(volume)


def write_opened(volume: Path, revision: int) -> None:
    atomic_file.write(volume / OPENED, json.dumps({"revision": revision}).encode())


def write_epoch(volume: Path, epoch: int) -> None:
    """Not flushed, and errors are ignored: a power failure also ends all older controllers."""
    with contextlib.suppress(OSError):
        content = json.dumps({"epoch": epoch}).encode()
        atomic_file.write(volume / EPOCH, content, partial=volume / EPOCH_ASIDE, sync=False)


def _read(path: Path, parse: Callable[[Mapping[str, Any]], T]) -> T | UnreadableFile | None:
    try:
        facts = json.loads(_content(path))
        if not isinstance(facts, dict):
            return UnreadableFile(path, "it is not a JSON object")
        return parse(facts)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _unreadable(error, path)
    except RecursionError:
        return UnreadableFile(path, "it is nested too deeply")
    except ValueError as error:
        return UnreadableFile(path, str(error))


def _unreadable(error: OSError, path: Path) -> UnreadableFile:
    """Translate an error to UnreadableFile; raise Unavailable if the process lacks resources."""
    if error.errno in PROCESS_ERRORS:
        raise Unavailable(f"cannot read {path} now: {error.strerror}") from error
    return UnreadableFile(path, error.strerror or str(error))


def _content(path: Path) -> bytes:
    # Without O_NONBLOCK, opening a named pipe at this path would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return content


def _number(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        raise ValueError(f"{name} is not a number from 0 to {MOST - 1}")
    return value


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")  # noqa: TRY004 - invalid content, as above
    return value
