"""Describe one file, directory or link of a home as a canonical line, and hash the lines to a root.

The manifest contains these lines. The root is the SHA-256 over all lines in order. A line does not depend on the time, the
machine or the user of the archive: the home's owner is written as "home", so a home of another user has the same root.
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
    """An archive differs from its manifest, or Torpor did not write the manifest."""

    def __init__(self, message: str, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.context = context


@dataclass(frozen=True, slots=True)
class HomeFacts:
    """Facts about the home directory itself that are not part of the root.

    Its mtime is one of them: mounting a home or creating a socket in it changes the mtime.
    """

    uid: int
    gid: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    """Relative, with `/` between names; bytes that are not UTF-8 become lone surrogates (os.fsdecode)."""
    kind: EntryKind
    mode: int
    uid: Owner
    gid: Owner
    mtime_ns: int | None
    """None for the home directory itself."""
    size: int = 0
    target: str = ""
    """For a symlink, its text. For a hard link, the path of the entry with the content."""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    sha256: str = ""
    """Of the content, for files."""

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
        """Refuse every line that `line` would write differently, so that one tree has one root."""
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
    """Check that entries come depth first, with names sorted by their bytes.

    This implies that no path occurs twice and that each parent directory comes before its children.
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
    """The root hash, the number of files and the size of a tree, updated entry by entry."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.files = 0
        self.home_bytes = 0

    def add(self, entry: Entry, line: bytes | None = None) -> bytes:
        """Pass `line` if it is known: building it is most of the work."""
        line = entry.line() if line is None else line
        self._digest.update(line + b"\n")
        if entry.kind in (EntryKind.FILE, EntryKind.HARDLINK):
            self.files += 1
            self.home_bytes += entry.size
        return line

    def hex(self) -> str:
        return self._digest.hexdigest()
