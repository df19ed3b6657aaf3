"""Walk a home in the order of an archive, quickly: one `stat` per entry, no other call."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torpor.archives.entries import HomeFacts
from torpor.archives.file_errors import READING, FileErrors
from torpor.archives.packs.link_table import LinkTable
from torpor.archives.packs.rows import DIRECTORY, FIFO, FILE, HARDLINK, HOME, OWN, SYMLINK
from torpor.archives.packs.side_file import side_folders
from torpor.archives.tree import SKIPPED_KINDS, Level, SkipSummary
from torpor.domain.errors import Code, Failed

LETTER_OF = {stat.S_IFDIR: DIRECTORY, stat.S_IFREG: FILE, stat.S_IFLNK: SYMLINK, stat.S_IFIFO: FIFO}


class Found(NamedTuple):
    """The current entry of a walk."""

    path: bytes
    kind: bytes
    target: bytes
    """Of a hard link, the path of the first entry with this inode."""
    name: str
    level: Level
    """The open directory that contains it."""
    is_lent: bool
    """Only this walk can open it: permissions are added for a moment."""
    seen: os.stat_result


class HomeWalk:
    """All entries of a home. `skipped` lists what was left out."""

    def __init__(self, home: Path) -> None:
        self.skipped = SkipSummary()
        self._path = home
        try:
            self.seen = home.stat()
        except OSError as error:
            raise Failed(Code.VOLUME_NOT_READY, f"there is no home at {os.fspath(home)!r}: {error.strerror}") from error
        self.home = HomeFacts(self.seen.st_uid, self.seen.st_gid, self.seen.st_mtime_ns)
        self._own_uid = os.geteuid()

    def __iter__(self) -> Iterator[Found]:
        links = LinkTable(side_folders(self._path))
        levels: list[Level] = []
        lent = 0
        """How many of the open directories have added permissions."""
        try:
            with FileErrors(READING, "."):
                level = Level.open(os.fspath(self._path), None, "")
            levels.append(level)
            lent += level.is_lent
            yield Found(HOME, DIRECTORY, b"", ".", level, level.is_lent, level.seen)
            prefix = b""
            prefixes = [prefix]
            while levels:
                name = next(level.names, None)
                if name is None:
                    with FileErrors(READING, os.fsdecode(prefix)):
                        levels.pop().close()
                    lent -= level.is_lent
                    prefixes.pop()
                    if levels:
                        level, prefix = levels[-1], prefixes[-1]
                    continue
                path = prefix + os.fsencode(name)
                try:
                    seen = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
                except OSError as error:
                    with FileErrors(READING, os.fsdecode(path)):
                        raise error from None
                kind = LETTER_OF.get(stat.S_IFMT(seen.st_mode))
                if kind is None:
                    self.skipped.add(os.fsdecode(path), SKIPPED_KINDS.get(stat.S_IFMT(seen.st_mode), "unknown"))
                    continue
                target = b""
                if seen.st_nlink > 1 and kind is not DIRECTORY:
                    first = links.first_path(seen.st_dev, seen.st_ino, path)
                    if first != path:
                        kind, target = HARDLINK, first
                yield Found(path, kind, target, name, level, lent > 0 or self._is_unreadable(seen), seen)
                if kind is DIRECTORY:
                    with FileErrors(READING, os.fsdecode(path)):
                        level = Level.open(name, level.fd, os.fsdecode(path) + "/")
                    levels.append(level)
                    lent += level.is_lent
                    prefix = path + b"/"
                    prefixes.append(prefix)
        finally:
            for open_level in reversed(levels):
                open_level.leave()

    def _is_unreadable(self, seen: os.stat_result) -> bool:
        wanted = stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(seen.st_mode) else 0)
        return self._own_uid == seen.st_uid != 0 and seen.st_mode & wanted != wanted

    def owner(self, uid: int) -> bytes:
        return OWN if uid == self.home.uid else b"%d" % uid

    def group(self, gid: int) -> bytes:
        return OWN if gid == self.home.gid else b"%d" % gid


def stat_key(seen: os.stat_result) -> tuple[int, int, int, int, int]:
    """What changes with an entry: if it is equal, the entry is the same."""
    return seen.st_ino, seen.st_ctime_ns, seen.st_size, seen.st_mtime_ns, seen.st_mode


def identity(seen: os.stat_result) -> tuple[int, int, int, int, int]:
    """For another process that opens the same file."""
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
