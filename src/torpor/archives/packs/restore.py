"""Restore a home from an archive of format 2.

The sections are read and compared with the archive's root before anything is created. Then come directories, files by several
processes, links, the attributes of directories, one sync, and a comparison of the result with the archive.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.file_errors import RESTORING, FileErrors
from torpor.archives.packs.crew import Crew, Handlers, finish_calls
from torpor.archives.packs.directories import Directories
from torpor.archives.packs.documents import Documents, checked_trees
from torpor.archives.packs.hashes import BLOCK_BYTES, block_count, large_file_digest
from torpor.archives.packs.home_walk import Found, HomeWalk, stat_key
from torpor.archives.packs.restorer import (
    Block,
    FrameFiles,
    Owner,
    Restorer,
    SmallFile,
    allowed_mode,
    allowed_xattrs,
    set_attributes,
)
from torpor.archives.packs.root import Root, fetch_root
from torpor.archives.packs.rows import DIRECTORY, FIFO, FILE, HARDLINK, HOME, OWN, SYMLINK, Columns, Row, decode_xattrs, to_rows
from torpor.archives.packs.sections import NO_FRAME, Frame, Refs
from torpor.archives.packs.stat_cache import NEVER, StatRecords, remove_cache, write_cache
from torpor.archives.progress_meter import HomeCount, Meter
from torpor.archives.store import ArchiveStore
from torpor.archives.tree import kept_xattrs
from torpor.archives.unpack import clear_home, judged, sync_home
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

CALLS_AT_ONCE = 3
"""In each process."""
FRAMES_AT_ONCE = 4
"""In one call."""
FILES_AT_ONCE = 2048
"""In one call, and as many may wait for the next section."""
BLOCKS_AT_ONCE = 16
"""Of a large file in one call: a long call would report no progress."""
EMPTY_FILES_AT_ONCE = 500
MOST_KEPT_ENTRIES = 20_000
"""Sections of a home up to this size are decoded once and kept."""


def handlers_of(open_store: Callable[[], ArchiveStore], key: ArchiveKey, home: int) -> Callable[[int, int], Handlers]:
    """The part of each process."""

    def make(_member: int, _size: int) -> Handlers:
        return Restorer(open_store(), key.workspace_id, home, _owner_of(home)).handlers()

    return make


def find_root(place: ArchiveStore, key: ArchiveKey, manifest_root: str | None) -> Root | None:
    """The root of the archive to restore; None if there is no archive of format 2 with this key."""
    with judged(key):
        root = fetch_root(place, key)
        if root is not None and manifest_root is not None and root.manifest_root != manifest_root:
            raise ArchiveMismatch(f"the archive has the root {root.manifest_root}, expected {manifest_root}")
    return root


def restore(place: ArchiveStore, root: Root, home: Path, home_fd: int, crew: Crew, done: Meter) -> None:
    """Make the home equal to the archive and sync it. Files of an earlier try are removed first."""
    with judged(root.key), FileErrors(RESTORING, home):
        sections = _Sections(place, root)
        remove_cache(home)
        clear_home(home_fd)
        _HomeFiller(sections, home_fd, crew, done).fill()
        sync_home(home_fd)
        records = _compare(sections, home)
    write_cache(home, root.key, root.manifest_root, records)


class _Sections:
    """The sections of a verified archive. Those of a large home are decoded again for each pass."""

    def __init__(self, place: ArchiveStore, root: Root) -> None:
        self.root = root
        self._documents = Documents(place, root)
        keeps = root.entries <= MOST_KEPT_ENTRIES
        self._kept: list[Columns] = []
        self._has_links: list[bool] = []
        for _, columns in checked_trees(self._documents, root):
            self._has_links.append(HARDLINK in columns[1])
            if keeps:
                self._kept.append(columns)

    def trees(self, *, backwards: bool = False) -> Iterator[Columns]:
        numbers = range(len(self.root.sections))
        for number in reversed(numbers) if backwards else numbers:
            yield self._tree(number)

    def with_refs(self) -> Iterator[tuple[Columns, Refs]]:
        for number, section in enumerate(self.root.sections):
            columns = self._tree(number)
            yield columns, self._documents.refs(section, columns)

    def links(self) -> Iterator[Row]:
        for number, has_links in enumerate(self._has_links):
            if has_links:
                yield from (row for row in to_rows(self._tree(number)) if row.kind == HARDLINK)

    def _tree(self, number: int) -> Columns:
        return self._kept[number] if self._kept else self._documents.tree(self.root.sections[number])


class _HomeFiller:
    """A home being filled."""

    def __init__(self, sections: _Sections, home: int, crew: Crew, done: Meter) -> None:
        self._sections = sections
        self._home = home
        self._crew = crew
        self._done = done
        self._owner = _owner_of(home)
        self._gives = os.geteuid() != self._owner.uid or os.getegid() != self._owner.gid
        self._directories = Directories(home)
        self._frames: dict[Frame, list[SmallFile]] = {}
        """Small files that are not created yet, by the frame that has their contents."""
        self._empty: list[Row] = []

    def fill(self) -> None:
        for columns, refs in self._sections.with_refs():
            self._fill_section(columns, refs)
            # The last frame may have files of the next section, too. It can have all files of a home, if they are equal.
            self._send_frames(keep=1)
            if any(len(files) >= FILES_AT_ONCE for files in self._frames.values()):
                self._send_frames(keep=0)
        self._send_frames(keep=0)
        self._send_empty()
        finish_calls(self._crew)
        self._make_links()
        self._finish_directories()
        self._directories.close()

    def _fill_section(self, columns: Columns, refs: Refs) -> None:
        position = digests = 0
        for row in to_rows(columns):
            if row.kind == FILE:
                size = int(row.size)
                if not size:
                    self._empty.append(row)
                elif size <= BLOCK_BYTES:
                    frame = refs.frames[refs.frame[position]]
                    self._frames.setdefault(frame, []).append(SmallFile(row, refs.offset[position]))
                    position += 1
                else:
                    count = block_count(size)
                    self._send_large(row, refs, position, digests)
                    position += count
                    digests += count
            elif row.kind != HARDLINK and row.path != HOME:
                with FileErrors(RESTORING, os.fsdecode(row.path)):
                    self._make(row)
        if len(self._empty) >= EMPTY_FILES_AT_ONCE:
            self._send_empty()

    def _make(self, row: Row) -> None:
        directory, name = self._directories.parent_of(row.path)
        if row.kind == DIRECTORY:
            os.mkdir(name, stat.S_IRWXU, dir_fd=directory)
            return
        if row.kind == SYMLINK:
            os.symlink(row.target, name, dir_fd=directory)
        else:
            os.mkfifo(name, stat.S_IRUSR | stat.S_IWUSR, dir_fd=directory)
        if self._gives:
            os.chown(name, self._owner.uid, self._owner.gid, dir_fd=directory, follow_symlinks=False)
        for attribute, value in allowed_xattrs(row).items():
            os.setxattr(f"/proc/self/fd/{directory}/{os.fsdecode(name)}", attribute, value, follow_symlinks=False)
        if row.kind == FIFO:
            os.chmod(name, allowed_mode(row), dir_fd=directory)
        mtime_ns = int(row.mtime_ns)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=directory, follow_symlinks=False)

    def _make_links(self) -> None:
        sources = Directories(self._home)
        for row in self._sections.links():
            if any(name in (b"", b".", b"..") for name in row.target.split(b"/")):
                raise ArchiveMismatch(f"a hard link leads out of the home: {row.path!r}", path=repr(row.path))
            with FileErrors(RESTORING, os.fsdecode(row.path)):
                directory, name = self._directories.parent_of(row.path)
                source, first = sources.parent_of(row.target)
                os.link(first, name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            self._done.count_files()
        sources.close()

    def _finish_directories(self) -> None:
        """Children first: a directory may become unreadable."""
        for columns in self._sections.trees(backwards=True):
            kinds, paths = columns[1], columns[0]
            for number in range(len(paths) - 1, -1, -1):
                if kinds[number] != DIRECTORY or paths[number] == HOME:
                    continue
                with FileErrors(RESTORING, os.fsdecode(paths[number])):
                    row = Row._make(column[number] for column in columns)
                    fd = self._directories.open(row.path)
                    set_attributes(fd, row, self._owner, gives=self._gives, has_mode=False)
        home = Row._make(column[0] for column in next(self._sections.trees()))
        home = home._replace(mtime_ns=b"%d" % self._sections.root.home.mtime_ns)
        self._directories.close()
        set_attributes(self._home, home, self._owner, gives=False, has_mode=False)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send_frames(self, *, keep: int) -> None:
        while len(self._frames) > keep:
            chosen: list[FrameFiles] = []
            count = 0
            while len(self._frames) > keep and len(chosen) < FRAMES_AT_ONCE and count < FILES_AT_ONCE:
                frame = next(iter(self._frames))
                chosen.append(FrameFiles(frame, self._frames.pop(frame)))
                count += len(chosen[-1].files)
            self._send("small_files", chosen)

    def _send_empty(self) -> None:
        if self._empty:
            self._send("empty_files", self._empty)
            self._empty = []

    def _send_large(self, row: Row, refs: Refs, position: int, digests: int) -> None:
        blocks = [
            Block(
                None if refs.frame[position + number] == NO_FRAME else refs.frames[refs.frame[position + number]],
                refs.offset[position + number],
                refs.digests[digests + number],
            )
            for number in range(block_count(int(row.size)))
        ]
        if large_file_digest(int(row.size), (block.digest for block in blocks)).hex().encode() != row.digest:
            raise ArchiveMismatch(f"the blocks of {row.path!r} differ from the archive", path=repr(row.path))
        member = self._free_member()
        for first in range(0, len(blocks), BLOCKS_AT_ONCE):
            while self._crew.waiting(member) >= CALLS_AT_ONCE:
                self._crew.pump(wait_for_one=True)
            part = blocks[first : first + BLOCKS_AT_ONCE]
            self._crew.call(member, "part_of_large_file", row, first, part, then=self._count)

    def _send(self, verb: str, *arguments: object) -> None:
        self._crew.call(self._free_member(), verb, *arguments, then=self._count)

    def _free_member(self) -> int:
        crew = self._crew
        member = min(range(crew.size), key=crew.waiting)
        while crew.waiting(member) >= CALLS_AT_ONCE:
            crew.pump(wait_for_one=True)
            member = min(range(crew.size), key=crew.waiting)
        crew.pump(wait_for_one=False)
        return member

    def _count(self, created: HomeCount) -> None:
        self._done.count_files(created.files)
        self._done(created.size)


def _compare(sections: _Sections, home: Path) -> StatRecords:
    """Compare the restored entries with the archive. Contents were hashed before they were written."""
    records = StatRecords(home)
    walk = HomeWalk(home)
    shown = iter(walk)
    for columns in sections.trees():
        for row in to_rows(columns):
            found = next(shown, None)
            if found is None or found.path != row.path:
                path = os.fsdecode(row.path)
                raise Failed(Code.TAR_EXTRACT_FAILED, f"{path!r} is missing after it was restored", path=path)
            different = _difference(found, row, walk)
            if different:
                path = os.fsdecode(row.path)
                message = f"the home's file system shows another {different} for {path!r} than the archive has"
                raise Failed(Code.TAR_EXTRACT_FAILED, message, path=path)
            records.add(NEVER if found.is_lent or not _is_faithful(row) else stat_key(found.seen))
    if next(shown, None) is not None or walk.skipped.count:
        raise Failed(Code.TAR_EXTRACT_FAILED, "another process wrote to the home while it was restored")
    return records


def _difference(found: Found, row: Row, walk: HomeWalk) -> str:
    seen = found.seen
    if found.kind != row.kind:
        return "kind"
    if row.path != HOME and seen.st_mtime_ns != int(row.mtime_ns):
        return "mtime"
    if row.kind == FILE and seen.st_size != int(row.size):
        return "size"
    if row.kind == HARDLINK:
        return "" if found.target == row.target else "target"
    mode = found.level.mode if row.path == HOME else stat.S_IMODE(seen.st_mode)
    if row.kind != SYMLINK and mode != allowed_mode(row):
        return "mode"
    if (seen.st_uid, seen.st_gid) != (walk.home.uid, walk.home.gid):
        return "owner"
    if row.kind == SYMLINK and os.fsencode(os.readlink(found.name, dir_fd=found.level.fd)) != row.target:
        return "target"
    if row.xattrs:
        place = found.level.fd if row.path == HOME else f"/proc/self/fd/{found.level.fd}/{found.name}"
        if kept_xattrs(place) != allowed_xattrs(row):
            return "extended attributes"
    return ""


def _is_faithful(row: Row) -> bool:
    """The restored entry is the same as in the archive: a foreign owner, for example, becomes the home's."""
    return (
        row.uid == OWN
        and row.gid == OWN
        and (not row.xattrs or allowed_xattrs(row) == decode_xattrs(row.xattrs))
        and allowed_mode(row) == int(row.mode, 8)
    )


def _owner_of(home: int) -> Owner:
    seen = os.fstat(home)
    return Owner(seen.st_uid, seen.st_gid)
