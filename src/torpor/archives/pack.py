"""How does a home become an archive?

Write the data, then the manifest, then read everything back. Whoever repeats it finds the manifest and only proves; a try that
did not come as far as its manifest has left nothing that counts, and its data is written over.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.archives.entries import HOME, Differs, Entry, HomeFacts, Kind
from torpor.archives.frames import compressed
from torpor.archives.manifest import HOME_NAME, MANIFEST_NAME, Entries, Head, Manifest, Part, fetch, place_of
from torpor.archives.proof import Done, prove
from torpor.archives.store import Place, Transient
from torpor.archives.tarheader import END, header, padding
from torpor.archives.tree import Skips, Walk, content, refuse_holes
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey


@dataclass(frozen=True, slots=True)
class Order:
    """Which archive is wanted."""

    key: ArchiveKey
    generation: int
    revision: int


Thing = tuple[Entry, Callable[[], Iterable[bytes]]]
"""An entry, and how to read it."""


def pack(place: Place, order: Order, home: Path, done: Done) -> Manifest:
    """The home as a proven archive. `done` counts its bytes twice: written, and read back."""

    def things(walk: Walk) -> Iterator[Thing]:
        for found in refuse_holes(walk):
            yield found.entry, lambda found=found: content(found)  # type: ignore[misc]

    def attempt() -> None:
        walk = Walk(home)
        _write(place, order, walk.home, things(walk), walk.skipped, done)

    return _ensure(place, order, attempt, done)


def pack_empty(place: Place, order: Order, *, mode: int) -> Manifest:
    """The proven archive of a home in which there is nothing."""

    def attempt() -> None:
        home = HomeFacts(uid=0, gid=0, mtime_ns=0)
        nothing: list[Thing] = [(Entry(HOME, Kind.DIRECTORY, mode, "home", "home", None), lambda: ())]
        _write(place, order, home, nothing, Skips(), lambda count: None)

    return _ensure(place, order, attempt, lambda count: None)


def _ensure(place: Place, order: Order, attempt: Callable[[], None], done: Done) -> Manifest:
    if not _is_finished(place, order.key):
        for pause_s in place.pauses_s:
            try:
                attempt()
                break
            except Transient:
                time.sleep(pause_s)
        else:
            attempt()
    return prove(place, order.key, generation=order.generation, revision=order.revision, done=done)


def _forget(place: Place, key: ArchiveKey) -> None:
    """Data that no manifest will ever speak for goes with the one who wrote it."""
    with contextlib.suppress(Failed, Differs):
        if place.size(place_of(key, MANIFEST_NAME)) is None:
            place.remove(place_of(key, HOME_NAME))


def _is_finished(place: Place, key: ArchiveKey) -> bool:
    try:
        return fetch(place, key) is not None
    except Differs as error:
        # There is a manifest, and it never changes: this key is spoilt. The home is intact, and another op_id helps.
        raise Failed(Code.READBACK_MISMATCH, f"read back {key}: {error.message}", **error.context) from error


def _write(place: Place, order: Order, home: HomeFacts, things: Iterable[Thing], skipped: Skips, done: Done) -> None:
    entries = Entries()
    digest, size, is_whole = hashlib.sha256(), 0, False

    def counted() -> Iterator[bytes]:
        nonlocal size, is_whole
        for piece in compressed(_tar(home, things, entries, done)):
            digest.update(piece)
            size += len(piece)
            yield piece
        is_whole = True

    try:
        place.write(place_of(order.key, HOME_NAME), counted())
        head = Head(
            workspace_id=order.key.workspace_id,
            op_id=order.key.op_id,
            generation=order.generation,
            revision=order.revision,
            home=home,
            manifest_root=entries.root.hex(),
            files=entries.root.files,
            home_bytes=entries.root.home_bytes,
            parts=(Part(HOME_NAME, size, digest.hexdigest()),),
            skipped=tuple(skipped.first),
            skipped_count=skipped.count,
        )
        # When there is one already, somebody else has finished this very archive: the proof that follows judges it.
        place.write_once(place_of(order.key, MANIFEST_NAME), entries.manifest(head))
    except Transient:
        raise  # to be written over by the next try
    except BaseException:
        # An upload that was cut off has aborted itself; what else lies there is not ours to remove.
        if is_whole:
            _forget(place, order.key)
        raise


def _tar(home: HomeFacts, things: Iterable[Thing], entries: Entries, done: Done) -> Iterator[bytes]:
    for entry, read in things:
        yield header(entry, home)
        if entry.kind is Kind.FILE:
            digest = hashlib.sha256()
            for piece in read():
                digest.update(piece)
                yield piece
                done(len(piece))
            yield padding(entry.size)
            entries.add(replace(entry, sha256=digest.hexdigest()))
        else:
            entries.add(entry)
    yield END
