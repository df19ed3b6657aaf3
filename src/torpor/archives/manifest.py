"""Read and write the manifest, which states that an archive is complete and what it contains.

`{workspace_id}/{op_id}/home.tar.zst` is the home. `manifest.json.zst` is written last and never changes. It is two zstd frames
that form one JSON document: a head, then one entry per line. So a million entries need little memory, and you can read it with
`zstd -dc` and `jq`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torpor import __version__
from torpor.archives.entries import ArchiveMismatch, Entry, EntryOrder, HomeFacts, RootHash
from torpor.archives.frames import compressor, decompressed, lines
from torpor.archives.store import ArchiveStore, named
from torpor.archives.tree import SkippedEntry
from torpor.domain.records import ArchiveKey

FORMAT = 1
HOME_NAME = "home.tar.zst"
MANIFEST_NAME = "manifest.json.zst"
MOST_HEAD_BYTES = 64 << 20
ENTRIES_FOLLOW = b' "entries": ['


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """An object with a part of the tar. Today an archive has one part."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ManifestHead:
    workspace_id: str
    op_id: str
    generation: int
    revision: int
    home: HomeFacts
    manifest_root: str
    files: int
    home_bytes: int
    parts: tuple[ArchivePart, ...]
    skipped: tuple[SkippedEntry, ...] = ()
    """The first of the entries that were left out."""
    skipped_count: int = 0
    created_by: str = f"torpor {__version__}"
    format: int = FORMAT

    @property
    def key(self) -> ArchiveKey:
        return ArchiveKey(self.workspace_id, self.op_id)

    def text(self) -> bytes:
        """The document up to its entries."""
        # One field per line, for readers; the closing brace comes after the entries.
        document = json.dumps(asdict(self), indent=1)
        return document.removesuffix("\n}").encode() + b",\n" + ENTRIES_FOLLOW + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> "ManifestHead":
        try:
            said: dict[str, Any] = json.loads(text + b"]}")
            if said["format"] != FORMAT:
                raise ArchiveMismatch(f"the archive has format {said['format']!r}; this Torpor reads {FORMAT}")
            said.pop("entries")
            said["home"] = HomeFacts(**said["home"])
            said["parts"] = tuple(ArchivePart(**part) for part in said["parts"])
            said["skipped"] = tuple(SkippedEntry(**skipped) for skipped in said["skipped"])
            said.setdefault("skipped_count", len(said["skipped"]))
            head = cls(**said)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArchiveMismatch(f"the manifest cannot be read: {error}") from error
        counts = (head.files, head.home_bytes, head.skipped_count, *(part.size for part in head.parts))
        numbers = (head.generation, head.revision, head.home.uid, head.home.gid, *counts)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ArchiveMismatch("the manifest has an invalid number")
        if type(head.home.mtime_ns) is not int or not all(part.name == HOME_NAME for part in head.parts):
            raise ArchiveMismatch("the manifest has an invalid mtime or an unknown part")
        return head


class ManifestBuilder:
    """Collects entries and compresses them at once, to use little memory."""

    def __init__(self) -> None:
        self.root = RootHash()
        self._frame = compressor()
        self._squeezed: list[bytes] = []
        self._count = 0

    def add(self, entry: Entry) -> None:
        line = self.root.add(entry)
        self._squeezed.append(self._frame.compress((b",\n" if self._count else b"") + line))
        self._count += 1

    def manifest(self, head: ManifestHead) -> bytes:
        front = compressor()
        return b"".join(
            (front.compress(head.text()), front.flush(), *self._squeezed, self._frame.compress(b"\n]}\n"), self._frame.flush())
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read from a store."""

    head: ManifestHead
    squeezed: bytes

    def entries(self) -> Iterator[Entry]:
        """Each entry, with its position checked. Raises at the end if they do not have the root of the head."""
        root, order = RootHash(), EntryOrder()
        rows = lines(decompressed([self.squeezed]))
        for row in rows:
            if row == ENTRIES_FOLLOW:
                break
        for row in rows:
            if row == b"]}":
                break
            line = row.removesuffix(b",")
            entry = Entry.parse(line)
            order.check(entry)
            root.add(entry, line)
            yield entry
        else:
            raise ArchiveMismatch("the manifest has no end")
        if any(rows):
            raise ArchiveMismatch("the manifest has data after its end")
        if root.hex() != self.head.manifest_root:
            raise ArchiveMismatch(f"the manifest's entries have the root {root.hex()}, its head says {self.head.manifest_root}")
        if (root.files, root.home_bytes) != (self.head.files, self.head.home_bytes):
            raise ArchiveMismatch("the number or size of the manifest's entries differs from its head")


def object_path(key: ArchiveKey, name: str) -> str:
    return f"{key}/{name}"


def fetch(place: ArchiveStore, key: ArchiveKey) -> Manifest | None:
    """The manifest of a finished archive; None when there is none."""
    return place.confirmed(lambda: _fetch_once(place, key))


def _fetch_once(place: ArchiveStore, key: ArchiveKey) -> Manifest | None:
    path = object_path(key, MANIFEST_NAME)
    size = place.size(path)
    if size is None:
        return None
    squeezed = b"".join(place.windows(path, size))
    with named(path):
        for _ in decompressed([squeezed]):
            pass  # its checksums are compared here, where it can be read again
        return Manifest(_head([squeezed], key), squeezed)


def fetch_head(place: ArchiveStore, key: ArchiveKey) -> ManifestHead | None:
    """Only the head of a manifest: a small request for any number of entries."""
    path = object_path(key, MANIFEST_NAME)
    size = place.size(path)
    return None if size is None else _head(place.windows(path, size, window_bytes=1 << 16), key)


def _head(squeezed: Iterable[bytes | memoryview], key: ArchiveKey) -> ManifestHead:
    text = bytearray()
    for row in lines(decompressed(squeezed)):
        text += row + b"\n"
        if row == ENTRIES_FOLLOW:
            break
        if len(text) > MOST_HEAD_BYTES:
            raise ArchiveMismatch("the manifest's head has no end")
    head = ManifestHead.parse(bytes(text))
    if head.key != key:
        raise ArchiveMismatch(f"the manifest of {key} belongs to {head.key}", object=object_path(key, MANIFEST_NAME))
    return head
