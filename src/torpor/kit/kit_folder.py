"""Keep complete kits in a folder of the data directory, one for each content hash, and build one when it is missing.

    {hash}/          a complete kit: the folder gets this name when all is written
    current.json     which kit belongs to the files of this machine
    building.{pid}/  a kit that is being built or removed; it never counts, and the next build removes it
    lock             held by the process that builds

Everything here blocks: call it in a thread.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from torpor import atomic_file
from torpor.domain.errors import Hopeless
from torpor.file_lock import PidLock
from torpor.kit import manifest
from torpor.kit.build import Progress, build
from torpor.kit.contents import KitContents, contents_here
from torpor.kit.manifest import Kit
from torpor.paths import KIT_FOLDER

CURRENT = "current.json"
LOCK = "lock"
BUILDING = "building."
KEPT = 2
"""The current kit and the one before it, which an older process of Torpor may still read."""
LOCK_TIMEOUT_S = 600.0
LOCK_POLL_S = 0.1
FOLDER_MODE = 0o755


def ensure_kit(data: Path, environ: Mapping[str, str], progress: Progress) -> Kit:
    """The kit of this interpreter and this version of Torpor, built if it is missing or damaged; Hopeless if that fails."""
    folder = data / KIT_FOLDER
    contents = contents_here(environ)
    try:
        return _find(folder, contents) or _build(folder, contents, progress)
    except OSError as error:
        raise Hopeless(f"the kit cannot be built in {folder}: {error}") from error


def current_kit(data: Path) -> Kit | None:
    """The kit that was built last; None if there is none. It may be older than this version of Torpor."""
    folder = data / KIT_FOLDER
    name = _current(folder).get("kit")
    return manifest.load(folder / name) if name else None


def _find(folder: Path, contents: KitContents) -> Kit | None:
    """The kit of these contents, after a check of all its files: what is copied from it must have its hash."""
    current = _current(folder)
    if current.get("state") != _state_of(contents):
        return None
    kit = manifest.load(folder / current["kit"])
    return kit if kit is not None and manifest.is_intact(kit) else None


def _current(folder: Path) -> Mapping[str, str]:
    try:
        read = json.loads((folder / CURRENT).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _state_of(contents: KitContents) -> str:
    """Another value if any file that the kit is made of has changed. Reads no file."""
    lines = [str(manifest.FORMAT), contents.loader, *map(str, sorted(contents.facts.items()))]
    return hashlib.sha256("\n".join([*lines, *(file.state for file in contents.files)]).encode()).hexdigest()


def _build(folder: Path, contents: KitContents, progress: Progress) -> Kit:
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    with _locked(folder):
        # Another process may have built it while this one waited.
        if (kit := _find(folder, contents)) is not None:
            return kit
        _remove_unfinished(folder)
        kit = _build_aside(folder, contents, progress)
        content = json.dumps({"state": _state_of(contents), "kit": kit.path.name}, indent=2) + "\n"
        atomic_file.write(folder / CURRENT, content.encode(), mode=0o644)
        _remove_old(folder, kit)
        return kit


def _build_aside(folder: Path, contents: KitContents, progress: Progress) -> Kit:
    aside = folder / f"{BUILDING}{os.getpid()}"
    aside.mkdir(mode=FOLDER_MODE)
    try:
        built = build(contents, aside, progress)
        target = folder / built.hash
        known = manifest.load(target)
        if known is not None and manifest.is_intact(known):
            return known
        # A folder with this name counts as complete, so its content must be on disk before it gets the name.
        atomic_file.sync_file_system(aside)
        if target.exists():
            target.rename(folder / f"{BUILDING}damaged.{os.getpid()}")
        aside.rename(target)
        atomic_file.sync_directory(folder)
        return Kit(target, built)
    finally:
        _remove_unfinished(folder)


def _remove_unfinished(folder: Path) -> None:
    for path in folder.glob(f"{BUILDING}*"):
        shutil.rmtree(path)


def _remove_old(folder: Path, kit: Kit) -> None:
    others = [path for path in folder.iterdir() if path.is_dir() and path != kit.path]
    others.sort(key=lambda path: path.stat().st_ctime, reverse=True)
    for path in others[KEPT - 1 :]:
        # First the name: a kit that is half removed does not count either.
        aside = path.rename(folder / f"{BUILDING}{path.name}")
        shutil.rmtree(aside)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process builds."""
    lock = PidLock(folder / LOCK, mode=0o600)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while not lock.take():
            if time.monotonic() >= deadline:
                raise Hopeless(
                    f"the kit cannot be built: process {lock.holder or 'unknown'} has been building it"
                    f" for {LOCK_TIMEOUT_S:g} s; end that process, and try again"
                )
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        lock.close()
