"""Collect contents in zstd frames, frames in packs; upload each pack, read it back and compare."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.packs.compression import compress, decompress
from torpor.archives.packs.hashes import BLOCK_BYTES, digest_of
from torpor.archives.packs.layout import pack_path
from torpor.archives.packs.pack_check import prove_pack
from torpor.archives.store import ArchiveStore, ObjectMissing
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ProvenPack

PACK_BYTES = 32 << 20
MOST_FRAMES = 4095
"""In a pack: a place of content is a number of 64 bits (`content_places`)."""
MOST_CONTENTS = 1 << 16
"""In a pack: until it is proven, the digest of each is kept."""
MOST_CONTENTS_OF_FRAME = 2048
"""A restore creates the files of a frame together."""
WINDOW_BYTES = 8 << 20

Done = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class WrittenPack:
    """A pack that was read back. `frames` has begin, stored length and raw length of each frame."""

    number: int
    proven: ProvenPack
    frames: Sequence[tuple[int, int, int]]


@dataclass(slots=True)
class _Content:
    domain: bytes
    length: int
    digest: bytes


@dataclass(slots=True)
class _OpenPack:
    number: int
    stored: bytearray = field(default_factory=bytearray)
    frames: list[tuple[int, int, int]] = field(default_factory=list)
    contents: list[list[_Content]] = field(default_factory=list)
    """Of each frame."""
    count: int = 0
    """Of all contents."""


class PackWriter:
    """Writes the packs of one archive operation. Their numbers are local: the first is `first_number`, then `stride` apart."""

    def __init__(
        self,
        place: ArchiveStore,
        workspace_id: str,
        op_id: str,
        *,
        first_number: int = 0,
        stride: int = 1,
        done: Done | None = None,
    ) -> None:
        self._place = place
        self._workspace_id = workspace_id
        self._op_id = op_id
        self._stride = stride
        self._done = done
        self._pack = _OpenPack(first_number)
        self._pieces: list[bytes | memoryview] = []
        self._length = 0
        self._contents: list[_Content] = []
        self.written: list[WrittenPack] = []

    def add(self, domain: bytes, digest: bytes, data: bytes | memoryview) -> tuple[int, int, int]:
        """Store content that is not empty; return its pack, frame and offset."""
        if self._length and (self._length + len(data) > BLOCK_BYTES or len(self._contents) >= MOST_CONTENTS_OF_FRAME):
            self._end_frame()
        where = self._pack.number, len(self._pack.frames), self._length
        self._pieces.append(data)
        self._length += len(data)
        self._contents.append(_Content(domain, len(data), digest))
        return where

    def add_alone(self, domain: bytes, digest: bytes, data: bytes) -> tuple[int, int, int]:
        """The same in a frame of its own."""
        self._end_frame()
        where = self.add(domain, digest, data)
        self._end_frame()
        return where

    def finish(self) -> list[WrittenPack]:
        """All packs that were written and proven since the last call. The last one is ended."""
        self._end_frame()
        self._end_pack()
        written, self.written = self.written, []
        return written

    def _end_frame(self) -> None:
        if not self._length:
            return
        pack = self._pack
        squeezed = compress(b"".join(self._pieces))
        pack.frames.append((len(pack.stored), len(squeezed), self._length))
        pack.contents.append(self._contents)
        pack.count += len(self._contents)
        pack.stored += squeezed
        self._pieces, self._length, self._contents = [], 0, []
        if len(pack.stored) >= PACK_BYTES or len(pack.frames) >= MOST_FRAMES or pack.count >= MOST_CONTENTS:
            self._end_pack()

    def _end_pack(self) -> None:
        pack = self._pack
        if not pack.frames:
            return
        self._pack = _OpenPack(pack.number + self._stride)
        name = f"{self._op_id}-{hashlib.sha256(pack.stored).hexdigest()}"
        path, size = pack_path(self._workspace_id, name), len(pack.stored)
        self._upload(path, name, pack)
        version = prove_frames(self._place, path, name, size, pack.frames, pack.contents, self._done)
        self.written.append(WrittenPack(pack.number, ProvenPack(name, size, version, True), pack.frames))

    def _upload(self, path: str, name: str, pack: _OpenPack) -> None:
        if not self._place.write_once(path, pack.stored):
            # An earlier try of this operation wrote it, perhaps not completely.
            try:
                prove_pack(self._place, self._workspace_id, name, len(pack.stored))
            except ArchiveMismatch:
                self._place.replace(path, pack.stored)
        pack.stored = bytearray()  # the proof needs the memory


def prove_frames(
    place: ArchiveStore,
    path: str,
    name: str,
    size: int,
    frames: Sequence[tuple[int, int, int]],
    contents: Sequence[Sequence[_Content]],
    done: Done | None,
) -> str:
    """Read a new pack back, decompress its frames and hash every content. READBACK_MISMATCH if something differs."""

    def read() -> str:
        version = _version(place, path, size)
        digest = hashlib.sha256()
        for (_, _, raw), (stored, expected) in zip(
            frames, zip(_frames(place, path, size, frames, digest), contents, strict=True), strict=True
        ):
            data = memoryview(decompress(stored, raw))
            offset = 0
            for content in expected:
                if digest_of(content.domain, data[offset : offset + content.length]) != content.digest:
                    raise ArchiveMismatch(f"a content in {path} differs from what was read from the home", object=path)
                offset += content.length
            if done is not None:
                done(raw)
        _compare_name(path, name, digest.hexdigest())
        return version

    try:
        return place.confirmed(read)
    except ArchiveMismatch as error:
        raise Failed(Code.READBACK_MISMATCH, f"read back {path}: {error.message}", **error.context) from error


def _version(place: ArchiveStore, path: str, size: int) -> str:
    found = place.head(path)
    if found is None:
        raise ObjectMissing(f"{path} is missing", object=path)
    if found.size != size:
        raise ArchiveMismatch(f"{path} has {found.size} bytes, expected {size}", object=path)
    return found.version


def _compare_name(path: str, name: str, seen: str) -> None:
    if not name.endswith(f"-{seen}"):
        raise ArchiveMismatch(f"the bytes of {path} have the hash {seen}, which differs from its name", object=path)


def _frames(
    place: ArchiveStore, path: str, size: int, frames: Sequence[tuple[int, int, int]], digest: "hashlib._Hash"
) -> Iterator[memoryview]:
    """The stored bytes of each frame: frames follow each other without gaps."""
    windows = place.windows(path, size, digest, window_bytes=WINDOW_BYTES)
    rest = memoryview(b"")
    for _, stored, _ in frames:
        while len(rest) < stored:
            window = next(windows, None)
            if window is None:
                raise ArchiveMismatch(f"{path} ends too early", object=path)
            rest = memoryview(b"".join((rest, window))) if rest else window
        yield rest[:stored]
        rest = rest[stored:]
    if rest or next(windows, None) is not None:
        raise ArchiveMismatch(f"{path} has data after its last frame", object=path)
