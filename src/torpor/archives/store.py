"""Read and write objects in the archive store, and translate its errors.

One URL names the store: `file:///directory`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`. Everything
specific to one kind of store is in this file.
"""

import contextlib
import errno
import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import LocalStore, ObjectStore, from_url

from torpor.archives.blocking_calls import Threads
from torpor.archives.entries import ArchiveMismatch
from torpor.domain.errors import Code, Failed, Refused
from torpor.domain.names import is_id

WINDOW_BYTES = 8 << 20
"""Objects are read in windows: LocalStore's streaming GET is slow, and a window that fails can be requested again."""
PART_BYTES = 16 << 20
"""S3 accepts at most 10,000 parts for an object: 160 GB compressed."""
PARTS_AT_ONCE = 2
MOST_COPY_BYTES = 2 << 30
"""A store copies larger objects too slowly for one request, and S3 refuses more than 5 GiB. They are read and written."""
LISTED_AT_ONCE = 1000
IDENTITY = ".torpor-store"
"""The object with the store's identity: an id, written once."""
UNFINISHED = re.compile(r"(.+)#\d+")
"""LocalStore writes an object to such a file and renames it."""
PAUSES_S = (0.2, 1.0)
"""Between the three tries of one call."""

CLOUD_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"})
# Options that concern the connection rather than the store, by obstore's names.
CONNECTION_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "timeout",
        "proxy_url",
        "proxy_ca_certificate",
        "user_agent",
    }
)
# Options with the address of the server, which are also names of environment variables.
ENDPOINT_OPTIONS = ("aws_endpoint", "aws_endpoint_url", "azure_storage_endpoint", "azure_endpoint")

# The code of each library error, and whether a retry may help.
ERROR_MEANS: dict[type[BaseError], tuple[Code, bool]] = {
    PermissionDeniedError: (Code.S3_ACCESS_ERROR, False),
    UnauthenticatedError: (Code.S3_ACCESS_ERROR, False),
    NotSupportedError: (Code.S3_ACCESS_ERROR, False),
    InvalidPathError: (Code.S3_ACCESS_ERROR, False),
    UnknownConfigurationKeyError: (Code.S3_ACCESS_ERROR, False),
    BaseError: (Code.S3_ACCESS_ERROR, True),
}
# Errors whose text does not always give the status.
STATUS_OF: dict[type[BaseError], int] = {PermissionDeniedError: 403, UnauthenticatedError: 401}
# LocalStore reports errors as "(os error N)" in the text of a GenericError.
OS_ERROR_MEANS: dict[int, tuple[Code, bool]] = {
    errno.ENOSPC: (Code.DISK_FULL, False),
    errno.EDQUOT: (Code.DISK_FULL, False),
    errno.EFBIG: (Code.DISK_FULL, False),
    errno.EACCES: (Code.S3_ACCESS_ERROR, False),
    errno.EPERM: (Code.S3_ACCESS_ERROR, False),
    errno.EROFS: (Code.S3_ACCESS_ERROR, False),
    errno.ENOTDIR: (Code.S3_ACCESS_ERROR, False),
}


class TransientFailure(Failed):
    """The store did not answer this time; the same call may succeed later."""


class ObjectMissing(ArchiveMismatch):
    """An object does not exist."""


class Digest(Protocol):
    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


Answer = TypeVar("Answer")


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """An error in this block says which object is damaged."""
    try:
        yield
    except ObjectMissing:
        raise
    except ArchiveMismatch as error:
        if "object" in error.context:
            raise
        raise ArchiveMismatch(f"{path}: {error.message}", **{"object": path, **error.context}) from error


@dataclass(frozen=True, slots=True)
class StoredObject:
    path: str
    size: int
    version: str = ""
    """ETag and time of the last change: equal while the object is the same."""
    is_whole: bool = True
    """False: a writer to a directory was killed, and only a part was written."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A parsed store URL."""

    url: str
    directory: Path | None
    """For file: URLs."""

    @classmethod
    def parse(cls, url: str) -> "StoreAddress":
        allowed = "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise Refused("bad_archive_url", f"the archive URL cannot be read ({error}); expected {allowed}") from error
        if parts.username is not None or parts.password is not None:
            raise Refused(
                "bad_archive_url", "the archive URL contains a user or password; secrets belong in the store's options"
            )
        if parts.query or parts.fragment:
            raise Refused("bad_archive_url", f"the archive URL has something after ? or #; expected {allowed}")
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise Refused("bad_archive_url", f"{url!r} does not name an absolute directory; expected {allowed}")
            return cls(url, Path(unquote(parts.path)))
        if parts.scheme in CLOUD_SCHEMES:
            if not parts.netloc:
                raise Refused("bad_archive_url", f"{url!r} names no bucket or container; expected {allowed}")
            return cls(url, None)
        raise Refused("bad_archive_url", f"{url!r} is not an archive URL; expected {allowed}")


@dataclass(slots=True)
class ArchiveStore:
    """A client of one store. Each method tries three times if the store does not answer."""

    address: StoreAddress
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    pauses_s: tuple[float, ...] = PAUSES_S
    _store: ObjectStore | None = field(default=None, repr=False)

    @property
    def store(self) -> ObjectStore:
        if self._store is None:
            self._store = self._open()
        return self._store

    def _open(self) -> ObjectStore:
        directory = self.address.directory
        if directory is not None:
            # Not created here: an empty directory where a disk is not mounted would look like an empty store.
            if not directory.is_dir():
                raise Failed(
                    Code.S3_ACCESS_ERROR, f"the archive directory {str(directory)!r} does not exist; mount or create it"
                )
            return LocalStore(directory)
        options = {_option(name): value for name, value in self.options.items()}
        connection: dict[str, Any] = {name: options[name] for name in options if name in CONNECTION_OPTIONS}
        config: dict[str, Any] = {name: options[name] for name in options if name not in CONNECTION_OPTIONS}
        endpoint = _endpoint(options)
        if endpoint and not urlsplit(endpoint).hostname:  # obstore panics
            raise Refused(
                "bad_archive_url", f"the endpoint {endpoint!r} of the archive store has no host; expected http(s)://HOST"
            )
        if endpoint.startswith("http://"):
            connection.setdefault("allow_http", "true")  # the endpoint itself says so
        # We count three tries; the client's own retries must end before a caller's timeout.
        retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
        visit: Any = from_url  # it has one type for each kind of store; ours depends on the URL
        try:
            opened: ObjectStore = visit(self.address.url, config=config, client_options=connection, retry_config=retry)
        except (BaseError, ValueError) as error:
            raise Refused("bad_archive_url", f"the archive store cannot be used: {_first_line(error)}") from error
        return opened

    # ── verbs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def size(self, path: str) -> int | None:
        """The length of an object; None if it does not exist."""
        found = self.head(path)
        return None if found is None else found.size

    def head(self, path: str) -> StoredObject | None:
        """An object without its content; None if it does not exist."""
        try:
            found = self._tried(path, lambda: obstore.head(self.store, path))
        except ObjectMissing:
            return None
        return _stored(path, found)

    def part(self, path: str, start: int, length: int) -> memoryview:
        """These bytes of an object; ArchiveMismatch if it is shorter."""
        try:
            found = self._tried(path, lambda: memoryview(obstore.get_range(self.store, path, start=start, length=length)))
        except Failed:
            # Stores refuse a range that begins after the end.
            if (size := self.size(path)) is None or size >= start + length:
                raise
            found = memoryview(b"")
        if len(found) != length:
            raise ArchiveMismatch(f"{path} is truncated", object=path)
        return found

    def content(self, path: str) -> bytes:
        """A small object as a whole."""
        return self._tried(path, lambda: bytes(obstore.get(self.store, path).bytes()))

    def confirmed(self, read: Callable[[], Answer]) -> Answer:
        """Do `read`, which compares what it reads. What is missing or differs is read again once: a network or a proxy can
        damage an answer, and an archive that counts as damaged is not tried again."""
        try:
            return read()
        except ObjectMissing:
            time.sleep(sum(self.pauses_s))  # a store may be late
        except ArchiveMismatch:
            pass
        return read()

    def windows(
        self, path: str, size: int, digest: Digest | None = None, *, window_bytes: int = WINDOW_BYTES
    ) -> Iterator[memoryview]:
        """An object's bytes. The next window is fetched while the caller uses this one; `digest` is updated with each."""

        def window(start: int) -> memoryview:
            found = self.part(path, start, min(window_bytes, size - start))
            if digest is not None:
                digest.update(found)
            return found

        ahead = Threads(1)
        try:
            coming = ahead.submit(partial(window, 0)) if size else None
            for start in range(window_bytes, size + window_bytes, window_bytes):
                assert coming is not None
                arrived = coming.result()
                coming = ahead.submit(partial(window, start)) if start < size else None
                yield arrived
        finally:
            # Not awaited: a caller may stop because the store does not answer.
            ahead.close()

    def write(self, path: str, pieces: Iterator[bytes]) -> None:
        """Replace the object by the pieces. There is no retry here, because the pieces can be read only once.

        An error raised by the pieces is raised unchanged, and the store keeps no part of the object.
        """
        self._remove_remains(path)
        with self._translated(path):
            # If the pieces raise, obstore aborts its upload first.
            obstore.put(self.store, path, pieces, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            self._settle(path)

    def copy(self, source: str, target: str, size: int, done: Callable[[int], None]) -> None:
        """Replace the object `target` by a copy of `source`. The store copies it, if it can."""
        if self.address.directory is None and size <= MOST_COPY_BYTES:
            self._tried(source, lambda: obstore.copy(self.store, source, target, overwrite=True))
            done(size)
            return

        # A directory store would make a hard link: damage to one file would be damage to both archives.
        def pieces() -> Iterator[bytes]:
            for window in self.windows(source, size):
                yield bytes(window)
                done(len(window))

        self.write(target, pieces())

    def write_once(self, path: str, content: bytes | bytearray) -> bool:
        """Create the object; False if it exists."""
        return self._put(path, content, "create")

    def replace(self, path: str, content: bytes | bytearray) -> None:
        """Create the object, or replace it."""
        self._put(path, content, "overwrite")

    def _put(self, path: str, content: bytes | bytearray, mode: Literal["create", "overwrite"]) -> bool:
        def put() -> bool:
            try:
                obstore.put(self.store, path, content, mode=mode, use_multipart=False)
            except AlreadyExistsError:
                return False
            finally:
                self._settle(path)
            return True

        self._remove_remains(path)
        return self._tried(path, put)

    def identity(self) -> str | None:
        """The store's identity; None if it has none yet."""
        try:
            text = self._tried(
                IDENTITY, lambda: bytes(obstore.get(self.store, IDENTITY).bytes()).decode("utf-8", "replace").strip()
            )
        except ObjectMissing:
            return None
        if not is_id(text):
            raise Failed(Code.S3_ACCESS_ERROR, f"{IDENTITY} in {self.address.url} does not contain an id", object=IDENTITY)
        return text

    def identified(self) -> str:
        """The store's identity, created if it has none."""
        for _ in range(3):
            if (found := self.identity()) is not None:
                return found
            # Two processes may remove each other's temporary files; only one identity is created.
            with contextlib.suppress(ObjectMissing):
                self.write_once(IDENTITY, f"{uuid.uuid4()}\n".encode())
        raise Failed(Code.S3_ACCESS_ERROR, f"{IDENTITY} was written to {self.address.url}, but is missing", object=IDENTITY)

    def remove(self, path: str) -> None:
        """Remove the object, if it exists. Only one try: callers may have no time left."""
        with contextlib.suppress(ObjectMissing), self._translated(path):
            obstore.delete(self.store, path)

    def listed(self, prefix: str = "") -> Iterator[Sequence[str]]:
        """The paths of all objects (below `prefix`), in pages. Objects that exist during the whole listing are all included."""
        for page in self.sizes(prefix):
            yield [found.path for found in page]

    def sizes(self, prefix: str) -> Iterator[Sequence[StoredObject]]:
        """The same objects with their sizes."""

        def begin() -> tuple[Iterator[Any], Any]:
            pages = iter(obstore.list(self.store, prefix or None, chunk_size=LISTED_AT_ONCE))
            return pages, next(pages, None)

        # Later pages have one try: not every store lists in an order in which a listing could be continued.
        pages, page = self._tried(prefix, begin)
        while page is not None:
            yield [_stored(found["path"], found) for found in page]
            with self._translated(prefix):
                page = next(pages, None)

    def objects(self, folders: Collection[str]) -> Iterator[Sequence[StoredObject]]:
        """The objects in ID/ID/ and in ID/FOLDER/ for these folders, in pages. Others may be included in a bucket.

        In a directory, a folder ID/ID is included as `ID/ID/`, because it can be empty. An object in ID/FOLDER/ that a killed
        writer did not finish is included, too: garbage collection must find it.
        """
        directory = self.address.directory
        if directory is None:
            yield from self.sizes("")
            return
        for above in self._folders_in(directory, ()):
            yield self._objects_in(above, folders)

    def _objects_in(self, above: Path, folders: Collection[str]) -> list[StoredObject]:
        found: list[StoredObject] = []
        with contextlib.suppress(ObjectMissing), self._translated(above.name):
            for folder in self._folders_in(above, folders):
                where = f"{above.name}/{folder.name}"
                found += [] if folder.name in folders else [StoredObject(f"{where}/", 0)]
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:  # it was just removed
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            size = entry.stat(follow_symlinks=False).st_size
                            part = UNFINISHED.fullmatch(entry.name) if folder.name in folders else None
                            name = part[1] if part else entry.name
                            found.append(StoredObject(f"{where}/{name}", size, is_whole=part is None))
        return found

    def _folders_in(self, place: Path, others: Collection[str]) -> list[Path]:
        with self._translated(place.name), os.scandir(place) as entries:
            named = [entry for entry in entries if is_id(entry.name) or entry.name in others]
            return [place / entry.name for entry in named if entry.is_dir(follow_symlinks=False)]

    def remove_one(self, path: str) -> None:
        """Remove the object, and the folders that are empty then. An error if it still exists."""
        self.remove(path)
        if self.head(path) is not None:
            raise Failed(Code.S3_ACCESS_ERROR, f"{path} was removed, but still exists", object=path)
        self.remove_unfinished(path)

    def remove_unfinished(self, path: str) -> None:
        """Remove what a killed writer of this object left behind, and the folders that are empty then."""
        directory = self.address.directory
        if directory is None:
            return
        self._remove_remains(path)
        place = directory / path
        with contextlib.suppress(OSError):
            while (place := place.parent) != directory:
                place.rmdir()

    def remove_all(self, prefix: str, *, first: str) -> None:
        """Remove all objects below this path, beginning with the object `first`."""
        self.remove(f"{prefix}/{first}")
        for path in self._below(prefix):
            self.remove(path)
        left = self._below(prefix)
        if left:
            raise Failed(Code.S3_ACCESS_ERROR, f"{left[0]} was removed, but still exists", object=left[0])
        self._remove_folders(prefix)

    def _below(self, prefix: str) -> Sequence[str]:
        # Checked again: a store that lists other paths too must not cause the loss of an archive.
        return [path for page in self.listed(prefix) for path in page if path.startswith(f"{prefix}/")]

    def answers(self) -> None:
        """Raise if the store does not answer."""
        directory = self.address.directory
        store = self.store
        if directory is not None:
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise Failed(Code.S3_ACCESS_ERROR, f"the archive directory {str(directory)!r} is not readable and writable")
            return
        with self._translated(""):
            next(iter(obstore.list(store, chunk_size=1)), None)

    # ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tried(self, path: str, action: Callable[[], Answer]) -> Answer:
        for pause_s in self.pauses_s:
            try:
                with self._translated(path):
                    return action()
            except TransientFailure:
                time.sleep(pause_s)
        with self._translated(path):
            return action()

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissing(f"{path} does not exist", object=path) from error
        except (BaseError, OSError) as error:
            message = f"the archive store failed at {path or self.address.url}: {_first_line(error)}"
            code, may_pass = _meaning(error)
            raise (TransientFailure if may_pass else Failed)(
                code, message, object=path, endpoint=self.address.url, status_code=_status_code(error)
            ) from error

    # ── a directory as a store ────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, path: str) -> None:
        """Sync a written object to disk: LocalStore renames it into place without a sync."""
        directory = self.address.directory
        if directory is None or not (directory / path).exists():
            return
        owner = directory.stat()
        # Files that root writes from inside a container must stay readable for the owner of the store.
        gives = os.geteuid() == 0 and owner.st_uid != 0
        place = directory / path
        while True:
            fd = os.open(place, os.O_RDONLY)
            try:
                if gives:
                    os.fchown(fd, owner.st_uid, owner.st_gid)
                os.fsync(fd)
            finally:
                os.close(fd)
            if place == directory:
                return
            place = place.parent

    def _remove_folders(self, path: str) -> None:
        """Remove empty folders up to the store's directory. Only directory stores have folders."""
        directory = self.address.directory
        if directory is None:
            return
        place = directory / path
        with contextlib.suppress(ObjectMissing), self._translated(path):
            for remains in place.glob("*#*"):
                remains.unlink(missing_ok=True)
            place.rmdir()
        with contextlib.suppress(OSError):
            while (place := place.parent) != directory:
                place.rmdir()

    def _remove_remains(self, path: str) -> None:
        """LocalStore writes to `NAME#1` and renames. Remove such a file of a killed writer."""
        directory = self.address.directory
        if directory is not None:
            place = directory / path
            for remains in place.parent.glob(place.name + "#*"):
                remains.unlink(missing_ok=True)


def remove_unfinished(address: StoreAddress, folder: str, prefix: str = "") -> None:
    """Remove what killed writers left in a folder of a directory store, in files whose names begin with `prefix`.

    A listing does not show them. A store on a network has none: a pack is written with one request.
    """
    if address.directory is not None:
        for remains in (address.directory / folder).glob(f"{prefix}*#*"):
            with contextlib.suppress(OSError):
                remains.unlink()


def _stored(path: str, found: Mapping[str, Any]) -> StoredObject:
    # Some servers give fractions of a second in a listing, and none otherwise.
    changed = found["last_modified"].replace(microsecond=0)
    return StoredObject(path, found["size"], f"{found['e_tag'] or ''} {changed.isoformat()}")


def _endpoint(options: Mapping[str, str]) -> str:
    """The address of the server, if the options or the environment name one."""
    given = (options.get(name) or os.environ.get(name.upper()) for name in ENDPOINT_OPTIONS)
    return next(filter(None, given), options.get("endpoint") or options.get("endpoint_url") or "")


def _option(name: str) -> str:
    """Options may have the names of environment variables. obstore panics at AWS_ALLOW_HTTP, so it becomes `allow_http`."""
    name = name.lower()
    bare = re.sub(r"^(aws|google|azure)_", "", name)
    return bare if bare in CONNECTION_OPTIONS else name


def new_digest() -> Digest:
    return hashlib.sha256()


def _meaning(error: BaseError | OSError) -> tuple[Code, bool]:
    told = re.search(r"\(os error (\d+)\)", _first_line(error))
    number = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
    if number in OS_ERROR_MEANS:
        return OS_ERROR_MEANS[number]
    if isinstance(error, OSError):
        return ERROR_MEANS[BaseError]
    return next(ERROR_MEANS[kind] for kind in type(error).__mro__ if kind in ERROR_MEANS)


def _status_code(error: BaseException) -> int | None:
    """The HTTP status of the store's answer; None if there is none."""
    told = re.search(r"status(?: code)?:? (\d{3})\b", _first_line(error))
    if told:
        return int(told[1])
    return next((status for kind, status in STATUS_OF.items() if isinstance(error, kind)), None)


def _first_line(error: BaseException) -> str:
    """Without obstore's "Debug source", which has many lines of internals."""
    return str(error).split("\n", 1)[0].strip()
