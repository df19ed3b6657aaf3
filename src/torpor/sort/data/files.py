"""Write files that exist only when they are complete, and recognise them by their manifests."""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torpor.atomic_file import replacing
from torpor.sort.documents import decode, encode
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.proof import Proof

Data = bytes | bytearray | memoryview | NDArray[np.uint8]
Extra = Mapping[str, int | str | list[int]]
"""What else is needed to use a file of one kind again."""

PARTIAL = ".partial"

MEANS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the device reports an input/output error",
    errno.EROFS: "the file system is read-only",
}


def to_sort_failed(error: OSError, path: Path | str, doing: str) -> SortFailed:
    """The meaning of an operating system error, with the file and the operation."""
    reason = MEANS.get(error.errno or 0) or error.strerror or str(error)
    return SortFailed(f"{doing} {os.fspath(path)}: {reason}")


class FileKind(StrEnum):
    RUN = "run"
    PART = "part"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class FileManifest:
    """The description of a complete file. It is written after the file, so that it never describes an incomplete one."""

    name: str
    job: str
    kind: FileKind
    boundaries: str
    """The digest of the boundaries: under other boundaries the same name has other records."""
    proof: Proof
    """Of the file's records, which are all of its bytes."""
    extra: Extra = field(default_factory=dict)


class AtomicWriter:
    """A file under its temporary name. Its writes raise SortFailed; a caller that uses `descriptor` converts errors itself."""

    def __init__(self, descriptor: int, path: Path, doing: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.doing = doing
        self.size = 0
        """The bytes that `write` has written."""

    def write(self, data: Data) -> None:
        """Append the data."""
        view = _bytes_of(data)
        self.size += len(view)
        with self.troubles():
            while view:
                view = view[os.write(self.descriptor, view) :]

    def write_at(self, data: Data, offset: int) -> None:
        """Write at an offset, in any order and from several threads."""
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
def atomic_file(final: Path, attempt: int, *, sync: bool, doing: str = "writing") -> Iterator[AtomicWriter]:
    """A file that gets its name when the block ends well, and leaves nothing when it does not.

    With `sync` it survives a power cut from then on.
    """
    callers: OSError | None = None
    try:
        with replacing(final, temporary(final, attempt), mode=0o666, sync=sync) as descriptor:
            try:
                yield AtomicWriter(descriptor, final, doing)
            except OSError as error:
                callers = error
                raise
    except OSError as error:
        if error is callers:
            raise
        raise to_sort_failed(error, final, doing) from error


def write_manifest(path: Path, manifest: FileManifest, attempt: int, *, sync: bool) -> None:
    document = encode(manifest)
    with atomic_file(path, attempt, sync=sync, doing="writing the manifest") as writer:
        writer.write(document + b"\n")


def read_manifest(path: Path) -> FileManifest | None:
    """None also for an incomplete or foreign manifest: a file without a valid manifest is made again."""
    try:
        return decode(FileManifest, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise to_sort_failed(error, path, "reading the manifest") from error
    except ValueError:
        return None


def is_whole(path: Path, manifest: FileManifest) -> bool:
    """Whether the file has the name and size in the manifest. Only a proof of its records can confirm the content."""
    try:
        return path.is_file() and path.stat().st_size == manifest.proof.size and path.name == manifest.name
    except FileNotFoundError:
        return False
    except OSError as error:
        raise to_sort_failed(error, path, "reading") from error


def remove(path: Path) -> None:
    """Remove the file if it exists."""
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        raise to_sort_failed(error, path, "removing") from error


def digest(boundaries: Iterable[Boundary]) -> str:
    """The fingerprint of boundaries: equal only for equal boundaries."""
    found = hashlib.sha256(b"torpor sort boundaries 1\n")
    for boundary in boundaries:
        # The length of the key comes first, so that the bytes of two neighbours cannot be confused.
        found.update(b"%d %d %d\n" % (len(boundary.key), boundary.worker, boundary.position))
        found.update(boundary.key)
    return found.hexdigest()
