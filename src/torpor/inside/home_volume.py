"""Prepare the volume of a home, and check that the mounted volume is the expected one.

A volume has the folders `home` and `.torpor`; the latter has the volume's birth, a random word, and the marker. Only the first
container that uses a volume may create them: later, a volume without its birth is not this home, but another or an empty one.
"""

import json
import os
from pathlib import Path
from typing import Any

HOME, OWN, BIRTH, MARKER = "home", ".torpor", "birth", "marker.json"
HOME_MODE = 0o700
FROM_FILE_SYSTEM = frozenset({"lost+found"})
"""Folders that a new file system has."""


class WrongVolume(Exception):
    """The mounted volume is not the expected home."""


def prepare_volume(volume: Path, birth: str, *, is_made: bool) -> None:
    """The volume has its folders and this birth; WrongVolume if it is another one. Repeating it changes nothing."""
    file = volume / OWN / BIRTH
    try:
        found = file.read_text()
    except FileNotFoundError:
        if is_made:
            raise WrongVolume(f"the mounted volume is not this home: {file} is missing") from None
        _make(volume, birth)
        return
    if found != birth:
        raise WrongVolume(f"the mounted volume is another home: {file} says {found!r}, not {birth!r}")
    if not (volume / HOME).is_dir():
        raise WrongVolume(f"the folder of the home is missing: {volume / HOME}")


def _make(volume: Path, birth: str) -> None:
    home = volume / HOME
    strange = {path.name for path in volume.iterdir()} - {HOME, OWN} - FROM_FILE_SYSTEM
    if strange or (home.is_dir() and any(home.iterdir())):
        named = ", ".join(sorted(strange)) or HOME
        raise WrongVolume(f"the new volume is not empty: it has {named}; save these files, and empty the volume")
    home.mkdir(exist_ok=True)
    home.chmod(HOME_MODE)  # also without the bit that a folder inherits from a volume with a group
    (volume / OWN).mkdir(exist_ok=True)
    (volume / OWN).chmod(0o755)
    write_synced(volume / OWN / BIRTH, birth.encode())
    sync_folder(volume)


def write_marker(volume: Path, marker: dict[str, Any]) -> None:
    """The volume has this marker, durably."""
    file, content = volume / OWN / MARKER, json.dumps(marker).encode()
    if not file.exists() or file.read_bytes() != content:
        write_synced(file, content)


def write_synced(file: Path, content: bytes) -> None:
    """Replace the file at once, durably."""
    new = file.with_name(f"{file.name}.new")
    with new.open("wb") as writing:
        writing.write(content)
        writing.flush()
        os.fsync(writing.fileno())
    new.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
