"""Find the entry of an archive that has the content of a path."""

from collections.abc import Callable, Iterator, Mapping

from torpor.archives.entries import Entry, EntryKind
from torpor.domain.errors import Refused

KIND_WORDS: Mapping[EntryKind, str] = {
    EntryKind.DIRECTORY: "a folder",
    EntryKind.FILE: "a file",
    EntryKind.SYMLINK: "a symbolic link",
    EntryKind.HARDLINK: "a hard link",
    EntryKind.FIFO: "a FIFO",
}


def file_at(entries: Callable[[], Iterator[Entry]], path: str) -> Entry:
    """The entry that has the content of this path; Refused if it is no file."""
    wanted = plain_path(path)
    entry = next((one for one in entries() if one.path == wanted), None)
    if entry is not None and entry.kind is EntryKind.HARDLINK:
        target = entry.target
        entry = next((one for one in entries() if one.path == target), None)
    if entry is None:
        raise Refused("no_such_file", f"the archive has no file {path!r}", path=path)
    if entry.kind is not EntryKind.FILE:
        raise Refused("no_such_file", f"{path!r} is {KIND_WORDS[entry.kind]}, not a file", path=path)
    return entry


def plain_path(path: str) -> str:
    """As an archive has it: `./a/b/` is `a/b`."""
    return path.removeprefix("./").strip("/")
