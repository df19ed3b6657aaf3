"""Save the whole value of a machine in a file that survives a kill and a full disk.

The file is one line with a checksum and one JSON document. It is written under another name, fsynced and renamed before
anything that follows from it is sent. A process that starts again finds the value before or the value after, never a mixture.
"""

import errno
import hashlib
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from torpor import atomic_file
from torpor.sort.data.files import remove, to_sort_failed
from torpor.sort.documents import decode, encode, from_plain
from torpor.sort.errors import JournalCorrupt, SortFailed
from torpor.sort.journal_version_2 import to_present_version
from torpor.sort.sizes import MIB

T = TypeVar("T")

MAGIC = b"torpor-sort-journal"
VERSION = 4
"""Not 3, which one changed bit would turn into 2."""
EARLIER_VERSION = 2
RESERVE = 1 * MIB
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Journal:
    """One value in one file. Saves from several threads run one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reserve_path = path.with_name(path.name + ".reserve")
        self._aside = path.with_name(path.name + ".partial")
        self._lock = threading.Lock()

    def reserve(self, size: int = RESERVE) -> None:
        """Reserve space for the journal, so that a full disk can still be recorded. May be repeated."""
        try:
            self._hold(size)
        except OSError as error:
            remove(self.reserve_path)
            raise to_sort_failed(error, self.reserve_path, "reserving space for the journal in") from error

    def save(self, value: object) -> None:
        """When this returns, the value is on the disk."""
        content = _sealed(encode(value))
        with self._lock:
            try:
                self._write(content)
            except OSError as error:
                if error.errno not in NO_SPACE or not self.reserve_path.exists():
                    raise self._unsaved(error) from error
                self._save_with_the_reserve(content)
            else:
                self._grow_with(content)

    def load(self, kind: type[T]) -> T | None:
        """The value that was saved last, or None. JournalCorrupt if the file is damaged, SortFailed if it has another type or
        version."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise to_sort_failed(error, self.path, "reading the journal") from error
        try:
            version, document = _unsealed(content)
            if version == EARLIER_VERSION:
                return from_plain(kind, to_present_version(json.loads(document)))
            return decode(kind, document)
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
            # Some file systems reuse freed blocks only after the removal itself is on the disk.
            atomic_file.sync_directory(self.path.parent)
            self._write(content)
        except OSError as error:
            raise self._unsaved(error) from error

    def _unsaved(self, error: OSError) -> SortFailed:
        return to_sort_failed(error, self.path, "saving the journal")

    def _write(self, content: bytes) -> None:
        # A failed write removes its partial file, which would use the space that the next try needs.
        atomic_file.write(self.path, content, partial=self._aside, mode=0o666)

    def _hold(self, size: int) -> None:
        descriptor = os.open(self.reserve_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)

    def _grow_with(self, content: bytes) -> None:
        """The old journal exists while the new one is written, so the reserve must be as large as the largest journal
        to come."""
        with suppress(OSError):  # A reserve that cannot grow does not fail a save that succeeded.
            if self.reserve_path.stat().st_size < 2 * len(content):
                self._hold(2 * len(content))


class _CorruptRecord(ValueError):
    """The content differs from what Torpor wrote."""


def _sealed(document: bytes) -> bytes:
    return b"%s %d %s\n%s\n" % (MAGIC, VERSION, hashlib.sha256(document).hexdigest().encode(), document)


def _unsealed(content: bytes) -> tuple[int, bytes]:
    """The version and the document."""
    head, _, rest = content.partition(b"\n")
    match head.split(b" "):
        case [magic, version, checksum] if magic == MAGIC:
            if version not in (b"%d" % VERSION, b"%d" % EARLIER_VERSION):
                found = version.decode(errors="replace")
                raise ValueError(f"it has version {found}; this program reads version {VERSION} and {EARLIER_VERSION}")
            document = rest.removesuffix(b"\n")
            if hashlib.sha256(document).hexdigest().encode() != checksum:
                raise _CorruptRecord("its checksum does not match its content; it is incomplete or was changed")
            return int(version), document
        case _:
            raise _CorruptRecord("it does not begin as a journal of torpor sort")
