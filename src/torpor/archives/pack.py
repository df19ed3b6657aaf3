"""Pack a home into an archive: write the data, then the manifest, then read everything back.

A repeated call finds the manifest and only proves the archive. Data without a manifest is replaced by the next try.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.archives.entries import HOME, ArchiveMismatch, Entry, EntryKind, HomeFacts
from torpor.archives.frames import compressed
from torpor.archives.manifest import (
    HOME_NAME,
    MANIFEST_NAME,
    ArchivePart,
    Manifest,
    ManifestBuilder,
    ManifestHead,
    fetch,
    object_path,
)
from torpor.archives.progress_meter import Meter
from torpor.archives.proof import Done, prove
from torpor.archives.store import ArchiveStore, TransientFailure
from torpor.archives.tarheader import END, header, padding
from torpor.archives.tree import SkipSummary, Walk, content, refuse_holes
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey


@dataclass(frozen=True, slots=True)
class PackRequest:
    """The archive to write."""

    key: ArchiveKey
    generation: int
    revision: int


Thing = tuple[Entry, Callable[[], Iterable[bytes]]]
"""An entry, and how to read it."""


def pack(place: ArchiveStore, order: PackRequest, home: Path, done: Meter) -> Manifest:
    """Write and prove the archive of a home. `done` counts each byte twice: written, and read back."""

    def things(walk: Walk) -> Iterator[Thing]:
        for found in refuse_holes(walk):
            yield found.entry, lambda found=found: content(found)  # type: ignore[misc]

    def attempt() -> None:
        walk = Walk(home)
        _write(place, order, walk.home, things(walk), walk.skipped, done)

    return _ensure(place, order, attempt, done)


def pack_empty(place: ArchiveStore, order: PackRequest, *, mode: int) -> Manifest:
    """Write and prove the archive of an empty home."""

    def attempt() -> None:
        home = HomeFacts(uid=0, gid=0, mtime_ns=0)
        nothing: list[Thing] = [(Entry(HOME, EntryKind.DIRECTORY, mode, "home", "home", None), lambda: ())]
        _write(place, order, home, nothing, SkipSummary(), None)

    return _ensure(place, order, attempt, lambda count: None)


def _ensure(place: ArchiveStore, order: PackRequest, attempt: Callable[[], None], done: Done) -> Manifest:
    if not is_finished(place, order.key):
        for pause_s in place.pauses_s:
            try:
                attempt()
                break
            except TransientFailure:
                time.sleep(pause_s)
        else:
            attempt()
    return prove(place, order.key, generation=order.generation, revision=order.revision, done=done)


def _forget(place: ArchiveStore, key: ArchiveKey) -> None:
    """Remove data that will never have a manifest."""
    with contextlib.suppress(Failed, ArchiveMismatch):
        if place.size(object_path(key, MANIFEST_NAME)) is None:
            place.remove(object_path(key, HOME_NAME))


def is_finished(place: ArchiveStore, key: ArchiveKey) -> bool:
    try:
        return fetch(place, key) is not None
    except ArchiveMismatch as error:
        # A manifest never changes, so this key cannot be used any more. The home is intact; a new op_id helps.
        raise Failed(Code.READBACK_MISMATCH, f"read back {key}: {error.message}", **error.context) from error


def _write(
    place: ArchiveStore, order: PackRequest, home: HomeFacts, things: Iterable[Thing], skipped: SkipSummary, done: Meter | None
) -> None:
    entries = ManifestBuilder()
    digest, size, is_whole = hashlib.sha256(), 0, False

    def counted() -> Iterator[bytes]:
        nonlocal size, is_whole
        for piece in compressed(_tar(home, things, entries, done)):
            digest.update(piece)
            size += len(piece)
            yield piece
        is_whole = True

    try:
        place.write(object_path(order.key, HOME_NAME), counted())
        head = ManifestHead(
            workspace_id=order.key.workspace_id,
            op_id=order.key.op_id,
            generation=order.generation,
            revision=order.revision,
            home=home,
            manifest_root=entries.root.hex(),
            files=entries.root.files,
            home_bytes=entries.root.home_bytes,
            parts=(ArchivePart(HOME_NAME, size, digest.hexdigest()),),
            skipped=tuple(skipped.first),
            skipped_count=skipped.count,
        )
        # If a manifest exists, another process has finished this archive; the proof that follows checks it.
        place.write_once(object_path(order.key, MANIFEST_NAME), entries.manifest(head))
    except TransientFailure:
        raise  # the next try replaces the data
    except BaseException:
        # An interrupted upload has aborted itself; other objects there are not ours to remove.
        if is_whole:
            _forget(place, order.key)
        raise


def _tar(home: HomeFacts, things: Iterable[Thing], entries: ManifestBuilder, done: Meter | None) -> Iterator[bytes]:
    for entry, read in things:
        yield header(entry, home)
        if entry.kind is EntryKind.FILE:
            digest = hashlib.sha256()
            for piece in read():
                digest.update(piece)
                yield piece
                if done is not None:
                    done(len(piece))
            yield padding(entry.size)
            entries.add(replace(entry, sha256=digest.hexdigest()))
        else:
            entries.add(entry)
        if done is not None and entry.kind in (EntryKind.FILE, EntryKind.HARDLINK):
            done.count_files()
    yield END
