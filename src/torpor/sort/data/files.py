"""How does a file come to exist only when it is whole, and how is it recognised again?"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torpor.sort.documents import from_plain, to_plain
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.proof import Proof

Data = bytes | bytearray | memoryview | NDArray[np.uint8]
Extra = Mapping[str, int | str | list[int]]
"""What else must be known of a file of one kind to use it again."""

PARTIAL = ".partial"

MEANS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the device reports an input/output error",
    errno.EROFS: "the file system is read-only",
}


def to_sort_failed(error: OSError, path: Path | str, doing: str) -> SortFailed:
    """What a foreign error means, with the file and what was being done to it."""
    reason = MEANS.get(error.errno or 0) or error.strerror or str(error)
    return SortFailed(f"{doing} {os.fspath(path)}: {reason}")


class FileKind(StrEnum):
    RUN = "run"
    PART = "part"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class FileManifest:
    """What a file that is whole says about itself; written after it, so that it never vouches for less."""

    name: str
    job: str
    kind: FileKind
    boundaries: str
    """Their digest: under other boundaries the same name holds other records."""
    proof: Proof
    """Of the file's records, which are all of its bytes."""
    extra: Extra = field(default_factory=dict)


class AtomicWriter:
    """A file under its temporary name. Errors of its own writing come as Broken; who writes to `descriptor` translates his."""

    def __init__(self, descriptor: int, path: Path, doing: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.doing = doing
        self.size = 0
        """What was written by `write`."""

    def write(self, data: Data) -> None:
        """Appends all of it."""
        view = _bytes_of(data)
        self.size += len(view)
        with self.troubles():
            while view:
                view = view[os.write(self.descriptor, view) :]

    def write_at(self, data: Data, offset: int) -> None:
        """For those who fill a file in any order, from several threads."""
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
            raise to_sort_failed(error, self.path, self.doing) from error


def _bytes_of(data: Data) -> memoryview:
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def temporary(final: Path, attempt: int) -> Path:
    return final.with_name(f"{final.name}.{attempt}{PARTIAL}")


@contextmanager
def writing(final: Path, attempt: int, *, sync: bool, doing: str = "writing") -> Iterator[AtomicWriter]:
    """A file that gets its name when the block ends well, and leaves nothing when it does not.

    With `sync` it survives a power cut from then on.
    """
    path = temporary(final, attempt)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise to_sort_failed(error, final, doing) from error
    try:
        try:
            writer = AtomicWriter(descriptor, final, doing)
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


def write_manifest(path: Path, manifest: FileManifest, attempt: int, *, sync: bool) -> None:
    document = json.dumps(to_plain(manifest), sort_keys=True).encode()
    with writing(path, attempt, sync=sync, doing="writing the manifest") as writer:
        writer.write(document + b"\n")


def read_manifest(path: Path) -> FileManifest | None:
    """None also for one that is torn or not ours: what nothing vouches for is made again."""
    try:
        return from_plain(FileManifest, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise to_sort_failed(error, path, "reading the manifest") from error
    except ValueError:
        return None


def is_whole(path: Path, manifest: FileManifest) -> bool:
    """Is this the file that the manifest vouches for, by name and size? What it holds, only its records can prove."""
    try:
        return path.is_file() and path.stat().st_size == manifest.proof.size and path.name == manifest.name
    except FileNotFoundError:
        return False
    except OSError as error:
        raise to_sort_failed(error, path, "reading") from error


def remove(path: Path) -> None:
    """No such file any more, whether or not there was one."""
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        raise to_sort_failed(error, path, "removing") from error


def digest(boundaries: Iterable[Boundary]) -> str:
    """The fingerprint of boundaries: equal for equal ones and for no others."""
    found = hashlib.sha256(b"torpor sort boundaries 1\n")
    for boundary in boundaries:
        # The key's length is in front, so that no byte can belong to either of two neighbours.
        found.update(b"%d %d %d\n" % (len(boundary.key), boundary.worker, boundary.position))
        found.update(boundary.key)
    return found.hexdigest()
