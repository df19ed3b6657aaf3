"""Find the entry of an archive that has the content of a path."""

from collections.abc import Callable, Iterator

from torpor.archives.entries import Entry, EntryKind
from torpor.domain.errors import Refused


def file_at(entries: Callable[[], Iterator[Entry]], path: str) -> Entry:
    """The entry that has the content of this path; Refused if it is no file."""
    entry = next((one for one in entries() if one.path == path), None)
    if entry is not None and entry.kind is EntryKind.HARDLINK:
        target = entry.target
        entry = next((one for one in entries() if one.path == target), None)
    if entry is None:
        raise Refused("no_such_file", f"the archive has no file {path!r}", path=path)
    if entry.kind is not EntryKind.FILE:
        raise Refused("no_such_file", f"{path!r} is a {entry.kind}, not a file", path=path)
    return entry
