"""What is one thing in a home, and which bytes say so for good?

The canonical line of an entry is the line that stands in the manifest, and the root is the SHA-256 over all of them in order.
Nothing in a line depends on when, where or for whom the archive was made: an owner that is the home's own is written as
"home", so a home that is restored for another user still has the same root.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

HOME: Final = "."
"""The path of the home directory itself: always the first entry."""

Owner: TypeAlias = int | Literal["home"]


class EntryKind(StrEnum):
    DIRECTORY = "dir"
    FILE = "file"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    FIFO = "fifo"


class ArchiveMismatch(Exception):
    """An archive is not what its manifest says, or its manifest is not one that Torpor writes."""

    def __init__(self, message: str, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.context = context


@dataclass(frozen=True, slots=True)
class HomeFacts:
    """What belongs to the place where a home stood rather than to the tree: kept beside the entries, outside the root.

    The home directory's own mtime is among them: whoever mounts a home or puts a socket into it touches it.
    """

    uid: int
    gid: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    """Relative, `/` between names; bytes that are not UTF-8 are carried as lone surrogates (os.fsdecode)."""
    kind: EntryKind
    mode: int
    uid: Owner
    gid: Owner
    mtime_ns: int | None
    """None for the home directory itself."""
    size: int = 0
    target: str = ""
    """Of a symlink: its text. Of a hard link: the path of the entry that carries the content."""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    sha256: str = ""
    """Of a file's content."""

    def line(self) -> bytes:
        return _encode(
            {
                "gid": self.gid,
                "kind": self.kind.value,
                "mode": self.mode,
                "mtime_ns": self.mtime_ns,
                "path": self.path,
                "sha256": self.sha256,
                "size": self.size,
                "target": self.target,
                "uid": self.uid,
                "xattrs": {name: b64encode(self.xattrs[name]).decode() for name in sorted(self.xattrs)},
            }
        ).encode()

    @classmethod
    def parse(cls, line: bytes) -> "Entry":
        """Strict: a line that this program would not have written is refused, so that two spellings never share a root."""
        try:
            said: dict[str, Any] = json.loads(line)
            entry = cls(
                path=said["path"],
                kind=EntryKind(said["kind"]),
                mode=said["mode"],
                uid=said["uid"],
                gid=said["gid"],
                mtime_ns=said["mtime_ns"],
                size=said["size"],
                target=said["target"],
                xattrs={name: b64decode(value) for name, value in said["xattrs"].items()},
                sha256=said["sha256"],
            )
            if not entry.is_well_typed() or entry.line() != line:
                raise ValueError("not in canonical form")  # noqa: TRY301
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArchiveMismatch(f"the manifest has a line that is not an entry: {error}") from error
        return entry

    def is_well_typed(self) -> bool:
        return (
            all(type(text) is str and "\0" not in text for text in (self.path, self.target, self.sha256, *self.xattrs))
            and all(type(number) is int and number >= 0 for number in (self.mode, self.size))
            and self.mode <= 0o7777
            and all(owner == "home" or (type(owner) is int and owner >= 0) for owner in (self.uid, self.gid))
            and (type(self.mtime_ns) is int or self.mtime_ns is None)
        )


_encode = json.JSONEncoder(separators=(",", ":")).encode


class EntryOrder:
    """Checks, one entry after the other, that each stands in its place: depth first, names sorted by their bytes.

    It follows that no path stands twice, and that every parent is a directory entry that came before.
    """

    def __init__(self) -> None:
        self._above: list[bytes] = []
        self._last: list[bytes] | None = None

    def check(self, entry: Entry) -> None:
        if self._last is None:
            if entry.path != HOME or entry.kind is not EntryKind.DIRECTORY or entry.mtime_ns is not None:
                raise ArchiveMismatch("the manifest does not begin with the home directory")
            self._last = []
            return
        try:
            names = entry.path.encode("utf-8", "surrogateescape").split(b"/")
        except UnicodeEncodeError as error:
            raise ArchiveMismatch(f"the manifest has a path that no file can have: {entry.path!r}") from error
        if any(name in (b"", b".", b"..") for name in names):
            raise ArchiveMismatch(f"the manifest has a path that leads out of the home: {entry.path!r}", path=entry.path)
        if entry.mtime_ns is None:
            raise ArchiveMismatch(f"the manifest has no mtime for {entry.path!r}", path=entry.path)
        if names <= self._last:
            raise ArchiveMismatch(f"the manifest is out of order at {entry.path!r}", path=entry.path)
        if names[:-1] != self._above[: len(names) - 1]:
            raise ArchiveMismatch(f"the manifest has {entry.path!r} in a directory that it does not have", path=entry.path)
        del self._above[len(names) - 1 :]
        if entry.kind is EntryKind.DIRECTORY:
            self._above.append(names[-1])
        self._last = names


class RootHash:
    """The root of a tree, and its size, growing with its entries."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.files = 0
        self.home_bytes = 0

    def add(self, entry: Entry, line: bytes | None = None) -> bytes:
        """`line` for those who know it already: making it is most of the work."""
        line = entry.line() if line is None else line
        self._digest.update(line + b"\n")
        if entry.kind in (EntryKind.FILE, EntryKind.HARDLINK):
            self.files += 1
            self.home_bytes += entry.size
        return line

    def hex(self) -> str:
        return self._digest.hexdigest()
