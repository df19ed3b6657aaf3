"""How does a machine's whole value survive its process, and even a full disk?

The file is one line of checksum and one JSON document. It is written aside, fsynced and renamed before anything that
follows from it is sent, so whoever starts again finds either the value before or the value after, never a mixture.
"""

import errno
import hashlib
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from torpor.sort.data.files import remove, sync_directory, to_sort_failed
from torpor.sort.documents import from_plain, to_plain
from torpor.sort.errors import JournalCorrupt, SortFailed
from torpor.sort.sizes import MIB

T = TypeVar("T")

MAGIC = b"torpor-sort-journal"
VERSION = 2
RESERVE = 1 * MIB
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Journal:
    """One value in one file; saves from several threads follow one another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reserve_path = path.with_name(path.name + ".reserve")
        self._aside = path.with_name(path.name + ".partial")
        self._lock = threading.Lock()

    def reserve(self, size: int = RESERVE) -> None:
        """Holds space for the journal, so that a full disk can still be recorded; may be repeated."""
        try:
            self._hold(size)
        except OSError as error:
            remove(self.reserve_path)
            raise to_sort_failed(error, self.reserve_path, "reserving space for the journal in") from error

    def save(self, value: object, declared: Any = None) -> None:
        """When this returns, the value is on the disk. `declared` as in the codec."""
        content = _sealed(json.dumps(to_plain(value, declared), separators=(",", ":"), allow_nan=False).encode())
        with self._lock:
            try:
                self._write(content)
            except OSError as error:
                if error.errno not in NO_SPACE or not self.reserve_path.exists():
                    raise self._unsaved(error) from error
                self._save_with_the_reserve(content)
            else:
                self._grow_with(content)

    def load(self, declared: type[T]) -> T | None:
        """What was saved last; None if nothing was. Torn if it is damaged, Broken if it is of another kind or version."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise to_sort_failed(error, self.path, "reading the journal") from error
        try:
            return from_plain(declared, json.loads(_unsealed(content)))
        except _CorruptRecord as error:
            raise JournalCorrupt(f"the journal {self.path} cannot be read: {error}") from error
        except ValueError as error:
            raise SortFailed(f"the journal {self.path} cannot be read: {error}") from error

    def remove(self) -> None:
        for path in (self.path, self._aside, self.reserve_path):
            remove(path)

    def _save_with_the_reserve(self, content: bytes) -> None:
        try:
            remove(self.reserve_path)
            # Some file systems give freed blocks out again only when the removal itself is on the disk.
            sync_directory(self.path.parent)
            self._write(content)
        except OSError as error:
            raise self._unsaved(error) from error

    def _unsaved(self, error: OSError) -> SortFailed:
        return to_sort_failed(error, self.path, "saving the journal")

    def _write(self, content: bytes) -> None:
        try:
            with self._aside.open("wb", buffering=0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            self._aside.rename(self.path)
            sync_directory(self.path.parent)
        except BaseException:
            # A half-written one would take the very space that the next try needs.
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)
            raise

    def _hold(self, size: int) -> None:
        descriptor = os.open(self.reserve_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)

    def _grow_with(self, content: bytes) -> None:
        """While one is written the one before is still there, so the reserve must be as large as the largest to come."""
        with suppress(OSError):  # No room to grow is no reason to fail a save that went well.
            if self.reserve_path.stat().st_size < 2 * len(content):
                self._hold(2 * len(content))


class _CorruptRecord(ValueError):
    """This is not what was written."""


def _sealed(document: bytes) -> bytes:
    return b"%s %d %s\n%s\n" % (MAGIC, VERSION, hashlib.sha256(document).hexdigest().encode(), document)


def _unsealed(content: bytes) -> bytes:
    head, _, rest = content.partition(b"\n")
    match head.split(b" "):
        case [magic, version, checksum] if magic == MAGIC:
            if version != b"%d" % VERSION:
                raise ValueError(f"it has version {version.decode(errors='replace')}, and this program reads version {VERSION}")
            document = rest.removesuffix(b"\n")
            if hashlib.sha256(document).hexdigest().encode() != checksum:
                raise _CorruptRecord("its checksum is not that of its content; it is torn or was changed")
            return document
        case _:
            raise _CorruptRecord("it does not begin as a journal of torpor sort")
