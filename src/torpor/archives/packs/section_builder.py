"""Cut the rows of an archive into sections, and store their documents.

Rows arrive in order: new ones, and rows of the base. A section that consists of the same rows as one of the base is taken over
with its documents.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torpor.archives.packs import hashes
from torpor.archives.packs.base import BaseSection
from torpor.archives.packs.content_places import OFFSET_BITS, ZERO_PLACE
from torpor.archives.packs.hashes import block_length
from torpor.archives.packs.pack_numbers import PackNumbers
from torpor.archives.packs.pack_writer import PackWriter
from torpor.archives.packs.root import SectionRef, StoredDocument
from torpor.archives.packs.rows import HomeRoot, Row
from torpor.archives.packs.sections import (
    LEAST_ENTRIES,
    MOST_BYTES,
    MOST_ENTRIES,
    NO_FRAME,
    Refs,
    encode_tree,
    is_cut_after,
    row_bytes,
)
from torpor.archives.packs.side_file import SideFile

OFFSET_MASK = (1 << OFFSET_BITS) - 1


@dataclass(slots=True)
class _NewSection:
    """A section whose packs are not finished: its refs document is written at the end."""

    entries: int
    contents: int
    """How many there are."""
    start: int
    """In the side file: the places of the contents, then their lengths."""
    digests: list[bytes]
    tree: "_Placed"


@dataclass(frozen=True, slots=True)
class _Placed:
    """A document in a pack that is not finished."""

    pack: int
    frame: int
    digest: bytes


class SectionBuilder:
    def __init__(self, packs: PackNumbers, documents: PackWriter, side: SideFile | None = None) -> None:
        self.home_root = HomeRoot()
        self._side = side or SideFile(())
        self._packs = packs
        self._documents = documents
        self._sections: list[SectionRef | _NewSection] = []
        self._rows: list[Sequence[bytes]] = []
        self._places = array("q")
        self._lengths = array("q")
        self._digests: list[bytes] = []
        self._bytes = 0
        # While all rows of the open section are the first rows of this section of the base, they are only counted.
        self._same: BaseSection | None = None
        self._same_rows = 0

    def add(self, row: Row, places: Sequence[int], digests: Sequence[bytes]) -> None:
        """A row with the places of its content; `digests` of the blocks, if it has several."""
        self._copy_same_rows()
        self._append(row, places, digests)

    def add_from_base(self, section: BaseSection, row: int) -> None:
        """A row of the base whose content can be used."""
        if self._same is section and self._same_rows == row:
            self._same_rows += 1
        elif self._same is None and not self._rows and row == 0:
            self._same, self._same_rows = section, 1
        else:
            self._copy_same_rows()
            self._append_from_base(section, row)
            return
        if self._same_rows == section.ref.entries and not section.is_last and section.is_usable:
            self._take_over()

    def finish(self) -> None:
        """The last section ends with the last row."""
        same = self._same
        if same is not None and self._same_rows == same.ref.entries and same.is_last and same.is_usable:
            self._take_over()
        self._copy_same_rows()
        self._cut()

    def sections(self) -> list[SectionRef]:
        """Store the refs documents of new sections. All packs with contents must be finished."""
        encoded = [(section, *self._encoded(section)) for section in self._sections if isinstance(section, _NewSection)]
        for pack in self._documents.finish():
            self._packs.add(pack)
        finished = (
            SectionRef(section.entries, self._stored(section.tree), self._stored(refs), live) for section, refs, live in encoded
        )
        return [section if isinstance(section, SectionRef) else next(finished) for section in self._sections]

    def packs_of_base(self) -> set[str]:
        """The packs of the base that the archive needs. Call it after `finish`."""
        needed: set[str] = set()
        for section in self._sections:
            if isinstance(section, SectionRef):
                needed.update((*section.live, section.tree.frame.pack, section.refs.frame.pack))
            else:
                frames = {place >> OFFSET_BITS for place in self._read(section)[0] if place != ZERO_PLACE}
                needed.update(self._packs.frame_at(frame).pack for frame in frames if self._packs.is_of_base(frame))
        return needed

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, row: Sequence[bytes], places: Sequence[int], digests: Sequence[bytes]) -> None:
        self._rows.append(row)
        if places:
            size = int(row[6])
            self._places.extend(places)
            self._lengths.extend((size,) if len(places) == 1 else (block_length(size, block) for block in range(len(places))))
            self._digests.extend(digests)
        self._bytes += row_bytes(row)
        count = len(self._rows)
        if count >= MOST_ENTRIES or self._bytes >= MOST_BYTES or (count >= LEAST_ENTRIES and is_cut_after(row[0])):
            self._cut()

    def _append_from_base(self, section: BaseSection, row: int) -> None:
        fields = tuple(column[row] for column in section.columns)
        places = section.places(row)
        assert places is not None, "a row is taken over only if its content can be used"
        self._append(fields, places, section.block_digests(row) if len(places) > 1 else ())

    def _copy_same_rows(self) -> None:
        section, count = self._same, self._same_rows
        self._same, self._same_rows = None, 0
        if section is not None:
            for row in range(count):
                self._append_from_base(section, row)

    def _take_over(self) -> None:
        assert self._same is not None
        self.home_root.add(self._same.columns)
        self._sections.append(self._same.ref)
        self._same, self._same_rows = None, 0

    def _cut(self) -> None:
        if not self._rows:
            return
        columns = tuple(map(list, zip(*self._rows, strict=True)))
        self.home_root.add(columns)
        tree = self._store(hashes.TREE, encode_tree(columns))
        start = self._side.add(self._places.tobytes() + self._lengths.tobytes())
        self._sections.append(_NewSection(len(self._rows), len(self._places), start, self._digests, tree))
        self._rows, self._digests, self._bytes = [], [], 0
        self._places, self._lengths = array("q"), array("q")

    # ── documents ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _encoded(self, section: _NewSection) -> tuple[_Placed, Mapping[str, int]]:
        """Store the refs document; return how many bytes each pack has of this section."""
        numbers: dict[int, int] = {}
        frame_of: list[int] = []
        live: dict[int, int] = {}
        places, lengths = self._read(section)
        for place, length in zip(places, lengths, strict=True):
            if place == ZERO_PLACE:
                frame_of.append(NO_FRAME)
                continue
            frame = place >> OFFSET_BITS
            frame_of.append(numbers.setdefault(frame, len(numbers)))
            live[frame] = live.get(frame, 0) + length
        offsets = [0 if place == ZERO_PLACE else place & OFFSET_MASK for place in places]
        frames = tuple(map(self._packs.frame_at, numbers))
        of_pack: dict[str, int] = {}
        for frame, number in numbers.items():
            of_pack[frames[number].pack] = of_pack.get(frames[number].pack, 0) + live[frame]
        document = Refs(frames, frame_of, offsets, tuple(section.digests)).encode()
        return self._store(hashes.REFS, document), of_pack

    def _read(self, section: _NewSection) -> tuple["array[int]", "array[int]"]:
        numbers = array("q", self._side.read(section.start, 16 * section.contents))
        return numbers[: section.contents], numbers[section.contents :]

    def _store(self, domain: bytes, document: bytes) -> _Placed:
        digest = hashes.digest_of(domain, document)
        pack, frame, _ = self._documents.add_alone(domain, digest, document)
        return _Placed(pack, frame, digest)

    def _stored(self, placed: _Placed) -> StoredDocument:
        return StoredDocument(self._packs.frame_of(placed.pack, placed.frame), placed.digest)
