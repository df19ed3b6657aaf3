"""Prove a stored archive: read it back and compare it with its manifest.

Each tar header is computed from the manifest and compared byte by byte (path, kind, size, mode, owner, time, link target,
attributes). Each content is hashed. Extra bytes are an error.
"""

import hashlib
from collections.abc import Callable, Iterator

from torpor.archives.entries import ArchiveMismatch, Entry, EntryKind
from torpor.archives.frames import ByteReader, decompressed
from torpor.archives.manifest import ArchivePart, Manifest, fetch, object_path
from torpor.archives.store import ArchiveStore, Digest, ObjectMissing, new_digest
from torpor.archives.tarheader import END, header, padding
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

Done = Callable[[int], None]
"""Called with the number of content bytes processed since the last call."""


def contents(place: ArchiveStore, manifest: Manifest, done: Done) -> Iterator[tuple[Entry, Iterator[memoryview]]]:
    """Each entry with its content, checked while it is read: no ArchiveMismatch until the end means that the home is proven.

    Content that the caller does not take is still read before the next entry.
    """
    head = manifest.head
    parts = [(part, new_digest()) for part in head.parts]
    tape = ByteReader(decompressed(_windows(place, head.key, parts)))
    for entry in manifest.entries():
        expected = header(entry, head.home)
        if tape.exactly(len(expected)) != expected:
            raise ArchiveMismatch(f"the archive's header of {entry.path!r} differs from the manifest", path=entry.path)
        content = _content(tape, entry, done)
        yield entry, content
        for _ in content:
            pass
    if tape.exactly(len(END)) != END or not tape.is_at_end():
        raise ArchiveMismatch("the archive has data after its last entry")
    for part, digest in parts:
        if digest.hexdigest() != part.sha256:
            raise ArchiveMismatch(f"the checksum of {part.name} differs from the manifest", object=part.name)


def _windows(place: ArchiveStore, key: ArchiveKey, parts: list[tuple[ArchivePart, Digest]]) -> Iterator[memoryview]:
    for part, digest in parts:
        path = object_path(key, part.name)
        size = place.size(path)
        if size is None:
            raise ObjectMissing(f"{path} is missing", object=path)
        if size != part.size:
            raise ArchiveMismatch(f"{path} has {size} bytes, the manifest says {part.size}", object=path)
        yield from place.windows(path, size, digest)


def _content(tape: ByteReader, entry: Entry, done: Done) -> Iterator[memoryview]:
    if entry.kind is not EntryKind.FILE:
        if entry.size:
            raise ArchiveMismatch(f"the manifest has content for {entry.path!r}, which is a {entry.kind}", path=entry.path)
        return
    digest = hashlib.sha256()
    for piece in tape.pieces(entry.size):
        digest.update(piece)
        yield piece
        done(len(piece))
    if digest.hexdigest() != entry.sha256:
        raise ArchiveMismatch(f"the content of {entry.path!r} differs from the manifest", path=entry.path)
    pad = padding(entry.size)
    if tape.exactly(len(pad)) != pad:
        raise ArchiveMismatch(f"there is extra data after {entry.path!r}", path=entry.path)


def prove(place: ArchiveStore, key: ArchiveKey, *, generation: int, revision: int, done: Done) -> Manifest:
    """Read the finished archive back and compare it. READBACK_MISMATCH names the first difference."""
    try:
        return place.confirmed(lambda: _prove_once(place, key, generation, revision, done))
    except ArchiveMismatch as error:
        raise Failed(Code.READBACK_MISMATCH, f"read back {key}: {error.message}", **error.context) from error


def _prove_once(place: ArchiveStore, key: ArchiveKey, generation: int, revision: int, done: Done) -> Manifest:
    manifest = fetch(place, key)
    if manifest is None:
        raise ObjectMissing(f"the manifest of {key} is missing")
    head = manifest.head
    if (head.generation, head.revision) != (generation, revision):
        raise ArchiveMismatch(
            f"the archive is of generation {head.generation}, revision {head.revision}; "
            f"expected generation {generation}, revision {revision}"
        )
    for _ in contents(place, manifest, done):
        pass
    return manifest
