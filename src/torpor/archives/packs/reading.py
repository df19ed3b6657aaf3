"""Read an archive of format 2 without a restore: its entries, one file, or all of it as a tar stream."""

from collections.abc import Iterator

from torpor.archives.entries import ArchiveMismatch, Entry
from torpor.archives.file_lookup import file_at
from torpor.archives.frames import compressed
from torpor.archives.packs.compression import decompress
from torpor.archives.packs.documents import Documents, checked_trees
from torpor.archives.packs.hashes import BLOCK_BYTES, block_count, block_length, content_digest, large_file_digest
from torpor.archives.packs.layout import pack_path
from torpor.archives.packs.root import FORMAT, Root
from torpor.archives.packs.rows import FILE, Row, to_entry, to_rows
from torpor.archives.packs.sections import NO_FRAME, Frame, Refs
from torpor.archives.store import ArchiveStore, named
from torpor.archives.tarheader import END, header, padding
from torpor.archives.unpack import judged


class PackedArchive:
    """Implements `torpor.archives.reading.ReadableArchive`."""

    format = FORMAT

    def __init__(self, place: ArchiveStore, root: Root) -> None:
        self._place = place
        self._root = root
        self.skipped = root.skipped
        self._frame: Frame | None = None
        self._data = b""

    def entries(self) -> Iterator[Entry]:
        with judged(self._root.key):
            for _, columns in checked_trees(Documents(self._place, self._root), self._root):
                yield from map(to_entry, to_rows(columns))

    def content(self, path: str) -> Iterator[bytes]:
        wanted = yield from file_at(self.entries, path)
        with judged(self._root.key):
            yield from self._found(wanted.path.encode("utf-8", "surrogateescape"))

    def export(self) -> Iterator[bytes]:
        yield from compressed(self._tar())

    def _tar(self) -> Iterator[bytes]:
        with judged(self._root.key):
            for row, contents in self._files():
                yield header(to_entry(row), self._root.home)
                if row.kind == FILE:
                    yield from contents
                    yield padding(int(row.size))
            yield END

    def _found(self, path: bytes) -> Iterator[bytes]:
        documents = Documents(self._place, self._root)
        for section in self._root.sections:
            columns = documents.tree(section)
            if path in columns[0]:
                refs = documents.refs(section, columns)
                rows = list(to_rows(columns))
                yield from next(found for row, found in self._section_files(rows, refs) if row.path == path)
                return
            yield b""
        raise ArchiveMismatch(f"the entry {path!r} is missing in the sections")

    def _files(self) -> Iterator[tuple[Row, Iterator[bytes]]]:
        documents = Documents(self._place, self._root)
        for section, columns in checked_trees(documents, self._root):
            yield from self._section_files(list(to_rows(columns)), documents.refs(section, columns))

    def _section_files(self, rows: list[Row], refs: Refs) -> Iterator[tuple[Row, Iterator[bytes]]]:
        position = digests = 0
        for row in rows:
            size = int(row.size)
            yield row, self._content(row, size, refs, position, digests)
            if size:
                position += block_count(size)
                digests += block_count(size) if size > BLOCK_BYTES else 0

    def _content(self, row: Row, size: int, refs: Refs, position: int, digests: int) -> Iterator[bytes]:
        if not size:
            return
        count = block_count(size)
        expected = [bytes.fromhex(row.digest.decode())] if count == 1 else list(refs.digests[digests : digests + count])
        if count > 1 and large_file_digest(size, expected).hex().encode() != row.digest:
            raise ArchiveMismatch(f"the blocks of {row.path!r} differ from the archive", path=repr(row.path))
        for block in range(count):
            length = block_length(size, block)
            number = refs.frame[position + block]
            frame = None if number == NO_FRAME else refs.frames[number]

            def read(
                frame: Frame | None = frame,
                offset: int = refs.offset[position + block],
                length: int = length,
                digest: bytes = expected[block],
            ) -> bytes:
                data = bytes(length) if frame is None else self._part(frame, offset, length)
                if content_digest(size, data) != digest:
                    self._frame = None
                    where = "" if frame is None else f" in {pack_path(self._root.workspace_id, frame.pack)}"
                    raise ArchiveMismatch(f"the content of {row.path!r}{where} differs from the archive", path=repr(row.path))
                return data

            yield self._place.confirmed(read)

    def _part(self, frame: Frame, offset: int, length: int) -> bytes:
        if self._frame != frame:
            path = pack_path(self._root.workspace_id, frame.pack)
            with named(path):
                self._frame = None
                self._data = decompress(self._place.part(path, frame.start, frame.stored), frame.raw)
                self._frame = frame
        return self._data[offset : offset + length]
