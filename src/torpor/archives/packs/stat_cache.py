"""Remember the inode, times and size of each restored entry beside the home, so that the next archive does not read it again.

The cache belongs to one archive, home directory, file system and boot of the machine. It is checksummed and replaced
by a rename. A cache that is lost or not valid costs time only: all files are read then.

On volumes of engines the workspace's user can write it. A forged cache can only keep changes of this home out of its next
archive: it has numbers and no paths. A link, a FIFO or a file without end must not stop or mislead a job.
"""

import errno
import hashlib
import json
import os
import re
import stat
import struct
import time
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from torpor import atomic_file
from torpor.archives.packs.side_file import SideFile, side_folders
from torpor.domain.names import CACHE_FOLDER, OWN_FOLDER
from torpor.domain.records import ArchiveKey

FORMAT = 2
FILE_SYSTEMS = frozenset({"ext4", "xfs", "btrfs"})
"""On these every change sets the ctime, and inode numbers are stable."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OWN_FOLDERS = (f"{OWN_FOLDER}/{CACHE_FOLDER}", OWN_FOLDER)
"""On volumes of engines, files of Torpor are beside the home. With Docker, a job can write only the first of these folders."""
ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A space, tab, newline or backslash in the list of mounts."""
CHECKSUM_BYTES = 32
MOST_HEAD_BYTES = 4096
FIELDS = 5
RECORD = struct.Struct(f"={FIELDS}q")
PIECE_BYTES = RECORD.size << 14
NEVER = (0, 0, 0, 0, 0)
"""In place of an entry that must be read again."""

StatKey = tuple[int, int, int, int, int]


def cache_file(home: Path) -> Path:
    own = (home.parent / name for name in OWN_FOLDERS)
    return next((folder for folder in own if folder.is_dir()), home.parent) / f"{home.name}.stat-cache"


class StatRecords:
    """The `stat_key` of each entry, in the order of the archive, in a file beside the home."""

    def __init__(self, home: Path) -> None:
        self._side = SideFile(side_folders(home))
        self._count = 0
        self.latest_ctime_ns = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: StatKey) -> None:
        # Times after 2262 do not fit; neither do some inode numbers.
        self._side.add(RECORD.pack(*(key if max(key) < 1 << 63 and min(key) >= -1 << 63 else NEVER)))
        self._count += 1
        self.latest_ctime_ns = max(self.latest_ctime_ns, key[1])

    def pieces(self) -> Iterator[bytes]:
        size = self._count * RECORD.size
        for start in range(0, size, PIECE_BYTES):
            yield self._side.read(start, min(PIECE_BYTES, size - start))


class CachedRecords:
    """The records of a valid cache, which is an open file."""

    def __init__(self, fd: int, start: int) -> None:
        self._fd = fd
        self._start = start

    def __del__(self) -> None:
        os.close(self._fd)

    def between(self, start: int, end: int) -> Iterator[StatKey]:
        data = os.pread(self._fd, (end - start) * RECORD.size, self._start + start * RECORD.size)
        records: Iterator[StatKey] = RECORD.iter_unpack(data)
        return records


def write_cache(home: Path, key: ArchiveKey, manifest_root: str, records: StatRecords) -> None:
    """Call it after a sync of the file system. Without permission or space there is no cache."""
    try:
        bound = _binding(home)
        if bound is None:
            return
        at_ns = _time_after(home, records.latest_ctime_ns)
        head = {"format": FORMAT, "key": str(key), "root": manifest_root, "count": len(records), "at_ns": at_ns, **bound}
        path = cache_file(home)
        digest = hashlib.sha256()
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with atomic_file.replacing(path, partial, mode=0o600, sync=False) as fd, os.fdopen(os.dup(fd), "wb") as file:
            for piece in chain([json.dumps(head, sort_keys=True).encode() + b"\n"], records.pieces()):
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
    except OSError:
        remove_cache(home)


def remove_cache(home: Path) -> None:
    try:
        cache_file(home).unlink(missing_ok=True)
    except OSError:
        return  # it names another archive, so it is not used


def read_cache(home: Path, key: ArchiveKey, manifest_root: str, count: int) -> CachedRecords | None:
    """The records of this archive's entries; None if there is no valid cache."""
    try:
        with _opened(cache_file(home)) as file:
            if _is_valid(file, home, key, manifest_root, count):
                start = file.seek(-count * RECORD.size - CHECKSUM_BYTES, os.SEEK_END)
                return CachedRecords(os.dup(file.fileno()), start)
    except OSError:
        pass
    return None


def _is_valid(file: BinaryIO, home: Path, key: ArchiveKey, manifest_root: str, count: int) -> bool:
    text = file.readline(MOST_HEAD_BYTES)
    if os.fstat(file.fileno()).st_size != len(text) + count * RECORD.size + CHECKSUM_BYTES:
        return False
    try:
        head = json.loads(text)
        at_ns = head.pop("at_ns")
    except (ValueError, KeyError, AttributeError, TypeError):
        return False
    bound = _binding(home)
    if bound is None or head != {"format": FORMAT, "key": str(key), "root": manifest_root, "count": count, **bound}:
        return False
    # A clock that was set back can give a change the same times again.
    if type(at_ns) is not int or time.time_ns() < at_ns:
        return False
    digest = hashlib.sha256(text)
    left = count * RECORD.size
    while left:
        piece = file.read(min(PIECE_BYTES, left))
        if not piece:
            return False
        digest.update(piece)
        if max(array("q", piece)[1::FIELDS]) >= at_ns:
            return False
        left -= len(piece)
    return file.read() == digest.digest()


def _opened(path: Path) -> BinaryIO:
    """OSError if it is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def _binding(home: Path) -> dict[str, object] | None:
    """What the cache belongs to; None on a file system where it is not used."""
    seen = home.stat()
    if not is_used_at(home):
        return None
    return {
        # After a power cut a file can have new bytes and old times: times are written later than data.
        "boot": BOOT_ID.read_text().strip(),
        "device": seen.st_dev,
        "inode": seen.st_ino,
        "file_system": os.statvfs(home).f_fsid,
        # With another owner of the home, the entries' own owner has another name in the archive.
        "uid": seen.st_uid,
        "gid": seen.st_gid,
    }


def is_used_at(home: Path) -> bool:
    return _file_system(home) in FILE_SYSTEMS


def _file_system(home: Path) -> str:
    """The type of the file system of the innermost mount that contains the home."""
    real = os.fsencode(os.path.realpath(home))
    best, found = b"", b""
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        mounted, _, rest = line.partition(b" - ")
        point = ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), mounted.split(b" ")[4])
        if (real == point or real.startswith(point.rstrip(b"/") + b"/")) and len(point) >= len(best):
            best, found = point, rest.split(b" ")[0]
    return found.decode()


def _time_after(home: Path, ctime_ns: int) -> int:
    """A time of this file system that is later than this ctime: clocks of file systems advance in steps."""
    probe = cache_file(home).with_suffix(".probe")
    probe.unlink(missing_ok=True)
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            os.fchmod(descriptor, 0o600)
            at_ns = os.fstat(descriptor).st_ctime_ns
            if at_ns > ctime_ns:
                return at_ns
            if ctime_ns - at_ns > 1_000_000_000:
                raise OSError("the clock was set back")
            time.sleep(0.001)
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)
