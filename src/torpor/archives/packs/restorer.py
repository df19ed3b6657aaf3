"""Create the files of a home from the frames of packs: the part of a restore that runs in several processes.

Everything is created relative to open directories, and nothing follows a link. A content is hashed before it is written.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.file_errors import RESTORING, FileErrors
from torpor.archives.packs.compression import decompress
from torpor.archives.packs.crew import Handlers
from torpor.archives.packs.directories import Directories
from torpor.archives.packs.hashes import BLOCK, BLOCK_BYTES, FILE, block_count, block_length, digest_of, zero_block_digest
from torpor.archives.packs.layout import pack_path
from torpor.archives.packs.rows import OWN, Row, decode_xattrs
from torpor.archives.packs.sections import Frame
from torpor.archives.progress_meter import HomeCount
from torpor.archives.store import ArchiveStore, named
from torpor.archives.tree import is_kept
from torpor.archives.unpack import NEW_FILE, write_sparse

SAME_FILE = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
MOST_RANGE_BYTES = 8 << 20
PRIVILEGED = stat.S_ISUID | stat.S_ISGID
CAPABILITY = "security.capability"


class Owner(NamedTuple):
    """The home's own user and group, which get everything."""

    uid: int
    gid: int


class SmallFile(NamedTuple):
    row: Row
    offset: int


class FrameFiles(NamedTuple):
    """A frame, and the files whose contents it has."""

    frame: Frame
    files: Sequence[SmallFile]


class Block(NamedTuple):
    frame: Frame | None
    """None: zeros."""
    offset: int
    digest: bytes


class Restorer:
    def __init__(self, place: ArchiveStore, workspace_id: str, home: int, owner: Owner) -> None:
        self._place = place
        self._workspace_id = workspace_id
        self._directories = Directories(home)
        self._owner = owner
        self._gives = os.geteuid() != owner.uid or os.getegid() != owner.gid
        os.umask(0)

    def small_files(self, frames: Sequence[FrameFiles]) -> HomeCount:
        """Create these files. Neighbouring frames are fetched with one request."""
        size = files_created = 0
        for group in _neighbours(frames):
            start, pack = group[0].frame.start, group[0].frame.pack
            end = group[-1].frame.start + group[-1].frame.stored
            path = pack_path(self._workspace_id, pack)
            window = self._place.confirmed(partial(self._place.part, path, start, end - start))
            for frame, files in group:
                begin = frame.start - start
                try:
                    contents = self._contents(path, window[begin : begin + frame.stored], frame, files)
                except ArchiveMismatch:
                    # A network can damage an answer.
                    contents = self._contents(path, self._place.part(path, frame.start, frame.stored), frame, files)
                for (row, _), content in zip(files, contents, strict=True):
                    self._create(row, content)
                    size += len(content)
                files_created += len(files)
        return HomeCount(size, files_created)

    def _contents(self, path: str, stored: memoryview, frame: Frame, files: Sequence[SmallFile]) -> list[memoryview]:
        """All are compared before a file is created."""
        with named(path):
            data = memoryview(decompress(stored, frame.raw))
        found = [data[offset : offset + int(row.size)] for row, offset in files]
        for (row, _), content in zip(files, found, strict=True):
            if digest_of(FILE, content).hex().encode() != row.digest:
                raise _different(row, path)
        return found

    def empty_files(self, rows: Sequence[Row]) -> HomeCount:
        for row in rows:
            self._create(row, memoryview(b""))
        return HomeCount(0, len(rows))

    def part_of_large_file(self, row: Row, first: int, blocks: Sequence[Block]) -> HomeCount:
        """Write these blocks, the first of which has this number. One process writes all parts of a file, in order."""
        size, done = int(row.size), 0
        is_last = first + len(blocks) == block_count(size)
        with FileErrors(RESTORING, os.fsdecode(row.path)), self._opened(row, NEW_FILE if first == 0 else SAME_FILE) as fd:
            for number, block in enumerate(blocks, first):
                length = block_length(size, number)
                done += length
                if block.frame is None:
                    if block.digest != zero_block_digest(length):
                        raise ArchiveMismatch(f"a block of {row.path!r} is not zeros", path=repr(row.path))
                    continue
                content = self._place.confirmed(partial(self._block, row, block, block.frame, length))
                write_sparse(fd, content, number * BLOCK_BYTES)
            if is_last:
                os.ftruncate(fd, size)
                set_attributes(fd, row, self._owner, gives=self._gives)
        return HomeCount(done, int(is_last))

    def _block(self, row: Row, block: Block, frame: Frame, length: int) -> memoryview:
        path = pack_path(self._workspace_id, frame.pack)
        with named(path):
            data = decompress(self._place.part(path, frame.start, frame.stored), frame.raw)
        content = memoryview(data)[block.offset : block.offset + length]
        if digest_of(BLOCK, content) != block.digest:
            raise _different(row, path)
        return content

    def _create(self, row: Row, content: memoryview) -> None:
        with FileErrors(RESTORING, os.fsdecode(row.path)), self._opened(row) as fd:
            if content:
                if len(content) < 1 << 16:
                    while content:
                        content = content[os.write(fd, content) :]
                else:
                    write_sparse(fd, content, 0)
                    os.ftruncate(fd, len(content))
            set_attributes(fd, row, self._owner, gives=self._gives)

    @contextlib.contextmanager
    def _opened(self, row: Row, flags: int = NEW_FILE) -> Iterator[int]:
        directory, name = self._directories.parent_of(row.path)
        fd = os.open(name, flags, int(row.mode, 8) & 0o777 | stat.S_IWUSR, dir_fd=directory)
        try:
            yield fd
        finally:
            os.close(fd)

    def handlers(self) -> Handlers:
        return {
            "small_files": self.small_files,
            "empty_files": self.empty_files,
            "part_of_large_file": self.part_of_large_file,
        }


def _different(row: Row, path: str) -> ArchiveMismatch:
    return ArchiveMismatch(f"the content of {row.path!r} in {path} differs from the archive", path=repr(row.path), object=path)


def allowed_mode(row: Row) -> int:
    """Setuid and setgid bits only for entries of the home's own owner."""
    mode = int(row.mode, 8)
    return mode if row.uid == OWN and row.gid == OWN else mode & ~PRIVILEGED


def allowed_xattrs(row: Row) -> dict[str, bytes]:
    """Capabilities only for entries of the home's own owner. Attributes that only an administrator can see are dropped."""
    if not row.xattrs:
        return {}
    found = decode_xattrs(row.xattrs)
    return {
        name: value
        for name, value in found.items()
        if is_kept(name) and not name.startswith("trusted.") and (name != CAPABILITY or row.uid == OWN)
    }


def set_attributes(fd: int, row: Row, owner: Owner, *, gives: bool, has_mode: bool = True) -> None:
    """`has_mode`: it was created with its mode, if no special bits are needed."""
    # The order matters: a change of owner clears setuid bits and capabilities, and every change sets the times.
    if gives:
        os.fchown(fd, owner.uid, owner.gid)
    if row.xattrs:
        for name, value in allowed_xattrs(row).items():
            os.setxattr(fd, name, value)
    mode = allowed_mode(row)
    if not has_mode or mode & ~0o777 or not mode & stat.S_IWUSR or row.xattrs:
        os.fchmod(fd, mode)
    mtime_ns = int(row.mtime_ns)
    os.utime(fd, ns=(mtime_ns, mtime_ns))


def _neighbours(frames: Sequence[FrameFiles]) -> Sequence[Sequence[FrameFiles]]:
    groups: list[list[FrameFiles]] = []
    for one in sorted(frames, key=lambda found: (found.frame.pack, found.frame.start)):
        if groups:
            first, last = groups[-1][0].frame, groups[-1][-1].frame
            if (
                last.pack == one.frame.pack
                and last.start + last.stored == one.frame.start
                and one.frame.start + one.frame.stored - first.start <= MOST_RANGE_BYTES
            ):
                groups[-1].append(one)
                continue
        groups.append([one])
    return groups
