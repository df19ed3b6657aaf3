"""Go over a home once: walk it, take over what the base has, and store the rest."""

import os
import stat
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torpor.archives.file_errors import READING, FileErrors, home_changed_error
from torpor.archives.packs.base import Base, BaseRows, BaseSection
from torpor.archives.packs.content_places import ZERO_PLACE, ContentPlaces, place_number
from torpor.archives.packs.content_reader import WHOLE, ContentReader, Hashed, Stored, Wanted, read_content
from torpor.archives.packs.crew import Crew, finish_calls
from torpor.archives.packs.hashes import (
    BLOCK_BYTES,
    block_count,
    block_length,
    large_file_digest,
    zero_block_digest,
)
from torpor.archives.packs.home_walk import Found, HomeWalk, identity, stat_key
from torpor.archives.packs.pack_numbers import PackNumbers
from torpor.archives.packs.rows import FILE, HARDLINK, HOME, SYMLINK, Row, encode_xattrs
from torpor.archives.packs.section_builder import SectionBuilder
from torpor.archives.packs.side_file import SideFile, side_folders
from torpor.archives.progress_meter import Meter
from torpor.archives.tree import kept_xattrs, may_have_holes, open_to_read, settled_holes
from torpor.domain.errors import Code, Failed

BATCH_BYTES = BLOCK_BYTES
BATCH_FILES = 512
MOST_QUEUED = 8192
BATCHES_AT_ONCE = 3
"""In each process."""
MOST_HOLE_BYTES = 512 << 30
"""Holes are not stored, but each of their blocks has a number and a hash."""


@dataclass(slots=True)
class _Item:
    """A row whose content is not stored yet."""

    fields: tuple[bytes, ...]
    """Up to the target."""
    xattrs: bytes
    size: int
    digests: list[bytes]
    places: list[int]
    waits_for: int
    """The number of contents whose place is not known."""
    base: tuple[BaseSection, int] | None
    """The row of the base with this path."""

    def row(self) -> Row:
        digest = b""
        if self.digests:
            whole = self.digests[0] if self.size <= BLOCK_BYTES else large_file_digest(self.size, self.digests)
            digest = whole.hex().encode()
        return Row._make((*self.fields, self.xattrs, digest))


Queued = _Item | tuple[BaseSection, int]
Awaited = tuple[_Item, int]
"""An item, and the number of one of its blocks."""


@dataclass(slots=True)
class _Batch:
    wanted: list[Wanted] = field(default_factory=list)
    items: list[Awaited] = field(default_factory=list)
    size: int = 0


class HomePass:
    """One pass over a home: from the walk to sections whose contents are stored. HOME_CHANGED if the home changes."""

    def __init__(
        self,
        home: Path,
        crew: Crew,
        own: ContentReader,
        packs: PackNumbers,
        places: ContentPlaces,
        base: Base | None,
        done: Meter,
    ) -> None:
        self.walk = HomeWalk(home)
        self.builder = SectionBuilder(packs, own.packs, SideFile(side_folders(home)))
        self._home = home
        self._crew = crew
        self._own = own
        self._packs = packs
        self._places = places
        self._base = base
        self._is_base_indexed = False
        self._done = done
        self._queue: deque[Queued] = deque()
        self._batch = _Batch()
        self._batches = 0
        self._awaited: dict[tuple[bytes, int, bytes], list[Awaited]] = {}
        """Contents that are being stored, and all who need them."""
        self._seen = array("q")
        self._hole_bytes = 0

    def run(self) -> None:
        rows = None if self._base is None else BaseRows(self._base)
        for found in self.walk:
            key = stat_key(found.seen)
            self._seen.append(_trace(found, key))
            known = rows is not None and rows.find(found.path)
            if rows is not None and known:
                assert rows.section is not None
                if rows.record() == key and self._may_be_taken_over(found, rows.section, rows.row):
                    self._take_over(rows.section, rows.row)
                    continue
                self._add(found, (rows.section, rows.row))
            else:
                self._add(found, None)
        self._send_batch()
        finish_calls(self._crew)
        assert not self._awaited
        self._drain()
        self.builder.finish()

    def check_unchanged(self) -> None:
        """Walk a second time: nothing may have changed since the first."""
        before = iter(self._seen)
        for found in HomeWalk(self._home):
            if next(before, None) != _trace(found, stat_key(found.seen)):
                raise home_changed_error(os.fsdecode(found.path))
        if next(before, None) is not None:
            raise home_changed_error(".")

    # ── rows of the base ──────────────────────────────────────────────────────────────────────────────────────────────

    def _may_be_taken_over(self, found: Found, section: BaseSection, row: int) -> bool:
        """Its stat is the same. A hard link must still be a link to the same entry."""
        if section.columns[1][row] != found.kind:
            return False
        if found.kind == HARDLINK and section.columns[7][row] != found.target:
            return False
        return section.is_usable or section.places(row) is not None

    def _take_over(self, section: BaseSection, row: int) -> None:
        if self._queue:
            self._queue.append((section, row))
            if len(self._queue) >= MOST_QUEUED:
                self._shorten_queue()
        else:
            self.builder.add_from_base(section, row)
        self._done(2 * int(section.columns[6][row]))
        self._count(section.columns[1][row])

    def _shorten_queue(self) -> None:
        """A changed file may wait for others in its batch, and all rows after it wait for the file."""
        self._send_batch()
        while self._queue and isinstance(self._queue[0], _Item) and self._queue[0].waits_for:
            self._crew.pump(wait_for_one=True)
        self._drain()

    # ── rows of the home ──────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, found: Found, base: tuple[BaseSection, int] | None) -> None:
        seen, kind = found.seen, found.kind
        target, xattrs, size = found.target, b"", 0
        if kind == FILE and seen.st_size:
            size = seen.st_size
        elif kind != HARDLINK:
            with FileErrors(READING, os.fsdecode(found.path)):
                if kind == SYMLINK:
                    target = os.fsencode(os.readlink(found.name, dir_fd=found.level.fd))
                xattrs = encode_xattrs(_xattrs_of(found))
        item = _Item(
            (
                found.path,
                kind,
                b"%o" % stat.S_IMODE(seen.st_mode if found.path != HOME else found.level.mode),
                self.walk.owner(seen.st_uid),
                self.walk.group(seen.st_gid),
                b"%d" % seen.st_mtime_ns if found.path != HOME else b"",
                b"%d" % size,
                target,
            ),
            xattrs,
            size,
            [],
            [],
            0,
            base,
        )
        if size:
            self._refuse_too_many_holes(found)
            count = 1 if size <= BLOCK_BYTES else block_count(size)
            item.digests, item.places, item.waits_for = [b""] * count, [ZERO_PLACE] * count, count
            self._want(found, item)
        self._queue.append(item)
        if not size:
            self._drain()
            if len(self._queue) >= MOST_QUEUED:
                self._shorten_queue()

    def _want(self, found: Found, item: _Item) -> None:
        who = identity(found.seen)
        if found.is_lent:
            self._read_here(found, item)
        elif item.size <= BLOCK_BYTES:
            self._want_content(Wanted(found.path, who), (item, 0))
        else:
            for block in self._stored_blocks(found, item, _holes_in(found)):
                self._want_content(Wanted(found.path, who, block), (item, block))

    def _want_content(self, wanted: Wanted, awaited: Awaited) -> None:
        length = wanted.length
        if self._batch.size and (self._batch.size + length > BATCH_BYTES or len(self._batch.wanted) >= BATCH_FILES):
            self._send_batch()
        self._batch.wanted.append(wanted)
        self._batch.items.append(awaited)
        self._batch.size += length

    def _stored_blocks(self, found: Found, item: _Item, holes: Sequence[tuple[int, int]]) -> Iterator[int]:
        """The blocks of a large file that are not holes."""
        position = 0
        for block in range(block_count(item.size)):
            start, length = block * BLOCK_BYTES, block_length(item.size, block)
            while position < len(holes) and holes[position][1] < start + length:
                position += 1
            if position < len(holes) and holes[position][0] <= start:
                self._is_zero(found, item, block, length)
            else:
                yield block

    def _is_zero(self, found: Found, item: _Item, block: int, length: int) -> None:
        self._hole_bytes += length
        item.digests[block] = zero_block_digest(length)
        item.waits_for -= 1
        self._done(2 * length)
        if block == 0:
            with FileErrors(READING, os.fsdecode(found.path)):
                item.xattrs = encode_xattrs(_xattrs_of(found))

    def _refuse_too_many_holes(self, found: Found) -> None:
        """Before anything is allocated for its blocks."""
        if self._hole_bytes + found.seen.st_size - 512 * found.seen.st_blocks > MOST_HOLE_BYTES:
            path = os.fsdecode(found.path)
            message = f"sparse files, {path!r} among them, have more than {MOST_HOLE_BYTES >> 30} GiB of holes in this home"
            raise Failed(Code.HOME_TOO_LARGE, f"{message}: remove them or make them smaller", path=path)

    def _read_here(self, found: Found, item: _Item) -> None:
        """Only this process may add permissions for a moment: two would restore each other's."""
        who = identity(found.seen)
        with FileErrors(READING, os.fsdecode(found.path)):
            item.xattrs = encode_xattrs(_xattrs_of(found))
            fd = open_to_read(found.name, found.level.fd, found.seen)
            try:
                who = (*who[:4], os.fstat(fd).st_ctime_ns)  # added permissions change the ctime
                is_large = item.size > BLOCK_BYTES
                for block in self._stored_blocks(found, item, _holes_of(fd, found.seen)) if is_large else (0,):
                    wanted = Wanted(found.path, who, block if is_large else WHOLE)
                    hashed = self._own.hold(-1, wanted, read_content(fd, wanted), item.xattrs)
                    new = self._hashed([wanted], [(item, block)], [hashed])
                    self._are_stored([wanted], [(item, block)], [hashed], new, self._own.store(-1, new))
            finally:
                os.close(fd)

    # ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send_batch(self) -> None:
        batch, self._batch = self._batch, _Batch()
        if not batch.wanted:
            return
        crew = self._crew
        member = min(range(crew.size), key=crew.waiting)
        while crew.waiting(member) >= BATCHES_AT_ONCE:
            crew.pump(wait_for_one=True)
            member = min(range(crew.size), key=crew.waiting)
        crew.pump(wait_for_one=False)
        number = self._batches
        self._batches += 1

        def hashed(answer: Sequence[Hashed]) -> None:
            new = self._hashed(batch.wanted, batch.items, answer)
            crew.call(member, "store", number, new, then=lambda stored: stored_(stored, answer, new))

        def stored_(answer: Stored, were: Sequence[Hashed], new: Sequence[int]) -> None:
            self._are_stored(batch.wanted, batch.items, were, new, answer)
            self._drain()

        crew.call(member, "read", number, batch.wanted, then=hashed)

    def _hashed(self, wanted: Sequence[Wanted], items: Sequence[Awaited], answer: Sequence[Hashed]) -> list[int]:
        """Decide which of these contents are new, and return their positions."""
        new: list[int] = []
        for position, (one, (item, block), hashed) in enumerate(zip(wanted, items, answer, strict=True)):
            length = one.length
            item.digests[block] = hashed.digest
            if block == 0:
                item.xattrs = hashed.xattrs
            self._done(length)
            place = self._known_place(one, item, block, hashed.digest, length)
            if place is not None:
                item.places[block] = place
                item.waits_for -= 1
                self._done(length)
                continue
            key = one.domain, length, hashed.digest
            waiting = self._awaited.get(key)
            if waiting is not None:
                waiting.append((item, block))
                self._done(length)
            else:
                self._awaited[key] = [(item, block)]
                new.append(position)
        return new

    def _known_place(self, one: Wanted, item: _Item, block: int, digest: bytes, length: int) -> int | None:
        if one.block != WHOLE and digest == zero_block_digest(length):
            return ZERO_PLACE
        if item.base is not None:
            place = _place_in_base(item, block, digest)
            if place is not None:
                return place
        elif self._base is not None and not self._is_base_indexed:
            # A new path may have a content of the base: a file that was renamed, for example.
            self._is_base_indexed = True
            self._base.index(self._places)
        return self._places.find(one.domain, length, digest)

    def _are_stored(
        self, wanted: Sequence[Wanted], items: Sequence[Awaited], hashed: Sequence[Hashed], new: Sequence[int], stored: Stored
    ) -> None:
        self._done(stored.proved_bytes)
        for position, parts in zip(new, stored.places, strict=True):
            one, digest, place = wanted[position], hashed[position].digest, place_number(*parts)
            # The base may have become known while this was being stored, with the same content in it.
            self._places.add(one.domain, one.length, digest, place, replaces=True)
            for item, block in self._awaited.pop((one.domain, one.length, digest)):
                item.places[block] = place
                item.waits_for -= 1

    def _drain(self) -> None:
        queue, builder = self._queue, self.builder
        while queue:
            first = queue[0]
            if isinstance(first, _Item):
                if first.waits_for:
                    return
                builder.add(first.row(), first.places, first.digests if len(first.digests) > 1 else ())
                self._count(first.fields[1])
            else:
                builder.add_from_base(*first)
            queue.popleft()

    def _count(self, kind: bytes) -> None:
        if kind in (FILE, HARDLINK):
            self._done.count_files()


def _trace(found: Found, key: tuple[int, int, int, int, int]) -> int:
    """A hash of what the walk has seen. Adding permissions for a moment changes the ctime."""
    return hash((found.path, key[0], key[2:])) if found.is_lent else hash((found.path, key))


def _place_in_base(item: _Item, block: int, digest: bytes) -> int | None:
    """Where the base has the same content of the same path."""
    assert item.base is not None
    section, row = item.base
    if section.columns[1][row] != FILE:
        return None
    size = int(section.columns[6][row])
    if (size <= BLOCK_BYTES) != (item.size <= BLOCK_BYTES) or not size:
        return None
    places = section.places(row)
    if places is None or block >= len(places):
        return None
    if size <= BLOCK_BYTES:
        return places[0] if size == item.size and section.columns[9][row] == digest.hex().encode() else None
    is_same = block_length(size, block) == block_length(item.size, block) and section.block_digests(row)[block] == digest
    return places[block] if is_same else None


def _holes_in(found: Found) -> Sequence[tuple[int, int]]:
    if not may_have_holes(found.seen):
        return ()
    with FileErrors(READING, os.fsdecode(found.path)):
        fd = open_to_read(found.name, found.level.fd, found.seen)
        try:
            return _holes_of(fd, found.seen)
        finally:
            os.close(fd)


def _holes_of(fd: int, seen: os.stat_result) -> Sequence[tuple[int, int]]:
    """A file can have millions of small holes; only those that have a whole block are needed."""
    if not may_have_holes(seen):
        return ()
    return [(start, end) for start, end in settled_holes(fd, seen) if end - start >= BLOCK_BYTES or end == seen.st_size]


def _xattrs_of(found: Found) -> Mapping[str, bytes]:
    if found.path == HOME:
        return kept_xattrs(found.level.fd)
    return kept_xattrs(f"/proc/self/fd/{found.level.fd}/{found.name}")
