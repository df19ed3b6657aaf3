"""Change an archive of format 2 and store it again with right hashes, as an attacker with access to the store could."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.archives.packs.stage import PackStage
from torpor.archives.packs import hashes
from torpor.archives.packs.compression import compress
from torpor.archives.packs.documents import Documents
from torpor.archives.packs.root import PackUse, Root, SectionRef, StoredDocument, fetch_root
from torpor.archives.packs.rows import Columns, HomeRoot, Row
from torpor.archives.packs.sections import Frame, Refs, encode_tree
from torpor.domain.records import ArchiveKey


@dataclass(slots=True)
class ForgedSection:
    rows: list[Row]
    refs: Refs

    @property
    def columns(self) -> Columns:
        return tuple(list(column) for column in zip(*self.rows, strict=True))


@dataclass(slots=True)
class Forgery:
    """Rows and refs of an archive. `write` stores them as a new archive that looks intact."""

    root: Root
    sections: list[ForgedSection]

    @classmethod
    def of(cls, stage: PackStage, key: ArchiveKey) -> "Forgery":
        root = fetch_root(stage.place, key)
        assert root is not None
        documents = Documents(stage.place, root)
        sections = []
        for section in root.sections:
            columns = documents.tree(section)
            rows = [Row._make(row) for row in zip(*columns, strict=True)]
            sections.append(ForgedSection(rows, documents.refs(section, columns)))
        return cls(root, sections)

    def change(self, which: bytes, /, **fields: bytes) -> None:
        for section in self.sections:
            for number, row in enumerate(section.rows):
                if row.path == which:
                    section.rows[number] = row._replace(**fields)
                    return
        raise LookupError(which)

    def row(self, path: bytes) -> Row:
        return next(row for section in self.sections for row in section.rows if row.path == path)

    def write(self, stage: PackStage, **fields: Any) -> Root:
        """`fields` of the root replace those that would be right."""
        key = stage.key()
        documents, frames = [], list[tuple[int, int, int]]()
        stored = b""
        for section in self.sections:
            for text in (encode_tree(section.columns), section.refs.encode()):
                squeezed = compress(text)
                frames.append((len(stored), len(squeezed), len(text)))
                documents.append(text)
                stored += squeezed
        name = f"{key.op_id}-{hashlib.sha256(stored).hexdigest()}"
        stage.pack(name).parent.mkdir(parents=True, exist_ok=True)
        stage.pack(name).write_bytes(stored)

        def document(number: int, domain: bytes) -> StoredDocument:
            return StoredDocument(Frame(name, *frames[number]), hashes.digest_of(domain, documents[number]))

        home_root = HomeRoot()
        refs = []
        for number, section in enumerate(self.sections):
            home_root.add(section.columns)
            live = {frame.pack: frame.raw for frame in section.refs.frames if frame.pack in self.root.uses}
            tree, places = document(2 * number, hashes.TREE), document(2 * number + 1, hashes.REFS)
            refs.append(SectionRef(len(section.rows), tree, places, live))
        raw = sum(len(text) for text in documents)
        root = replace(
            self.root,
            op_id=key.op_id,
            manifest_root=home_root.hex(),
            entries=home_root.entries,
            files=home_root.files,
            home_bytes=home_root.home_bytes,
            uses={**self.root.uses, name: PackUse(len(stored), raw, raw)},
            sections=tuple(refs),
        )
        root = replace(root, **fields)
        store_root(stage, root)
        return root


def store_root(stage: PackStage, root: Root) -> None:
    path = stage.root(root.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(root.serialise())


def store_pack(stage: PackStage, key: ArchiveKey, frames: Sequence[tuple[bytes, int]]) -> list[Frame]:
    """A pack of frames as they are, each with the length that it claims to have."""
    stored = b"".join(frame for frame, _ in frames)
    name = f"{key.op_id}-{hashlib.sha256(stored).hexdigest()}"
    stage.pack(name).parent.mkdir(parents=True, exist_ok=True)
    stage.pack(name).write_bytes(stored)
    found, start = [], 0
    for frame, raw in frames:
        found.append(Frame(name, start, len(frame), raw))
        start += len(frame)
    return found
