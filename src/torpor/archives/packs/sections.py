"""A section: some hundred neighbouring entries of a home as two documents, `tree` and `refs`.

Sections are cut by the hash of a path, so a small change rewrites few of them. The tree document has the rows, column by
column. The refs document says where their contents are.
"""

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.packs import hashes
from torpor.archives.packs.hashes import BLOCK_BYTES, block_count, block_length
from torpor.archives.packs.rows import FILE, Columns, Row

LEAST_ENTRIES = 256
MOST_ENTRIES = 4096
MOST_BYTES = 1 << 20
CUT_ONE_IN = 1024
MOST_DOCUMENT_BYTES = 1 << 28
"""An entry can have a long path and many attributes, and a large file many blocks."""
NO_FRAME = -1
"""In place of the frame of a block of zeros, which is not stored."""


def is_cut_after(path: bytes) -> bool:
    return int.from_bytes(hashlib.sha256(path).digest()[:4], "big") % CUT_ONE_IN == 0


def row_bytes(row: Sequence[bytes]) -> int:
    return sum(map(len, row)) + len(row)


# ── tree ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_tree(columns: Columns) -> bytes:
    """The first line has the number of rows and the length of each column; in a column, NUL separates the fields."""
    joined = [b"\0".join(column) for column in columns]
    lengths = b" ".join(b"%d" % len(text) for text in joined)
    return b"%d %b\n%b" % (len(columns[0]), lengths, b"".join(joined))


def decode_tree(document: bytes) -> Columns:
    head, _, rest = document.partition(b"\n")
    try:
        count, *lengths = (int(number) for number in head.split(b" "))
    except ValueError as error:
        raise ArchiveMismatch("a tree document has an invalid head") from error
    if not 1 <= count <= MOST_ENTRIES or len(lengths) != len(Row._fields) or min(lengths) < 0 or sum(lengths) != len(rest):
        raise ArchiveMismatch("a tree document has wrong lengths")
    ends = list(accumulate(lengths))
    # Before they are split: a document of NUL bytes would become millions of fields.
    if any(rest.count(b"\0", end - length, end) != count - 1 for end, length in zip(ends, lengths, strict=True)):
        raise ArchiveMismatch("a tree document has columns of different lengths")
    return tuple(rest[end - length : end].split(b"\0") for end, length in zip(ends, lengths, strict=True))


# ── refs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Frame:
    """A zstd frame in a pack."""

    pack: str
    start: int
    stored: int
    raw: int


@dataclass(frozen=True, slots=True)
class Refs:
    """Where the contents of a section are: for each block of each file, in the order of the rows."""

    frames: tuple[Frame, ...]
    frame: Sequence[int]
    """The number of each block's frame; NO_FRAME for zeros."""
    offset: Sequence[int]
    """Where the block begins in the decompressed frame."""
    digests: tuple[bytes, ...]
    """Of the blocks of files that have several blocks."""

    def encode(self) -> bytes:
        packs = list(dict.fromkeys(frame.pack for frame in self.frames))
        number = {pack: position for position, pack in enumerate(packs)}
        document = {
            "packs": packs,
            "frames": [[number[frame.pack], frame.start, frame.stored, frame.raw] for frame in self.frames],
            "frame": list(self.frame),
            "offset": list(self.offset),
            "digests": [digest.hex() for digest in self.digests],
        }
        return _encode(document).encode()

    @classmethod
    def decode(cls, document: bytes, columns: Columns) -> "Refs":
        """Raises ArchiveMismatch unless there is a place for each block of these rows."""
        try:
            said: dict[str, Any] = json.loads(document)
            packs: list[str] = said["packs"]
            frames = tuple(Frame(packs[pack], start, stored, raw) for pack, start, stored, raw in said["frames"])
            frame, offset = array("q", said["frame"]), array("q", said["offset"])
            digests = tuple(bytes.fromhex(digest) for digest in said["digests"])
            if _encode(said).encode() != document:
                raise ValueError("not in canonical form")  # noqa: TRY301
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise ArchiveMismatch(f"a refs document cannot be read: {error}") from error
        refs = cls(frames, frame, offset, digests)
        refs._check(columns)
        return refs

    def _check(self, columns: Columns) -> None:
        for frame in self.frames:
            if type(frame.pack) is not str or not _is_frame(frame):
                raise ArchiveMismatch("a refs document has an invalid frame")
        position = digests = 0
        frames, count, blocks = self.frames, len(self.frames), len(self.frame)
        if len(self.offset) != blocks:
            raise ArchiveMismatch("a refs document has columns of different lengths")
        for size in content_sizes(columns):
            if size <= BLOCK_BYTES:
                lengths: Iterable[int] = (size,)
            else:
                lengths = (block_length(size, number) for number in range(block_count(size)))
                digests += block_count(size)
            for length in lengths:
                if position >= blocks:
                    raise ArchiveMismatch("a refs document has too few blocks")
                place, offset = self.frame[position], self.offset[position]
                position += 1
                if place == NO_FRAME and size > BLOCK_BYTES and offset == 0:
                    continue
                if not 0 <= place < count or offset < 0 or offset + length > frames[place].raw:
                    raise ArchiveMismatch("a refs document has a block outside of its frame")
        if position != blocks or digests != len(self.digests) or any(len(digest) != 32 for digest in self.digests):
            raise ArchiveMismatch("a refs document has another number of blocks than its rows")


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _is_frame(frame: Frame) -> bool:
    numbers = (frame.start, frame.stored, frame.raw)
    return all(type(number) is int and number >= 0 for number in numbers) and 0 < frame.raw <= BLOCK_BYTES and frame.stored > 0


def content_sizes(columns: Columns) -> Iterator[int]:
    """The size of each file that has content."""
    for kind, size in zip(columns[1], columns[6], strict=True):
        if kind == FILE and size != b"0":
            yield int(size)


def content_starts(columns: Columns) -> "array[int]":
    """For each row, the position of its first block in the refs; one more element for the end."""
    starts = array("q", [0])
    position = 0
    for kind, size in zip(columns[1], columns[6], strict=True):
        if kind == FILE and size != b"0":
            position += 1 if len(size) < 7 else block_count(int(size))
        starts.append(position)
    return starts


def digest_starts(columns: Columns) -> "array[int]":
    """For each row, the position of its first digest in the refs: only files with several blocks have any."""
    starts = array("q", [0])
    position = 0
    for kind, size in zip(columns[1], columns[6], strict=True):
        if kind == FILE and len(size) > 6 and int(size) > BLOCK_BYTES:
            position += block_count(int(size))
        starts.append(position)
    return starts


def contents(columns: Columns, refs: Refs) -> Iterator[tuple[bytes, int, bytes]]:
    """Domain, length and digest of each block of a section, in the order of its refs."""
    blocks = iter(refs.digests)
    for kind, size, digest in zip(columns[1], columns[6], columns[9], strict=True):
        if kind != FILE or size == b"0":
            continue
        length = int(size)
        if length <= BLOCK_BYTES:
            yield hashes.FILE, length, bytes.fromhex(digest.decode())
        else:
            for number in range(block_count(length)):
                yield hashes.BLOCK, block_length(length, number), next(blocks)
