"""Restore a home from an archive.

Paths come only from the manifest, and the data is compared with it while it is read (`torpor.archives.proof`). Everything is
created relative to open directories that this code has created, so a link cannot lead out of the home.
"""

import contextlib
import ctypes
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torpor.archives.entries import HOME, ArchiveMismatch, Entry, EntryKind
from torpor.archives.file_errors import RESTORING, FileErrors
from torpor.archives.manifest import Manifest, fetch
from torpor.archives.progress_meter import Meter
from torpor.archives.proof import contents
from torpor.archives.store import PAUSES_S, ArchiveStore, ObjectMissing
from torpor.archives.tree import Walk, is_kept
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

Answer = TypeVar("Answer")

HOLE_BYTES = 1 << 16
ZEROS = bytes(HOLE_BYTES)
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def find(place: ArchiveStore, key: ArchiveKey) -> Manifest:
    """The manifest of the archive to restore."""

    def find_once() -> Manifest:
        manifest = fetch(place, key)
        if manifest is None:
            raise ObjectMissing(f"there is no finished archive {key}", archive=str(key))
        return manifest

    with judged(key):
        return place.confirmed(find_once)


def unpack(place: ArchiveStore, manifest: Manifest, home: Path, done: Meter) -> None:
    """Make the home equal to the archive and sync it. Files of an earlier try are removed first."""
    with judged(manifest.head.key):
        try:
            _unpack_once(place, manifest, home, done)
        except ArchiveMismatch:
            # Everything is read again, also the manifest: a network can damage an answer.
            manifest = find(place, manifest.head.key)
            _unpack_once(place, manifest, home, done)
    _compare(manifest, home)


def _unpack_once(place: ArchiveStore, manifest: Manifest, home: Path, done: Meter) -> None:
    with FileErrors(RESTORING, home), contextlib.closing(_Target(home)) as target:
        target.clear()
        for entry, content in contents(place, manifest, done):
            with FileErrors(RESTORING, entry.path):
                target.put(entry, content)
            if entry.kind in (EntryKind.FILE, EntryKind.HARDLINK):
                done.count_files()
        target.finish(manifest.head.home.mtime_ns)
        target.sync()


def _compare(manifest: Manifest, home: Path) -> None:
    """Compare the restored entries with the manifest. Contents were hashed while they were written."""
    walk = Walk(home)
    shown = iter(walk)
    for entry in manifest.entries():
        found = next(shown, None)
        if found is None:
            raise Failed(Code.TAR_EXTRACT_FAILED, f"{entry.path!r} is missing after it was restored", path=entry.path)
        there = replace(found.entry, sha256=entry.sha256)
        if there != entry:
            different = [name for name in Entry.__slots__ if getattr(there, name) != getattr(entry, name)]
            message = f"the home's file system shows another {', '.join(different)} for {entry.path!r} than the archive has"
            raise Failed(Code.TAR_EXTRACT_FAILED, message, path=entry.path)
    if next(shown, None) is not None or walk.skipped.count:
        raise Failed(Code.TAR_EXTRACT_FAILED, "another process wrote to the home while it was restored")


@dataclass(slots=True)
class _OpenDirectory:
    """A directory in progress; its mode and times are set at the end."""

    fd: int
    entry: Entry | None


class _Target:
    """A home being filled, in the order of the manifest."""

    def __init__(self, home: Path) -> None:
        self._levels = [_OpenDirectory(os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), None)]
        owner = os.fstat(self._levels[0].fd)
        self._uid, self._gid = owner.st_uid, owner.st_gid

    def close(self) -> None:
        while self._levels:
            os.close(self._levels.pop().fd)

    def clear(self) -> None:
        clear_home(self._levels[0].fd)

    def put(self, entry: Entry, content: Iterator[memoryview]) -> None:
        if entry.path == HOME:
            self._levels[0].entry = entry
            return
        *above, name = entry.path.split("/")
        while len(self._levels) > len(above) + 1:
            self._leave()
        directory = self._levels[-1].fd
        match entry.kind:
            case EntryKind.DIRECTORY:
                os.mkdir(name, stat.S_IRWXU, dir_fd=directory)
                self._levels.append(_OpenDirectory(os.open(name, OPEN_DIRECTORY, dir_fd=directory), entry))
            case EntryKind.FILE:
                fd = os.open(name, NEW_FILE, stat.S_IRUSR | stat.S_IWUSR, dir_fd=directory)
                try:
                    _write(fd, entry.size, content)
                    self._dress(fd, entry, entry.mtime_ns or 0)
                finally:
                    os.close(fd)
            case EntryKind.SYMLINK:
                os.symlink(entry.target, name, dir_fd=directory)
                self._dress_in(directory, name, entry)
            case EntryKind.FIFO:
                os.mkfifo(name, stat.S_IRUSR | stat.S_IWUSR, dir_fd=directory)
                self._dress_in(directory, name, entry)
                os.chmod(name, entry.mode, dir_fd=directory)
            case EntryKind.HARDLINK:
                self._link(entry, directory, name)

    def finish(self, home_mtime_ns: int) -> None:
        while len(self._levels) > 1:
            self._leave()
        home = self._levels[0]
        assert home.entry is not None
        self._dress(home.fd, home.entry, home_mtime_ns)

    def sync(self) -> None:
        sync_home(self._levels[0].fd)

    def _leave(self) -> None:
        level = self._levels.pop()
        try:
            assert level.entry is not None
            with FileErrors(RESTORING, level.entry.path):
                self._dress(level.fd, level.entry, level.entry.mtime_ns or 0)
        finally:
            os.close(level.fd)

    def _owner(self, entry: Entry) -> tuple[int, int]:
        return self._uid if entry.uid == "home" else entry.uid, self._gid if entry.gid == "home" else entry.gid

    def _dress(self, fd: int, entry: Entry, mtime_ns: int) -> None:
        # The order matters: a change of owner clears setuid bits and capabilities, and every change sets the times.
        seen = os.fstat(fd)
        if (seen.st_uid, seen.st_gid) != self._owner(entry):
            os.fchown(fd, *self._owner(entry))
        for name, value in entry.xattrs.items():
            os.setxattr(fd, name, value)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def _dress_in(self, directory: int, name: str, entry: Entry) -> None:
        """For links and pipes, which cannot be opened."""
        seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (seen.st_uid, seen.st_gid) != self._owner(entry):
            uid, gid = self._owner(entry)
            os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
        for attribute, value in entry.xattrs.items():
            os.setxattr(f"/proc/self/fd/{directory}/{name}", attribute, value, follow_symlinks=False)
        times = (entry.mtime_ns or 0, entry.mtime_ns or 0)
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)

    def _link(self, entry: Entry, directory: int, name: str) -> None:
        *above, last = entry.target.split("/")
        if any(step in ("", ".", "..") for step in (*above, last)):
            raise ArchiveMismatch(f"the manifest has a hard link that leads out of the home: {entry.path!r}", path=entry.path)
        with contextlib.ExitStack() as way:
            fd = self._levels[0].fd
            for step in above:
                fd = way.enter_context(_entered(fd, step))
            os.link(last, name, src_dir_fd=fd, dst_dir_fd=directory, follow_symlinks=False)


@contextlib.contextmanager
def _entered(directory: int, name: str) -> Iterator[int]:
    """Open a directory that may be finished, and unreadable even for its owner: the permission is added for a moment."""
    seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
    mode, wanted = stat.S_IMODE(seen.st_mode), stat.S_IRUSR | stat.S_IXUSR
    is_lent = stat.S_ISDIR(seen.st_mode) and mode & wanted != wanted and os.geteuid() == seen.st_uid != 0
    if is_lent:
        os.chmod(name, mode | wanted, dir_fd=directory)
    fd = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
    try:
        yield fd
    finally:
        if is_lent:
            os.fchmod(fd, mode)
        os.close(fd)


def _write(fd: int, size: int, content: Iterator[memoryview]) -> None:
    offset = 0
    for piece in content:
        write_sparse(fd, piece, offset)
        offset += len(piece)
    if size >= HOLE_BYTES:
        os.ftruncate(fd, size)


def write_sparse(fd: int, piece: memoryview, offset: int) -> None:
    """Long runs of zeros become holes. A file that ends with one must be extended to its size afterwards."""
    start = 0
    for block in range(0, len(piece) - HOLE_BYTES + 1, HOLE_BYTES):
        if not piece[block] and piece[block : block + HOLE_BYTES] == ZEROS:
            _write_all(fd, piece[start:block], offset + start)
            start = block + HOLE_BYTES
    _write_all(fd, piece[start:], offset + start)


def _write_all(fd: int, piece: memoryview, offset: int) -> None:
    while piece:
        written = os.pwrite(fd, piece, offset)
        piece, offset = piece[written:], offset + written


def sync_home(home: int) -> None:
    """Sync the file system with one call, before the home counts as complete."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(home) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def clear_home(home: int) -> None:
    """Remove what an earlier try left, and the attributes of the home."""
    os.fchmod(home, stat.S_IRWXU)
    _clear(home)
    # A default ACL would be inherited by everything that is made here.
    with contextlib.suppress(OSError):
        for name in os.listxattr(home):
            if is_kept(name):
                os.removexattr(home, name)


def _clear(home: int) -> None:
    """Remove everything in this directory, at any depth, without following links."""
    levels: list[tuple[int, str, Iterator[str]]] = [(home, "", iter(os.listdir(home)))]
    try:
        while levels:
            directory, own_name, names = levels[-1]
            for name in names:
                seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISDIR(seen.st_mode):
                    if seen.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                        os.chmod(name, stat.S_IRWXU, dir_fd=directory)
                    fd = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
                    levels.append((fd, name, iter(os.listdir(fd))))  # noqa: PTH208 - an open directory has no path
                    break
                os.unlink(name, dir_fd=directory)
            else:
                levels.pop()
                if levels:
                    os.close(directory)
                    os.rmdir(own_name, dir_fd=levels[-1][0])
    finally:
        for directory, _, _ in levels[1:]:
            os.close(directory)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def looked_twice(action: Callable[[], Answer], *, pause_s: float = sum(PAUSES_S)) -> Answer:
    """Do the action again if an archive was not found: a store may be late, and a lost archive is not tried again."""
    try:
        return action()
    except Failed as error:
        if error.code is not Code.ARCHIVE_NOT_FOUND:
            raise
    time.sleep(pause_s)
    return action()


@contextlib.contextmanager
def judged(key: ArchiveKey) -> Iterator[None]:
    """Translate a missing or different archive to the error of a restore."""
    try:
        yield
    except ObjectMissing as error:
        raise Failed(Code.ARCHIVE_NOT_FOUND, f"the archive {key} is not complete: {error.message}", **error.context) from error
    except ArchiveMismatch as error:
        raise Failed(Code.CHECKSUM_MISMATCH, f"the archive {key} is damaged: {error.message}", **error.context) from error
