"""Read the documents of an archive's sections from its packs."""

from collections.abc import Iterator
from functools import partial

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.packs import hashes
from torpor.archives.packs.compression import decompress
from torpor.archives.packs.layout import pack_path
from torpor.archives.packs.root import Root, SectionRef, StoredDocument
from torpor.archives.packs.rows import Columns, HomeRoot, RowCheck
from torpor.archives.packs.sections import Refs, decode_tree
from torpor.archives.store import ArchiveStore, named

WINDOW_BYTES = 4 << 20
WINDOWS = 2
"""Tree and refs documents are in different parts of a pack."""


class Documents:
    """Documents are read in windows: those of neighbouring sections follow each other in a pack."""

    def __init__(self, place: ArchiveStore, root: Root) -> None:
        self._place = place
        self._root = root
        self._windows: list[tuple[str, int, memoryview]] = []

    def tree(self, section: SectionRef) -> Columns:
        path = pack_path(self._root.workspace_id, section.tree.frame.pack)
        with named(path):
            columns = decode_tree(self._document(section.tree, hashes.TREE))
            if len(columns[0]) != section.entries:
                raise ArchiveMismatch("a section has another number of entries than the root says")
        return columns

    def refs(self, section: SectionRef, columns: Columns) -> Refs:
        refs = Refs.decode(self._document(section.refs, hashes.REFS), columns)
        for frame in refs.frames:
            use = self._root.uses.get(frame.pack)
            if use is None or frame.start + frame.stored > use.size:
                raise ArchiveMismatch(f"a section refers to {frame.pack}, or to a part of it, that the root does not have")
        return refs

    def _document(self, stored: StoredDocument, domain: bytes) -> bytes:
        path = pack_path(self._root.workspace_id, stored.frame.pack)

        def checked(squeezed: memoryview) -> bytes:
            with named(path):
                data = decompress(squeezed, stored.frame.raw)
            if hashes.digest_of(domain, data) != stored.digest:
                raise ArchiveMismatch(f"a document in {path} differs from the root", object=path)
            return data

        try:
            return checked(self._stored(stored))
        except ArchiveMismatch:
            # Read again without its neighbours: a network can damage an answer.
            return checked(self._place.confirmed(partial(self._place.part, path, stored.frame.start, stored.frame.stored)))

    def _stored(self, stored: StoredDocument) -> memoryview:
        frame = stored.frame
        for position, (pack, begin, window) in enumerate(self._windows):
            if pack == frame.pack and begin <= frame.start and frame.start + frame.stored <= begin + len(window):
                self._windows.append(self._windows.pop(position))
                return window[frame.start - begin : frame.start - begin + frame.stored]
        rest = self._root.uses[frame.pack].size - frame.start
        path = pack_path(self._root.workspace_id, frame.pack)
        window = self._place.part(path, frame.start, max(frame.stored, min(WINDOW_BYTES, rest)))
        self._windows = [*self._windows[1 - WINDOWS :], (frame.pack, frame.start, window)]
        return window[: frame.stored]


def checked_trees(documents: Documents, root: Root) -> Iterator[tuple[SectionRef, Columns]]:
    """All sections in order, with every row checked. Raises at the end if they do not have the home root of the archive."""
    check, home_root = RowCheck(), HomeRoot()
    for section in root.sections:
        columns = documents.tree(section)
        check.check(columns)
        home_root.add(columns)
        yield section, columns
    if home_root.hex() != root.manifest_root:
        raise ArchiveMismatch(f"the entries have the root {home_root.hex()}, the archive says {root.manifest_root}")
    if (home_root.entries, home_root.files, home_root.home_bytes) != (root.entries, root.files, root.home_bytes):
        raise ArchiveMismatch("the number or size of the entries differs from the root")
