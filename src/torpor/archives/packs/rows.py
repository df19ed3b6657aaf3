"""An entry of a home as a row of bytes: the shape in which format 2 hashes, stores and compares entries.

A row is a tuple of fields without NUL bytes; joined with NUL it is the line that the home's root hashes. There can be a million
rows, so checks work on whole columns.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import lt
from typing import NamedTuple

from torpor.archives.entries import HOME as HOME_PATH
from torpor.archives.entries import ArchiveMismatch, Entry, EntryKind, Owner
from torpor.archives.packs import hashes

HOME = HOME_PATH.encode()
OWN = b"home"
"""In place of the number of the home's owner or group."""
DIRECTORY, FILE, SYMLINK, HARDLINK, FIFO = b"d", b"f", b"l", b"h", b"p"
KIND = {
    DIRECTORY: EntryKind.DIRECTORY,
    FILE: EntryKind.FILE,
    SYMLINK: EntryKind.SYMLINK,
    HARDLINK: EntryKind.HARDLINK,
    FIFO: EntryKind.FIFO,
}


class Row(NamedTuple):
    path: bytes
    kind: bytes
    mode: bytes
    """Octal."""
    uid: bytes
    gid: bytes
    mtime_ns: bytes
    """Empty for the home directory itself."""
    size: bytes
    target: bytes
    """For a symlink, its text. For a hard link, the path of the entry with the content."""
    xattrs: bytes
    digest: bytes
    """Hexadecimal; only of files that are not empty."""


Columns = tuple[list[bytes], ...]
"""One list for each field of a row."""

_NUMBER = rb"(?:0|[1-9][0-9]{0,18})"
_OWNER = rb"(?:home|0|[1-9][0-9]{0,9})"
_HEX = rb"(?:[0-9a-f]{2})"
_FIELD = Row(
    path=rb"[^\0]+",
    kind=rb"[dflhp]",
    mode=rb"(?:0|[1-7][0-7]{0,3})",
    uid=_OWNER,
    gid=_OWNER,
    mtime_ns=rb"(?:-(?=[1-9]))?(?:0|[1-9][0-9]{0,19})",  # some file systems have times after 2262
    size=_NUMBER,
    target=rb"[^\0]*",
    xattrs=rb"(?:%b+=%b*(?:,%b+=%b*)*)?" % (_HEX, _HEX, _HEX, _HEX),
    digest=rb"(?:%b{32})?" % _HEX,
)
_COLUMN = tuple(re.compile(rb"(?:%b\0)*\Z" % field) for field in _FIELD)
_MTIME = _COLUMN[Row._fields.index("mtime_ns")]
_BAD_NAME = re.compile(rb"(?:\A|[/\0])\.{0,2}(?=[/\0])")
_TARGETS = {DIRECTORY: False, FILE: False, SYMLINK: True, HARDLINK: True, FIFO: False}


def lines(columns: Columns) -> bytes:
    """What the root of the home hashes."""
    return b"\0".join(map(b"\0".join, zip(*columns, strict=True))) + b"\0" if columns[0] else b""


def order_key(path: bytes) -> bytes:
    """Sorts paths depth first, with names sorted by their bytes: NUL is smaller than every byte of a name."""
    return path.replace(b"/", b"\0")


class HomeRoot:
    """The hash over all rows of a home, and their counts. The cuts between sections do not change it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(hashes.HOME)
        self.entries = 0
        self.files = 0
        self.home_bytes = 0

    def add(self, columns: Columns) -> None:
        self._digest.update(lines(columns))
        self.entries += len(columns[0])
        kinds = columns[1]
        self.files += kinds.count(FILE) + kinds.count(HARDLINK)
        self.home_bytes += sum(map(int, columns[6]))

    def hex(self) -> str:
        return self._digest.hexdigest()


def _check_fields(columns: Columns, *, is_first: bool) -> None:
    """Refuse fields that are not in canonical form. The first section begins with the home, which has no time."""
    for pattern, column in zip(_COLUMN, columns, strict=True):
        text = b"\0".join(column) + b"\0"
        if pattern is _MTIME and is_first:
            text = text.removeprefix(b"\0")
        if not pattern.match(text):
            raise ArchiveMismatch("a section has a field that is not in canonical form")


class RowCheck:
    """Refuse rows that Torpor would not have written. Sections are checked in order, each with all its columns."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._above: list[bytes] = []
        """The directories from the home down to the last one."""

    def check(self, columns: Columns) -> None:
        paths = columns[0]
        _check_fields(columns, is_first=self._last is None)
        start = 0
        if self._last is None:
            if paths[0] != HOME or columns[1][0] != DIRECTORY or columns[5][0]:
                raise ArchiveMismatch("the first section does not begin with the home directory")
            start, self._last = 1, b""
        inside = paths[start:]
        if _BAD_NAME.search(b"\0".join(inside) + b"\0") and inside:
            raise ArchiveMismatch("a section has a path that leads out of the home")
        keys = [self._last, *map(order_key, inside)]
        if not all(map(lt, keys, keys[1:])):
            wrong = next(after for before, after in pairwise(keys) if after <= before)
            raise ArchiveMismatch(f"the entries are out of order at {wrong!r}")
        self._last = keys[-1]
        self._check_rows([Row._make(row) for row in zip(*columns, strict=True)], start)

    def _check_rows(self, rows: Sequence[Row], start: int) -> None:
        above = self._above
        for number, row in enumerate(rows):
            kind, path = row.kind, row.path
            is_content = kind == FILE and row.size != b"0"
            if (
                bool(row.target) != _TARGETS[kind]
                or bool(row.digest) != is_content
                or (row.size != b"0" and not is_content)
                or (kind == HARDLINK and row.xattrs)
            ):
                raise ArchiveMismatch(f"the fields of {path!r} contradict its kind", path=repr(path))
            if number < start:
                continue
            parent = path.rpartition(b"/")[0]
            while above and above[-1] != parent:
                above.pop()
            if parent and not above:
                raise ArchiveMismatch(f"{path!r} is in a directory that the archive does not have", path=repr(path))
            if kind == DIRECTORY:
                above.append(path)


# ── conversion ────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_xattrs(xattrs: Mapping[str, bytes]) -> bytes:
    return b",".join(
        name.hex().encode() + b"=" + value.hex().encode()
        for name, value in sorted((name.encode("utf-8", "surrogateescape"), value) for name, value in xattrs.items())
    )


def decode_xattrs(field: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for pair in field.split(b",") if field else ():
        name, _, value = pair.partition(b"=")
        found[bytes.fromhex(name.decode()).decode("utf-8", "surrogateescape")] = bytes.fromhex(value.decode())
    return found


def to_entry(row: Row) -> Entry:
    """For readers that work with any format. `sha256` is the digest of format 2."""
    return Entry(
        path=_text(row.path),
        kind=KIND[row.kind],
        mode=int(row.mode, 8),
        uid=_owner(row.uid),
        gid=_owner(row.gid),
        mtime_ns=int(row.mtime_ns) if row.mtime_ns else None,
        size=int(row.size),
        target=_text(row.target),
        xattrs=decode_xattrs(row.xattrs),
        sha256=row.digest.decode(),
    )


def to_rows(columns: Columns) -> Iterable[Row]:
    return map(Row._make, zip(*columns, strict=True))


def _owner(field: bytes) -> Owner:
    return "home" if field == OWN else int(field)


def _text(field: bytes) -> str:
    return field.decode("utf-8", "surrogateescape")
