"""Read an archive where it is stored, without a restore: its entries, one file, all of it, and what differs from another.

Memory is bounded, and everything that is read is compared with the manifest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torpor.archives.entries import HOME, ArchiveMismatch, Entry, EntryKind
from torpor.archives.file_lookup import file_at, plain_path
from torpor.archives.manifest import FORMAT, Manifest, object_path
from torpor.archives.packs.reading import PackedArchive
from torpor.archives.packs.root import fetch_root
from torpor.archives.proof import contents
from torpor.archives.store import ArchiveStore, new_digest
from torpor.archives.tree import SkippedEntry
from torpor.archives.unpack import find, judged
from torpor.domain.errors import Refused
from torpor.domain.records import ArchiveKey

SKIPPED_AT_ONCE = 8 << 20
"""After so many bytes that the caller did not ask for, an empty piece is returned: there the caller can stop."""


class ReadableArchive(Protocol):
    """An archive of any format."""

    format: int
    """Hashes of entries can be compared only within one format."""

    @property
    def skipped(self) -> Sequence[SkippedEntry]:
        """The first of the entries that were left out: sockets and devices."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Depth first, names sorted by their bytes. Raises at the end if they are not those of this archive."""
        ...

    def content(self, path: str) -> Iterator[bytes]:
        """The content of a file or hard link; pieces can be empty. Refused `no_such_file` if there is none."""
        ...

    def export(self) -> Iterator[bytes]:
        """The home as a tar stream, compressed with zstd; pieces can be empty."""
        ...


class TarArchive:
    """An archive of format 1: one tar stream."""

    format = FORMAT

    def __init__(self, place: ArchiveStore, manifest: Manifest) -> None:
        self._place = place
        self._manifest = manifest
        self.skipped = manifest.head.skipped

    def entries(self) -> Iterator[Entry]:
        with judged(self._manifest.head.key):
            yield from self._manifest.entries()

    def content(self, path: str) -> Iterator[bytes]:
        wanted = yield from file_at(self.entries, path)
        skipped = 0
        with judged(self._manifest.head.key):
            for entry, pieces in contents(self._place, self._manifest, lambda _count: None):
                if entry.path == wanted.path:
                    yield from map(bytes, pieces)
                    return
                for piece in pieces:
                    skipped += len(piece)
                    if skipped > SKIPPED_AT_ONCE:
                        skipped = 0
                        yield b""

    def export(self) -> Iterator[bytes]:
        """The objects as they are: they are such a stream."""
        head = self._manifest.head
        with judged(head.key):
            for part in head.parts:
                digest = new_digest()
                yield from map(bytes, self._place.windows(object_path(head.key, part.name), part.size, digest))
                if digest.hexdigest() != part.sha256:
                    raise ArchiveMismatch(f"the checksum of {part.name} differs from the manifest", object=part.name)


def open_archive(place: ArchiveStore, key: ArchiveKey) -> ReadableArchive:
    """Failed ARCHIVE_NOT_FOUND or CHECKSUM_MISMATCH if it is missing or damaged."""
    with judged(key):
        root = fetch_root(place, key)
    return TarArchive(place, find(place, key)) if root is None else PackedArchive(place, root)


def below(entries: Iterable[Entry], folder: str) -> Iterator[Entry | None]:
    """The entries directly in this folder; of a file, the file itself. Refused `no_such_file` if there is neither.

    None for each other entry: there the caller can stop.
    """
    wanted = plain_path(folder)
    is_home, is_found = wanted in ("", HOME), False
    for entry in entries:
        above, _, _ = entry.path.rpartition("/")
        is_in = entry.path != HOME and above == ("" if is_home else wanted)
        is_itself = entry.path == wanted and not is_home
        is_found = is_found or is_in or is_itself or is_home
        yield entry if is_in or (is_itself and entry.kind is not EntryKind.DIRECTORY) else None
    if not is_found:
        raise Refused("no_such_file", f"the archive has no {folder!r}", path=folder)


def skipped_below(skipped: Iterable[SkippedEntry], folder: str) -> Iterator[SkippedEntry]:
    """Those directly in this folder."""
    wanted = folder.strip("/")
    above = "" if wanted == HOME else wanted
    return (one for one in skipped if one.path.rpartition("/")[0] == above)


class Difference(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class ChangedPath:
    change: Difference
    path: str


def differences(before: ReadableArchive, after: ReadableArchive) -> Iterator[ChangedPath | None]:
    """Times alone are no difference: a file that is written again with the same content is the same.

    None for each path without a difference: there the caller can stop.
    """
    same_format = before.format == after.format
    old, new = before.entries(), after.entries()
    one, other = next(old, None), next(new, None)
    while one is not None or other is not None:
        if other is None or (one is not None and _order(one) < _order(other)):
            assert one is not None
            yield ChangedPath(Difference.REMOVED, one.path)
            one = next(old, None)
        elif one is None or _order(other) < _order(one):
            yield ChangedPath(Difference.ADDED, other.path)
            other = next(new, None)
        else:
            is_same = _facts(one, same_format=same_format) == _facts(other, same_format=same_format)
            yield None if is_same else ChangedPath(Difference.CHANGED, other.path)
            one, other = next(old, None), next(new, None)


def _order(entry: Entry) -> list[bytes]:
    return [] if entry.path == HOME else entry.path.encode("utf-8", "surrogateescape").split(b"/")


def _facts(entry: Entry, *, same_format: bool) -> tuple[object, ...]:
    # Hashes of different formats cannot be compared; then a file is the same if its size and time are.
    content = entry.sha256 if same_format else entry.mtime_ns if entry.kind is EntryKind.FILE else None
    return entry.kind, entry.mode, entry.uid, entry.gid, entry.size, entry.target, dict(entry.xattrs), content
