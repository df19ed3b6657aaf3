"""How does a file come to exist only when it is whole, and how is it recognised again?"""

import errno
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torpor.sort.codec import from_plain, to_plain
from torpor.sort.errors import Broken
from torpor.sort.kernels.boundaries import Boundary
from torpor.sort.proof import Proof
from torpor.sort.sizes import BLOCK

Data = bytes | bytearray | memoryview | NDArray[np.uint8]
Prove = Callable[[Path], Proof]
"""Reads a file's records and counts them again."""

PARTIAL = ".partial"

MEANS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the device reports an input/output error",
    errno.EROFS: "the file system is read-only",
}


def broken(error: OSError, path: Path | str, doing: str) -> Broken:
    """What a foreign error means, with the file and what was being done to it."""
    reason = MEANS.get(error.errno or 0) or error.strerror or str(error)
    return Broken(f"{doing} {os.fspath(path)}: {reason}")


class Kind(StrEnum):
    RUN = "run"
    PART = "part"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file that is whole says about itself; written after it, so that it never vouches for less."""

    name: str
    job: str
    kind: Kind
    boundaries: str
    """Their digest: under other boundaries the same name holds other records."""
    records: int
    size: int
    """Of the file, in bytes."""
    checksum: int
    """The sum over the records, as in a Proof."""
    crc: int | None
    """zlib's CRC-32 over the file's bytes in order; None where it was not taken."""
    extra: Mapping[str, str | int | list[int]] = field(default_factory=dict)

    @property
    def proof(self) -> Proof:
        return Proof(self.records, self.size, self.checksum)


class Writer:
    """A file under its temporary name. Errors of its own writing come as Broken; who writes to `descriptor` translates his."""

    def __init__(self, descriptor: int, path: Path, doing: str, *, crc: bool) -> None:
        self.descriptor = descriptor
        self.path = path
        self.doing = doing
        self.size = 0
        """What was written by `write`."""
        self.crc: int | None = 0 if crc else None

    def write(self, data: Data) -> None:
        """Appends all of it."""
        view = _bytes_of(data)
        if self.crc is not None:
            self.crc = zlib.crc32(view, self.crc)
        self.size += len(view)
        with self.troubles():
            while view:
                view = view[os.write(self.descriptor, view) :]

    def write_at(self, data: Data, offset: int) -> None:
        """For writers that fill a file from several threads; there is no CRC over bytes that come in any order."""
        if self.crc is not None:
            raise ValueError("a file whose CRC is taken is written from front to back")
        view = _bytes_of(data)
        with self.troubles():
            while view:
                written = os.pwrite(self.descriptor, view, offset)
                view, offset = view[written:], offset + written

    @contextmanager
    def troubles(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise broken(error, self.path, self.doing) from error


def _bytes_of(data: Data) -> memoryview:
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def temporary(final: Path, attempt: int) -> Path:
    return final.with_name(f"{final.name}.{attempt}{PARTIAL}")


@contextmanager
def writing(
    final: Path, attempt: int, *, sync: bool, crc: bool = False, flags: int = 0, doing: str = "writing"
) -> Iterator[Writer]:
    """A file that gets its name when the block ends well, and leaves nothing when it does not.

    With `sync` it survives a power cut from then on. `flags` are added to those of open(2).
    """
    path = temporary(final, attempt)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | flags, 0o666)
    except OSError as error:
        raise broken(error, final, doing) from error
    try:
        try:
            writer = Writer(descriptor, final, doing, crc=crc)
            yield writer
            with writer.troubles():
                if sync:
                    os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with writer.troubles():
            path.rename(final)
            if sync:
                sync_directory(final.parent)
    except BaseException:
        # What was wrong first is what must be told.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(path: Path, manifest: Manifest, attempt: int, *, sync: bool) -> None:
    document = json.dumps(to_plain(manifest), sort_keys=True).encode()
    with writing(path, attempt, sync=sync, doing="writing the manifest") as writer:
        writer.write(document + b"\n")


def read_manifest(path: Path) -> Manifest | None:
    """None also for one that is torn or not ours: what nothing vouches for is made again."""
    try:
        return from_plain(Manifest, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise broken(error, path, "reading the manifest") from error
    except ValueError:
        return None


def is_whole(path: Path, manifest: Manifest, *, deep: bool = False, prove: Prove | None = None) -> bool:
    """Is this the file that the manifest vouches for? By its size; with `deep`, by every byte of it.

    The bytes are compared by their CRC, or where none was taken by the proof of their records. Without either, `deep` says no.
    """
    try:
        if not path.is_file() or path.stat().st_size != manifest.size or path.name != manifest.name:
            return False
        if not deep:
            return True
        if manifest.crc is not None:
            return crc_of(path) == manifest.crc
        return prove is not None and prove(path) == manifest.proof
    except FileNotFoundError:
        return False
    except OSError as error:
        raise broken(error, path, "reading") from error


def crc_of(path: Path) -> int:
    crc = 0
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            crc = zlib.crc32(buffer[:size], crc)
    return crc


def remove(path: Path) -> None:
    """No such file any more, whether or not there was one."""
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        raise broken(error, path, "removing") from error


def digest(boundaries: Iterable[Boundary]) -> str:
    """The fingerprint of boundaries: equal for equal ones and for no others."""
    found = hashlib.sha256(b"torpor sort boundaries 1\n")
    for boundary in boundaries:
        # The key's length is in front, so that no byte can belong to either of two neighbours.
        found.update(b"%d %d %d\n" % (len(boundary.key), boundary.worker, boundary.position))
        found.update(boundary.key)
    return found.hexdigest()
