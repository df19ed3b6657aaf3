"""What does an archive say about itself?

`{workspace_id}/{op_id}/home.tar.zst` is the home; `manifest.json.zst`, written last and never changed, says that the archive
is whole and what must be in it. The manifest is two zstd frames that make one JSON document: a head, then an entry a line.
So it can be written and read without holding a million entries, and a person can read it with `zstd -dc` and `jq`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torpor import __version__
from torpor.archives.entries import ArchiveMismatch, Entry, EntryOrder, HomeFacts, RootHash
from torpor.archives.frames import compressor, decompressed, lines
from torpor.archives.store import ArchiveStore
from torpor.archives.tree import SkippedEntry
from torpor.domain.records import ArchiveKey

FORMAT = 1
HOME_NAME = "home.tar.zst"
MANIFEST_NAME = "manifest.json.zst"
MOST_HEAD_BYTES = 64 << 20
ENTRIES_FOLLOW = b' "entries": ['


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """An object that holds a piece of the tar. There is one today; the entries are spread over them in order."""

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
    """The first of those that were left out."""
    skipped_count: int = 0
    created_by: str = f"torpor {__version__}"
    format: int = FORMAT

    @property
    def key(self) -> ArchiveKey:
        return ArchiveKey(self.workspace_id, self.op_id)

    def text(self) -> bytes:
        """The document up to its entries."""
        # One line a field for a person's eye; the last closing brace comes after the entries.
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
            raise ArchiveMismatch("the manifest has a number that cannot be")
        if type(head.home.mtime_ns) is not int or not all(part.name == HOME_NAME for part in head.parts):
            raise ArchiveMismatch("the manifest names something that an archive does not have")
        return head


class ManifestBuilder:
    """The entries of an archive as they come, squeezed at once: what stays in memory is small."""

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
        """Each entry, in its place; at the end it is certain that they are the ones that the root stands for."""
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
            raise ArchiveMismatch("the manifest goes on after its end")
        if root.hex() != self.head.manifest_root:
            raise ArchiveMismatch(f"the manifest's entries have the root {root.hex()}, its head says {self.head.manifest_root}")
        if (root.files, root.home_bytes) != (self.head.files, self.head.home_bytes):
            raise ArchiveMismatch("the manifest's entries are not as many as its head says")


def object_path(key: ArchiveKey, name: str) -> str:
    return f"{key}/{name}"


def fetch(place: ArchiveStore, key: ArchiveKey) -> Manifest | None:
    """The manifest of a finished archive; None when there is none."""
    path = object_path(key, MANIFEST_NAME)
    size = place.size(path)
    if size is None:
        return None
    squeezed = b"".join(place.windows(path, size))
    return Manifest(_head([squeezed], key), squeezed)


def fetch_head(place: ArchiveStore, key: ArchiveKey) -> ManifestHead | None:
    """Only what a manifest says first: however many entries it has, this stays a small question."""
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
        raise ArchiveMismatch(f"the manifest under {key} is that of {head.key}", object=object_path(key, MANIFEST_NAME))
    return head
