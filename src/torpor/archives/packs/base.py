"""The last archive of a home, or the one that it was restored from: contents that did not change are taken over from it.

Contents in packs that cannot be used count as unknown: they are read from the home again. A pack in which one document is
damaged cannot be used at all, because its other documents are not read if they are taken over.
"""

from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.packs.content_places import OFFSET_BITS, ZERO_PLACE, ContentPlaces
from torpor.archives.packs.documents import Documents
from torpor.archives.packs.hashes import BLOCK, BLOCK_BYTES, FILE, block_length
from torpor.archives.packs.pack_numbers import PackNumbers
from torpor.archives.packs.root import Root, SectionRef
from torpor.archives.packs.rows import FILE as FILE_KIND
from torpor.archives.packs.rows import HOME, Columns, order_key
from torpor.archives.packs.sections import NO_FRAME, Frame, Refs, content_starts, digest_starts
from torpor.archives.packs.stat_cache import StatKey, read_cache
from torpor.archives.store import ArchiveStore

LIVE_ENOUGH = 0.4
"""A pack of which less is used is given up: its live contents are stored again."""
REPACKED_AT_MOST = 0.1
"""Of the home, in one archive."""


class LostPack(ArchiveMismatch):
    """Packs of the base turned out to be damaged or missing: their contents must be read from the home."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(f"the packs {', '.join(sorted(names))} of the base cannot be used")
        self.names = frozenset(names)


@contextmanager
def lost_if_damaged(pack: str) -> Iterator[None]:
    """A document of this pack is read."""
    try:
        yield
    except ArchiveMismatch as error:
        raise LostPack({pack}) from error


def repacked(root: Root) -> frozenset[str]:
    """The packs that are given up, because little of them is used."""
    chosen: set[str] = set()
    left = root.home_bytes * REPACKED_AT_MOST
    sparse = [(use.live, name) for name, use in root.uses.items() if use.live < LIVE_ENOUGH * use.raw]
    for live, name in sorted(sparse):
        left -= live
        if left < 0:
            break
        chosen.add(name)
    return frozenset(chosen)


@dataclass(slots=True)
class BaseSection:
    """A section of the base, with its rows. The places of contents are read when they are needed."""

    number: int
    ref: SectionRef
    columns: Columns
    base: "Base"
    is_last: bool
    _refs: Refs | None = None
    _starts: "array[int]" = field(default_factory=lambda: array("q"))
    _digest_starts: "array[int]" = field(default_factory=lambda: array("q"))
    _frames: list[int | None] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """It can be taken over with its documents and all contents."""
        unusable = self.base.unusable
        return not unusable or unusable.isdisjoint((*self.ref.live, self.ref.tree.frame.pack, self.ref.refs.frame.pack))

    def refs(self) -> Refs:
        if self._refs is None:
            with lost_if_damaged(self.ref.refs.frame.pack):
                self._refs = self.base.documents.refs(self.ref, self.columns)
            self._starts = content_starts(self.columns)
            self._digest_starts = digest_starts(self.columns)
            self._frames = [self.base.frame_number(frame) for frame in self._refs.frames]
        return self._refs

    def places(self, row: int) -> list[int] | None:
        """Where the content of this row is; None if a part of it cannot be used."""
        refs = self.refs()
        found: list[int] = []
        for position in range(self._starts[row], self._starts[row + 1]):
            if refs.frame[position] == NO_FRAME:
                found.append(ZERO_PLACE)
                continue
            frame = self._frames[refs.frame[position]]
            if frame is None:
                return None
            found.append(frame << OFFSET_BITS | refs.offset[position])
        return found

    def block_digests(self, row: int) -> tuple[bytes, ...]:
        """Of a file with several blocks."""
        refs = self.refs()
        return refs.digests[self._digest_starts[row] : self._digest_starts[row + 1]]


class Base:
    """`lost`: packs that are damaged or missing. `given_up`: packs that the new archive must not need, but can be read."""

    def __init__(
        self, place: ArchiveStore, root: Root, home: Path, lost: frozenset[str], given_up: frozenset[str], packs: PackNumbers
    ) -> None:
        self.root = root
        self.documents = Documents(place, root)
        self.unusable = lost | given_up
        self._lost = lost
        self._packs = packs
        self._records = read_cache(home, root.key, root.manifest_root, root.entries)

    def frame_number(self, frame: Frame) -> int | None:
        return None if frame.pack in self.unusable else self._packs.add_frame_of_base(frame)

    def sections(self) -> Iterator[BaseSection]:
        last = len(self.root.sections) - 1
        for number, ref in enumerate(self.root.sections):
            if ref.tree.frame.pack in self._lost or ref.refs.frame.pack in self._lost:
                continue
            with lost_if_damaged(ref.tree.frame.pack):
                columns = self.documents.tree(ref)
            yield BaseSection(number, ref, columns, self, number == last)

    def stat_keys(self, section: BaseSection) -> Iterator[StatKey] | None:
        if self._records is None:
            return None
        start = sum(ref.entries for ref in self.root.sections[: section.number])
        return self._records.between(start, start + section.ref.entries)

    def index(self, places: ContentPlaces) -> None:
        """Make all contents of the base known by their digests."""
        for section in self.sections():
            digests = section.columns[9]
            for row, (kind, size) in enumerate(zip(section.columns[1], section.columns[6], strict=True)):
                if kind == FILE_KIND and size != b"0" and (found := section.places(row)):
                    length = int(size)
                    if length <= BLOCK_BYTES:
                        places.add(FILE, length, bytes.fromhex(digests[row].decode()), found[0])
                    else:
                        for number, digest in enumerate(section.block_digests(row)):
                            places.add(BLOCK, block_length(length, number), digest, found[number])


class BaseRows:
    """The rows of the base in their order, beside a walk: `find` may be called with later and later paths only."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._sections = base.sections()
        self.section: BaseSection | None = None
        self.row = -1
        """Of the last row that was found."""
        self._keys: list[bytes] = []
        self._records: list[StatKey] | None = None
        self._next = 0
        self._next_section()

    def find(self, path: bytes) -> bool:
        """Whether the base has this path: then `section`, `row` and `record` belong to it."""
        key = b"" if path == HOME else order_key(path)
        while self.section is not None:
            keys = self._keys
            count = len(keys)
            while self._next < count and keys[self._next] < key:
                self._next += 1
            if self._next < count:
                if keys[self._next] != key:
                    return False
                self.row = self._next
                self._next += 1
                return True
            self._next_section()
        return False

    def record(self) -> StatKey | None:
        return None if self._records is None else self._records[self.row]

    def _next_section(self) -> None:
        self.section = next(self._sections, None)
        if self.section is not None:
            self._keys = list(map(order_key, self.section.columns[0]))
            if self.section.number == 0:
                self._keys[0] = b""  # the home itself comes first
            records = self._base.stat_keys(self.section)
            self._records = None if records is None else list(records)
            self._next = 0
