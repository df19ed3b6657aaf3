"""Read, hash and store the contents of a home: the part of an archive operation that runs in several processes."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torpor.archives.file_errors import READING, FileErrors, home_changed_error
from torpor.archives.packs.directories import Directories
from torpor.archives.packs.hashes import BLOCK, BLOCK_BYTES, FILE, block_length, digest_of
from torpor.archives.packs.home_walk import identity
from torpor.archives.packs.pack_writer import PackWriter, WrittenPack
from torpor.archives.packs.rows import encode_xattrs
from torpor.archives.tree import SAFE, kept_xattrs

WHOLE = -1
"""In place of a block's number: the whole file."""


class Wanted(NamedTuple):
    """A content to read: a file of at most BLOCK_BYTES, or one block of a larger one."""

    path: bytes
    identity: tuple[int, int, int, int, int]
    block: int = WHOLE

    @property
    def domain(self) -> bytes:
        return FILE if self.block == WHOLE else BLOCK

    @property
    def length(self) -> int:
        size = self.identity[2]
        return size if self.block == WHOLE else block_length(size, self.block)


class Hashed(NamedTuple):
    digest: bytes
    xattrs: bytes


class Stored(NamedTuple):
    places: list[tuple[int, int, int]]
    """Pack, frame and offset."""
    proved_bytes: int
    """How much was read back since the last answer."""


class ContentReader:
    """One reader with packs of its own. Contents that were read are held until `store` says which of them are new."""

    def __init__(self, home: int, writer: Callable[[Callable[[int], None]], PackWriter]) -> None:
        self._directories = Directories(home)
        self._held: dict[int, list[tuple[bytes, bytes, bytes]]] = {}
        """Domain, digest and data of the contents of each batch."""
        self._proved = 0
        self.has_stored = False
        """Its packs have contents."""
        self.packs = writer(self._count)

    def read(self, batch: int, wanted: Sequence[Wanted]) -> list[Hashed]:
        self._held[batch] = []  # an earlier pass may have left a batch with this number that it could not read to the end
        return [self.hold(batch, *self._read(one)) for one in wanted]

    def hold(self, batch: int, one: Wanted, data: bytes, xattrs: bytes) -> Hashed:
        digest = digest_of(one.domain, data)
        self._held.setdefault(batch, []).append((one.domain, digest, data))
        return Hashed(digest, xattrs)

    def store(self, batch: int, new: Sequence[int]) -> Stored:
        """Store those contents of a batch, by their positions, and forget the others."""
        held = self._held.pop(batch)
        self.has_stored |= bool(new)
        return Stored([self.packs.add(*held[number]) for number in new], self._proved_now())

    def finish(self) -> tuple[list[WrittenPack], int]:
        self._directories.close()
        return self.packs.finish(), self._proved_now()

    def _read(self, one: Wanted) -> tuple[Wanted, bytes, bytes]:
        with FileErrors(READING, os.fsdecode(one.path)):
            directory, name = self._directories.parent_of(one.path)
            fd = os.open(name, os.O_RDONLY | SAFE, dir_fd=directory)
            try:
                return one, read_content(fd, one), (encode_xattrs(kept_xattrs(fd)) if one.block <= 0 else b"")
            finally:
                os.close(fd)

    def _count(self, count: int) -> None:
        self._proved += count

    def _proved_now(self) -> int:
        proved, self._proved = self._proved, 0
        return proved


def read_content(fd: int, one: Wanted) -> bytes:
    """HOME_CHANGED if it is not the file that the walk has seen, or if it changes meanwhile."""
    if identity(os.fstat(fd)) != one.identity:
        raise home_changed_error(os.fsdecode(one.path))
    length = one.length
    start = 0 if one.block == WHOLE else one.block * BLOCK_BYTES
    data = os.pread(fd, length, start)
    while len(data) < length:
        more = os.pread(fd, length - len(data), start + len(data))
        if not more:
            raise home_changed_error(os.fsdecode(one.path))
        data += more
    if identity(os.fstat(fd)) != one.identity:
        raise home_changed_error(os.fsdecode(one.path))
    return data
