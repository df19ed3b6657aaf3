"""Find the entry of an archive that has the content of a path."""

from collections.abc import Callable, Generator, Iterator

from torpor.archives.entries import Entry, EntryKind
from torpor.domain.errors import Refused

ENTRIES_AT_ONCE = 1000
"""After so many entries, an empty piece is returned: there the caller can stop."""


def file_at(entries: Callable[[], Iterator[Entry]], path: str) -> Generator[bytes, None, Entry]:
    """Return the entry that has the content of this path; Refused if it is no file. All pieces are empty."""
    entry = yield from _entry_at(entries(), path)
    if entry is not None and entry.kind is EntryKind.HARDLINK:
        entry = yield from _entry_at(entries(), entry.target)
    if entry is None:
        raise Refused("no_such_file", f"the archive has no file {path!r}", path=path)
    if entry.kind is not EntryKind.FILE:
        raise Refused("no_such_file", f"{path!r} is a {entry.kind}, not a file", path=path)
    return entry


def _entry_at(entries: Iterator[Entry], path: str) -> Generator[bytes, None, Entry | None]:
    for number, entry in enumerate(entries, 1):
        if entry.path == path:
            return entry
        if number % ENTRIES_AT_ONCE == 0:
            yield b""
    return None
