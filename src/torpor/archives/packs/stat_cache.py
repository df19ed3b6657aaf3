"""Remember the inode, times and size of each restored entry beside the home, so that the next archive does not read it again.

The cache belongs to one archive, home directory, file system and boot of the machine. It is checksummed and replaced
by a rename. A cache that is lost or not valid costs time only: all files are read then.
"""

import hashlib
import json
import os
import re
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from torpor import atomic_file
from torpor.domain.names import OWN_FOLDER
from torpor.domain.records import ArchiveKey

FORMAT = 1
FILE_SYSTEMS = frozenset({"ext4", "xfs", "btrfs"})
"""On these every change sets the ctime, and inode numbers are stable."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A space, tab, newline or backslash in the list of mounts."""
CHECKSUM_BYTES = 32
FIELDS = 5
NEVER = (0, 0, 0, 0, 0)
"""In place of an entry that must be read again."""

StatKey = tuple[int, int, int, int, int]


def cache_file(home: Path) -> Path:
    own = home.parent / OWN_FOLDER
    return (own if own.is_dir() else home.parent) / f"{home.name}.stat-cache"


class StatRecords:
    """The `stat_key` of each entry, in the order of the archive."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(FIELDS))
        self.latest_ctime_ns = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, key: StatKey) -> None:
        # Times after 2262 do not fit; neither do some inode numbers.
        for column, value in zip(self._columns, key if max(key) < 1 << 63 and min(key) >= -1 << 63 else NEVER, strict=True):
            column.append(value)
        self.latest_ctime_ns = max(self.latest_ctime_ns, key[1])

    def between(self, start: int, end: int) -> Iterator[StatKey]:
        ino, ctime, size, mtime, mode = (column[start:end] for column in self._columns)
        return zip(ino, ctime, size, mtime, mode, strict=True)

    def are_older_than(self, at_ns: int) -> bool:
        return all(ctime < at_ns for ctime in self._columns[1])

    def data(self) -> bytes:
        return b"".join(column.tobytes() for column in self._columns)

    @classmethod
    def parse(cls, data: bytes, count: int) -> "StatRecords":
        records = cls()
        for number, column in enumerate(records._columns):
            column.frombytes(data[number * 8 * count : (number + 1) * 8 * count])
        return records


def write_cache(home: Path, key: ArchiveKey, manifest_root: str, records: StatRecords) -> None:
    """Call it after a sync of the file system. Without permission or space there is no cache."""
    try:
        bound = _binding(home)
        if bound is None:
            return
        at_ns = _time_after(home, records.latest_ctime_ns)
        head = {"format": FORMAT, "key": str(key), "root": manifest_root, "count": len(records), "at_ns": at_ns, **bound}
        content = json.dumps(head, sort_keys=True).encode() + b"\n" + records.data()
        atomic_file.write(cache_file(home), content + hashlib.sha256(content).digest(), sync=False)
    except OSError:
        remove_cache(home)


def remove_cache(home: Path) -> None:
    try:
        cache_file(home).unlink(missing_ok=True)
    except OSError:
        return  # it names another archive, so it is not used


def read_cache(home: Path, key: ArchiveKey, manifest_root: str, count: int) -> StatRecords | None:
    """The records of this archive's entries; None if there is no valid cache."""
    try:
        content = cache_file(home).read_bytes()
        bound = _binding(home)
    except OSError:
        return None
    body, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if bound is None or hashlib.sha256(body).digest() != checksum:
        return None
    text, _, data = body.partition(b"\n")
    try:
        head = json.loads(text)
        at_ns = head.pop("at_ns")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    expected = {"format": FORMAT, "key": str(key), "root": manifest_root, "count": count, **bound}
    # A clock that was set back can give a change the same times again.
    if head != expected or type(at_ns) is not int or time.time_ns() < at_ns or len(data) != FIELDS * 8 * count:
        return None
    records = StatRecords.parse(data, count)
    return records if records.are_older_than(at_ns) else None


def _binding(home: Path) -> dict[str, object] | None:
    """What the cache belongs to; None on a file system where it is not used."""
    seen = home.stat()
    if _file_system(home) not in FILE_SYSTEMS:
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
    try:
        while True:
            probe.write_bytes(b"")
            probe.chmod(0o600)
            at_ns = probe.stat().st_ctime_ns
            if at_ns > ctime_ns:
                return at_ns
            if ctime_ns - at_ns > 1_000_000_000:
                raise OSError("the clock was set back")
            time.sleep(0.001)
    finally:
        probe.unlink(missing_ok=True)
