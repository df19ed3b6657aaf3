"""Walk a home in the order of the manifest, and compute its root hash.

Directories stay open and names are resolved relative to them, so links are not followed, no path is too long, and a directory
that is renamed meanwhile does no harm. A home that changes while it is read fails with HOME_CHANGED.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torpor.archives.entries import HOME, Entry, EntryKind, HomeFacts, Owner, RootHash
from torpor.archives.file_errors import READING, FileErrors, home_changed_error
from torpor.archives.progress_meter import HomeCount
from torpor.domain.errors import Code, Failed

READ_BYTES = 1 << 20
ZEROS = bytes(READ_BYTES)

KIND_OF = {
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
}
# A socket is useless without its process; a device belongs to the machine.
SKIPPED_KINDS = {stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device", stat.S_IFBLK: "block device"}

MOST_HOLE_BYTES = 64 << 30
"""A hole takes no space on disk, but a tar has none: each is hashed and compressed as zeros, twice. This much takes minutes; a
file that `truncate` creates at once could take days."""
SMALL_HOLE_BYTES = 1 << 16
"""Files with smaller holes are not examined: a million of them are still acceptable."""
MOST_NAMES = 1 << 18
"""Of a directory, in memory."""
MOST_SKIPPED = 1000
MOST_SKIPPED_PATH = 4096
"""Skipped entries are listed for readers, in a head that must stay small (MOST_HEAD_BYTES)."""


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    path: str
    kind: str


@dataclass(slots=True)
class SkipSummary:
    """The number of skipped entries, and the first of them."""

    count: int = 0
    first: list[SkippedEntry] = field(default_factory=list)

    def add(self, path: str, kind: str) -> None:
        self.count += 1
        if len(self.first) < MOST_SKIPPED:
            self.first.append(SkippedEntry(path[:MOST_SKIPPED_PATH], kind))


@dataclass(frozen=True, slots=True)
class WalkEntry:
    """The current entry of a walk. The `sha256` of a file is not known yet."""

    entry: Entry
    directory: int
    """The open directory that contains it."""
    name: str
    seen: os.stat_result


class Walk:
    """All entries of a home in the order of the manifest. `skipped` lists what was left out."""

    def __init__(self, home: Path) -> None:
        self.skipped = SkipSummary()
        self._path = home
        try:
            seen = home.stat()
        except OSError as error:
            raise Failed(Code.VOLUME_NOT_READY, f"there is no home at {os.fspath(home)!r}: {error.strerror}") from error
        self.home = HomeFacts(seen.st_uid, seen.st_gid, seen.st_mtime_ns)

    def __iter__(self) -> Iterator[WalkEntry]:
        first_path: dict[tuple[int, int], str] = {}
        levels: list[Level] = []
        try:
            with FileErrors(READING, HOME):
                level = Level.open(os.fspath(self._path), None, "")
                levels.append(level)
                entry = Entry(HOME, EntryKind.DIRECTORY, level.mode, "home", "home", None, xattrs=kept_xattrs(level.fd))
            yield WalkEntry(entry, level.fd, ".", level.seen)
            while levels:
                level = levels[-1]
                name = next(level.names, None)
                path = level.prefix + (name or "")
                with FileErrors(READING, path):
                    if name is None:
                        levels.pop().close()
                        continue
                    seen = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
                    found = self._found(level, name, path, seen, first_path)
                if found is None:
                    continue
                yield found
                if found.entry.kind is EntryKind.DIRECTORY:
                    with FileErrors(READING, path):
                        levels.append(Level.open(name, level.fd, path + "/"))
        finally:
            for level in reversed(levels):
                level.leave()

    def _found(
        self, level: "Level", name: str, path: str, seen: os.stat_result, first_path: dict[tuple[int, int], str]
    ) -> WalkEntry | None:
        kind = KIND_OF.get(stat.S_IFMT(seen.st_mode))
        if kind is None:
            self.skipped.add(path, SKIPPED_KINDS.get(stat.S_IFMT(seen.st_mode), "unknown"))
            return None
        target = ""
        size = seen.st_size if kind is EntryKind.FILE else 0
        xattrs = kept_xattrs(f"/proc/self/fd/{level.fd}/{name}")
        if kind is EntryKind.SYMLINK:
            target = os.readlink(name, dir_fd=level.fd)
        if seen.st_nlink > 1 and kind is not EntryKind.DIRECTORY:
            first = first_path.setdefault((seen.st_dev, seen.st_ino), path)
            if first != path:
                kind, target, size, xattrs = EntryKind.HARDLINK, first, 0, {}
        entry = Entry(
            path,
            kind,
            stat.S_IMODE(seen.st_mode),
            self._owner(seen.st_uid, self.home.uid),
            self._owner(seen.st_gid, self.home.gid),
            seen.st_mtime_ns,
            size,
            target,
            xattrs,
        )
        return WalkEntry(entry, level.fd, name, seen)

    @staticmethod
    def _owner(number: int, home: int) -> Owner:
        return "home" if number == home else number


def content(found: WalkEntry) -> Iterator[bytes]:
    """The content of a file, exactly as long as its entry says."""
    with FileErrors(READING, found.entry.path):
        fd = open_to_read(found.name, found.directory, found.seen)
        try:
            before = os.fstat(fd)
            if _identity(before) != _identity(found.seen):
                raise home_changed_error(found.entry.path)
            position = 0
            for hole, data in settled_holes(fd, before) if may_have_holes(before) else ():
                yield from _data(fd, position, hole, found.entry.path)
                yield from _zeros(data - hole)
                position = data
            yield from _data(fd, position, found.entry.size, found.entry.path)
            after = os.fstat(fd)
            if _identity(after) != _identity(before) or after.st_ctime_ns != before.st_ctime_ns:
                raise home_changed_error(found.entry.path)
        finally:
            os.close(fd)


def _data(fd: int, position: int, end: int, path: str) -> Iterator[bytes]:
    while position < end:
        piece = os.pread(fd, min(end - position, READ_BYTES), position)
        if not piece:
            raise home_changed_error(path)
        position += len(piece)
        yield piece


def _zeros(left: int) -> Iterator[bytes]:
    """The content of a hole. Not read: that costs as much CPU time as hashing, and evicts other files from the cache."""
    while left:
        yield ZEROS if left >= READ_BYTES else ZEROS[:left]
        left -= min(left, READ_BYTES)


def tree_root(home: Path | str) -> str:
    """The root hash of a home: equal for two equal trees, independent of their owner and path."""
    root = RootHash()
    for found in Walk(Path(home)):
        entry = found.entry
        if entry.kind is EntryKind.FILE:
            digest = hashlib.sha256()
            for piece in content(found):
                digest.update(piece)
            entry = replace(entry, sha256=digest.hexdigest())
        root.add(entry)
    return root.hex()


def rough_size(home: Path, *, refuses_holes: bool = True) -> HomeCount:
    """The approximate size of a home, for progress. Unreadable parts are ignored.

    With `refuses_holes`, a home with too many holes is refused here, before data is written.
    """
    size, files, holes = 0, 0, Holes()
    directories = [os.fspath(home)]
    while directories:
        with contextlib.suppress(OSError), os.scandir(directories.pop()) as things:
            for thing in things:
                if thing.is_dir(follow_symlinks=False):
                    directories.append(thing.path)
                elif thing.is_file(follow_symlinks=False):
                    seen = thing.stat(follow_symlinks=False)
                    size += seen.st_size
                    files += 1
                    if not refuses_holes:
                        continue
                    with contextlib.suppress(OSError):
                        holes.add(thing.name, seen, partial(os.open, thing.path, os.O_RDONLY | SAFE))
    return HomeCount(size, files)


# ── holes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Holes:
    """Add up the holes of a home, and refuse too many: HOME_TOO_LARGE."""

    def __init__(self) -> None:
        self._bytes = 0
        self._linked: set[tuple[int, int]] = set()

    def add(self, path: str, seen: os.stat_result, opened: Callable[[], int]) -> None:
        if not may_have_holes(seen) or (seen.st_dev, seen.st_ino) in self._linked:
            return
        if seen.st_nlink > 1:
            self._linked.add((seen.st_dev, seen.st_ino))
        fd = opened()
        try:
            self._bytes += sum(data - hole for hole, data in _holes(fd, seen.st_size))
        finally:
            os.close(fd)
        if self._bytes > MOST_HOLE_BYTES:
            message = f"sparse files, {path!r} among them, have more than {MOST_HOLE_BYTES >> 30} GiB of holes in this home"
            raise Failed(Code.HOME_TOO_LARGE, f"{message}: remove them or make them smaller", path=path)


def refuse_holes(walk: Iterable[WalkEntry]) -> Iterator[WalkEntry]:
    """The same walk, refused when the holes are too many. Unlike `rough_size` it sees files that only their owner may open."""
    holes = Holes()
    for found in walk:
        path = found.entry.path
        if found.entry.kind is EntryKind.FILE:
            with FileErrors(READING, path):
                holes.add(path, found.seen, partial(open_to_read, found.name, found.directory, found.seen))
        yield found


def may_have_holes(seen: os.stat_result) -> bool:
    """Fewer blocks than bytes can also mean compression by the file system; `_holes` finds out."""
    return seen.st_size - seen.st_blocks * 512 >= SMALL_HOLE_BYTES


def settled_holes(fd: int, seen: os.stat_result) -> Iterator[tuple[int, int]]:
    """The holes that need not be read; none if the file system does not report them.

    The file is synced first: OpenZFS before 2.2.2 reported holes where data had just been written.
    """
    with contextlib.suppress(OSError):
        os.fdatasync(fd)
        yield from _holes(fd, seen.st_size)


def _holes(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each hole that the file system reports."""
    position = 0
    while position < size:
        try:
            data = min(os.lseek(fd, position, os.SEEK_DATA), size)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = size  # a hole to the end
        if data > position:
            yield position, data
        position = os.lseek(fd, data, os.SEEK_HOLE) if data < size else size


# ── extended attributes ───────────────────────────────────────────────────────────────────────────────────────────────


def is_kept(name: str) -> bool:
    """Whether an extended attribute belongs to the home. Labels of security modules and of overlayfs do not."""
    return (
        name.startswith(("user.", "system.posix_acl_"))
        or name == "security.capability"
        or (name.startswith("trusted.") and not name.startswith("trusted.overlay."))
    )


def kept_xattrs(place: int | str) -> Mapping[str, bytes]:
    follow = isinstance(place, int)
    try:
        names = os.listxattr(place, follow_symlinks=follow)
        if not names:
            return {}
        return {name: _xattr(place, name, follow) for name in names if is_kept(name)}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return {}
        raise


def _xattr(place: int | str, name: str, follow: bool) -> bytes:
    try:
        return os.getxattr(place, name, follow_symlinks=follow)
    except PermissionError:
        # An attribute of an unreadable file is unreadable too.
        if isinstance(place, int):
            raise
        with _lent(place, None, Path(place).lstat()):
            return os.getxattr(place, name, follow_symlinks=False)


# ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_to_read(name: str, directory: int, seen: os.stat_result) -> int:
    try:
        return os.open(name, os.O_RDONLY | SAFE, dir_fd=directory)
    except PermissionError:
        with _lent(name, directory, seen):
            return os.open(name, os.O_RDONLY | SAFE, dir_fd=directory)


@contextlib.contextmanager
def _lent(name: str, directory: int | None, seen: os.stat_result) -> Iterator[None]:
    """Add the owner's read permission for a moment, for files that are unreadable even for their owner."""
    mode = stat.S_IMODE(seen.st_mode)
    os.chmod(name, mode | stat.S_IRUSR, dir_fd=directory)
    try:
        yield
    finally:
        os.chmod(name, mode, dir_fd=directory)


@dataclass(slots=True)
class Level:
    """A directory that is being read."""

    fd: int
    prefix: str
    names: Iterator[str]
    seen: os.stat_result
    mode: int
    is_lent: bool
    """Its owner may not read it; the permission was added until `leave`."""

    @classmethod
    def open(cls, name: str, directory: int | None, prefix: str) -> "Level":
        # The home itself may be a link; links inside are not followed.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if directory is None else os.O_NOFOLLOW)
        seen = os.stat(name, dir_fd=directory, follow_symlinks=directory is None)
        mode = stat.S_IMODE(seen.st_mode)
        wanted = stat.S_IRUSR | stat.S_IXUSR
        is_lent = mode & wanted != wanted and os.geteuid() == seen.st_uid != 0
        if is_lent:
            os.chmod(name, mode | wanted, dir_fd=directory)
        try:
            fd = os.open(name, flags, dir_fd=directory)
        except OSError:
            if is_lent:
                os.chmod(name, mode, dir_fd=directory)
            raise
        level = cls(fd, prefix, iter(()), os.fstat(fd), mode, is_lent)
        try:
            # An entry takes at least one byte, so this directory has few.
            if level.seen.st_size <= MOST_NAMES:
                level.names = iter(sorted(os.listdir(fd), key=os.fsencode))  # noqa: PTH208 - an open directory has no path
            else:
                level.names = sorted_names(fd, MOST_NAMES)
        except OSError:
            level.leave()
            raise
        return level

    def close(self) -> None:
        after = os.fstat(self.fd)
        self.leave()
        if after.st_mtime_ns != self.seen.st_mtime_ns:
            raise home_changed_error(self.prefix.rstrip("/") or HOME)

    def leave(self) -> None:
        if self.is_lent:
            os.fchmod(self.fd, self.mode)
        os.close(self.fd)


def sorted_names(directory: int, at_once: int) -> Iterator[str]:
    """All names of a directory in order, in little memory: it is listed several times, once for each `at_once` names."""
    after, is_last = b"", False
    while not is_last:
        kept: list[bytes] = []
        before, is_last = b"", True
        with os.scandir(directory) as listed:
            for entry in listed:
                name = os.fsencode(entry.name)
                if name > after and (is_last or name < before):
                    kept.append(name)
                    if len(kept) >= 2 * at_once:
                        kept.sort()
                        del kept[at_once:]
                        before, is_last = kept[-1], False
        kept.sort()
        if len(kept) > at_once:
            del kept[at_once:]
            is_last = False
        yield from map(os.fsdecode, kept)
        if kept:
            after = kept[-1]


# ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _identity(seen: os.stat_result) -> tuple[int, int, int, int]:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns
