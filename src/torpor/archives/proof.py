"""Does the store really hold what the manifest says?

Everything is read back: each header is worked out from the manifest and compared byte for byte (path, kind, size, mode,
owner, time, link target, attributes), each content is hashed, nothing may be left over.
"""

import hashlib
from collections.abc import Callable, Iterator

from torpor.archives.entries import Differs, Entry, Kind
from torpor.archives.frames import Tape, decompressed
from torpor.archives.manifest import Manifest, Part, fetch, place_of
from torpor.archives.store import Digest, Missing, Place, new_digest
from torpor.archives.tarheader import END, header, padding
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

Done = Callable[[int], None]
"""Called with the number of content bytes dealt with since the last call."""


def contents(place: Place, manifest: Manifest, done: Done) -> Iterator[tuple[Entry, Iterator[memoryview]]]:
    """Each entry with its content, proven as it is taken: whoever has seen the end without `Differs` has seen the home.

    Content that was not taken is read all the same before the next entry comes.
    """
    head = manifest.head
    parts = [(part, new_digest()) for part in head.parts]
    tape = Tape(decompressed(_windows(place, head.key, parts)))
    for entry in manifest.entries():
        expected = header(entry, head.home)
        if tape.exactly(len(expected)) != expected:
            raise Differs(f"the archive does not say of {entry.path!r} what the manifest says", path=entry.path)
        content = _content(tape, entry, done)
        yield entry, content
        for _ in content:
            pass
    if tape.exactly(len(END)) != END or not tape.is_at_end():
        raise Differs("the archive goes on after its last entry")
    for part, digest in parts:
        if digest.hexdigest() != part.sha256:
            raise Differs(f"{part.name} has not the checksum that the manifest says", object=part.name)


def _windows(place: Place, key: ArchiveKey, parts: list[tuple[Part, Digest]]) -> Iterator[memoryview]:
    for part, digest in parts:
        path = place_of(key, part.name)
        size = place.size(path)
        if size is None:
            raise Missing(f"{path} is not there", object=path)
        if size != part.size:
            raise Differs(f"{path} has {size} bytes, the manifest says {part.size}", object=path)
        yield from place.windows(path, size, digest)


def _content(tape: Tape, entry: Entry, done: Done) -> Iterator[memoryview]:
    if entry.kind is not Kind.FILE:
        if entry.size:
            raise Differs(f"the manifest gives {entry.path!r} a content, and it is a {entry.kind}", path=entry.path)
        return
    digest = hashlib.sha256()
    for piece in tape.pieces(entry.size):
        digest.update(piece)
        yield piece
        done(len(piece))
    if digest.hexdigest() != entry.sha256:
        raise Differs(f"the content of {entry.path!r} is not what the manifest says", path=entry.path)
    pad = padding(entry.size)
    if tape.exactly(len(pad)) != pad:
        raise Differs(f"there is something hidden behind {entry.path!r}", path=entry.path)


def prove(place: Place, key: ArchiveKey, *, generation: int, revision: int, done: Done) -> Manifest:
    """Read the finished archive back and compare. READBACK_MISMATCH names the first difference."""
    try:
        manifest = fetch(place, key)
        if manifest is None:
            raise Missing(f"the manifest of {key} is not there")
        head = manifest.head
        if (head.generation, head.revision) != (generation, revision):
            raise Differs(  # noqa: TRY301
                f"the archive is of generation {head.generation}, revision {head.revision}; "
                f"expected generation {generation}, revision {revision}"
            )
        for _ in contents(place, manifest, done):
            pass
    except Differs as error:
        raise Failed(Code.READBACK_MISMATCH, f"read back {key}: {error.message}", **error.context) from error
    return manifest
