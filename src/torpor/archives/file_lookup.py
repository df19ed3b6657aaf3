"""Find the entry of an archive that has the content of a path."""

from collections.abc import Callable, Generator, Iterator, Mapping

from torpor.archives.entries import Entry, EntryKind
from torpor.domain.errors import Refused

KIND_WORDS: Mapping[EntryKind, str] = {
    EntryKind.DIRECTORY: "a folder",
    EntryKind.FILE: "a file",
    EntryKind.SYMLINK: "a symbolic link",
    EntryKind.HARDLINK: "a hard link",
    EntryKind.FIFO: "a FIFO",
}
ENTRIES_AT_ONCE = 1000
"""After so many entries, an empty piece is returned: there the caller can stop."""


def file_at(entries: Callable[[], Iterator[Entry]], path: str) -> Generator[bytes, None, Entry]:
    """Return the entry that has the content of this path; Refused if it is no file. All pieces are empty."""
    entry = yield from _entry_at(entries(), plain_path(path))
    if entry is not None and entry.kind is EntryKind.HARDLINK:
        entry = yield from _entry_at(entries(), entry.target)
    if entry is None:
        raise Refused("no_such_file", f"the archive has no file {path!r}", path=path)
    if entry.kind is not EntryKind.FILE:
        raise Refused("no_such_file", f"{path!r} is {KIND_WORDS[entry.kind]}, not a file", path=path)
    return entry


def plain_path(path: str) -> str:
    """As an archive has it: `./a/b/` is `a/b`."""
    return path.removeprefix("./").strip("/")


def _entry_at(entries: Iterator[Entry], path: str) -> Generator[bytes, None, Entry | None]:
    for number, entry in enumerate(entries, 1):
        if entry.path == path:
            return entry
        if number % ENTRIES_AT_ONCE == 0:
            yield b""
    return None
