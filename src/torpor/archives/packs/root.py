"""Read and write the root of an archive of format 2, which states that the archive is complete and names all that it needs.

A root is one JSON document in one zstd frame: canonical (sorted keys, no spaces), with the SHA-256 of itself. It is written
last and never changes.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torpor import __version__
from torpor.archives.entries import ArchiveMismatch, HomeFacts
from torpor.archives.frames import compressor, decompressed
from torpor.archives.packs.layout import root_path
from torpor.archives.packs.sections import MOST_DOCUMENT_BYTES, Frame
from torpor.archives.store import ArchiveStore
from torpor.archives.tree import SkippedEntry
from torpor.domain.names import pack_op_id
from torpor.domain.records import ArchiveKey

FORMAT = 2
MOST_ROOT_BYTES = 256 << 20
"""Of the document: a larger one is not a root."""


@dataclass(frozen=True, slots=True)
class PackUse:
    """A pack that the archive needs."""

    size: int
    raw: int
    """The decompressed size of all that is in it."""
    live: int
    """How much of that this archive uses."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    frame: Frame
    digest: bytes


@dataclass(frozen=True, slots=True)
class SectionRef:
    """Where a section is, and how many bytes of content its files have in each pack."""

    entries: int
    tree: StoredDocument
    refs: StoredDocument
    live: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Root:
    workspace_id: str
    op_id: str
    generation: int
    revision: int
    manifest_root: str
    """The hash over all entries."""
    home: HomeFacts
    entries: int
    files: int
    home_bytes: int
    uses: Mapping[str, PackUse]
    """By the name of the pack."""
    sections: Sequence[SectionRef]
    skipped: Sequence[SkippedEntry] = ()
    """The first of the entries that were left out."""
    skipped_count: int = 0
    created_by: str = f"torpor {__version__}"

    @property
    def key(self) -> ArchiveKey:
        return ArchiveKey(self.workspace_id, self.op_id)

    @property
    def packs(self) -> Mapping[str, int]:
        """The size of each pack that the archive needs, by name."""
        return {name: use.size for name, use in self.uses.items()}

    def serialise(self) -> bytes:
        """The object in the store."""
        names = sorted(self.uses)
        number = {name: position for position, name in enumerate(names)}

        def document(stored: StoredDocument) -> list[object]:
            frame = stored.frame
            return [number[frame.pack], frame.start, frame.stored, frame.raw, stored.digest.hex()]

        said: dict[str, Any] = {
            "format": FORMAT,
            "workspace_id": self.workspace_id,
            "op_id": self.op_id,
            "generation": self.generation,
            "revision": self.revision,
            "manifest_root": self.manifest_root,
            "home": {"uid": self.home.uid, "gid": self.home.gid, "mtime_ns": self.home.mtime_ns},
            "entries": self.entries,
            "files": self.files,
            "home_bytes": self.home_bytes,
            "packs": [
                {"name": name, "size": use.size, "raw": use.raw, "live": use.live}
                for name, use in ((name, self.uses[name]) for name in names)
            ],
            "sections": [
                [
                    section.entries,
                    document(section.tree),
                    document(section.refs),
                    sorted([number[name], live] for name, live in section.live.items()),
                ]
                for section in self.sections
            ],
            "skipped": [[skipped.path, skipped.kind] for skipped in self.skipped],
            "skipped_count": self.skipped_count,
            "created_by": self.created_by,
        }
        frame = compressor()
        return frame.compress(_canonical({**said, "checksum": _checksum(said)})) + frame.flush()

    @classmethod
    def parse(cls, squeezed: bytes) -> "Root":
        """Raise ArchiveMismatch if this is not a root, or if it is damaged."""
        text = bytearray()
        for piece in decompressed([squeezed]):
            text += piece
            if len(text) > MOST_ROOT_BYTES:
                raise ArchiveMismatch(f"the root is longer than {MOST_ROOT_BYTES} bytes")
        try:
            said: dict[str, Any] = json.loads(bytes(text))
            if said["format"] != FORMAT:
                raise ArchiveMismatch(f"the root has format {said['format']!r}; expected {FORMAT}")
            if said["checksum"] != _checksum(said):
                raise ArchiveMismatch("the checksum of the root differs from its content")
            root = _read(said)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ArchiveMismatch(f"the root cannot be read: {error}") from error
        return root


def _read(said: dict[str, Any]) -> Root:
    names: list[str] = [pack["name"] for pack in said["packs"]]
    uses = {pack["name"]: PackUse(_number(pack["size"]), _number(pack["raw"]), _number(pack["live"])) for pack in said["packs"]}
    if len(uses) != len(names) or not all(isinstance(name, str) and pack_op_id(name) is not None for name in names):
        raise ArchiveMismatch("the root names a pack twice, or an invalid pack")

    def document(given: list[Any]) -> StoredDocument:
        pack, start, stored, raw, digest = given
        frame = Frame(names[_number(pack)], _number(start), _number(stored), _number(raw))
        if frame.start + frame.stored > uses[frame.pack].size or not 0 < frame.raw <= MOST_DOCUMENT_BYTES:
            raise ArchiveMismatch("the root refers to a document outside of its pack")
        return StoredDocument(frame, bytes.fromhex(digest))

    sections = tuple(
        SectionRef(
            _number(entries), document(tree), document(refs), {names[_number(pack)]: _number(used) for pack, used in live}
        )
        for entries, tree, refs, live in said["sections"]
    )
    home = said["home"]
    if type(home["mtime_ns"]) is not int:
        raise ArchiveMismatch("the root has an invalid time")
    root = Root(
        workspace_id=_text(said["workspace_id"]),
        op_id=_text(said["op_id"]),
        generation=_number(said["generation"]),
        revision=_number(said["revision"]),
        manifest_root=_text(said["manifest_root"]),
        home=HomeFacts(_number(home["uid"]), _number(home["gid"]), home["mtime_ns"]),
        entries=_number(said["entries"]),
        files=_number(said["files"]),
        home_bytes=_number(said["home_bytes"]),
        uses=uses,
        sections=sections,
        skipped=tuple(SkippedEntry(_text(path), _text(kind)) for path, kind in said["skipped"]),
        skipped_count=_number(said["skipped_count"]),
        created_by=_text(said["created_by"]),
    )
    if not sections or sum(section.entries for section in sections) != root.entries:
        raise ArchiveMismatch("the sections of the root have another number of entries")
    return root


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ArchiveMismatch(f"the root has an invalid number: {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ArchiveMismatch(f"the root has an invalid text: {value!r}")
    return value


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical({**document, "checksum": ""})).hexdigest()


def fetch_root(place: ArchiveStore, key: ArchiveKey) -> Root | None:
    """The root of a finished archive, verified; None if there is none."""
    path = root_path(key)
    found = place.head(path)
    if found is None:
        return None
    if found.size > MOST_ROOT_BYTES:
        raise ArchiveMismatch(f"{path} has {found.size} bytes, which is too much for a root", object=path)
    document = b"".join(place.windows(path, found.size))
    try:
        root = Root.parse(document)
    except ArchiveMismatch as error:
        raise ArchiveMismatch(error.message, object=path) from error
    if root.key != key:
        raise ArchiveMismatch(f"the root of {key} belongs to {root.key}", object=path)
    return root
