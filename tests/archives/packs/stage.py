"""Archive and restore homes with format 2, in this process and with a store in a directory."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.archive_jobs import Meter
from torpor.archives.packs.crew import Crew, InlineCrew
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.restore import find_root, restore
from torpor.archives.packs.restore import handlers_of as restore_handlers
from torpor.archives.packs.root import Root
from torpor.archives.packs.write import ArchiveRequest, BaseRequest, WrittenArchive, handlers_of, write
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey

WORKSPACE = "0d1f8a3c-0000-4000-8000-000000000001"


@contextmanager
def opened(home: Path) -> Iterator[int]:
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def base_of(written: WrittenArchive, *, unusable: frozenset[str] = frozenset(), is_trusted: bool = True) -> BaseRequest:
    """As the controller knows an archive that was proven not long ago."""
    trusted = {pack.name: pack.store_version for pack in written.packs} if is_trusted else {}
    return BaseRequest(written.root.key, written.root.manifest_root, trusted, unusable)


def many_files(home: Path) -> Path:
    """Enough for several sections."""
    for folder in range(6):
        (home / f"d{folder}").mkdir()
        for number in range(1000):
            (home / f"d{folder}" / f"f{number:04}").write_text(f"{folder} {number}")
    return home


def rot(path: Path, position: int) -> None:
    """Change one bit of an object; its size, time and version stay the same."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@dataclass(slots=True)
class PackStage:
    path: Path
    workspace_id: str = WORKSPACE
    place: ArchiveStore = field(init=False)
    _homes: int = 0

    def __post_init__(self) -> None:
        self.store.mkdir(parents=True, exist_ok=True)
        self.place = ArchiveStore(StoreAddress.parse(f"file://{self.store}"))

    @property
    def store(self) -> Path:
        return self.path / "store"

    def home(self) -> Path:
        """A new home, in a volume of its own: the stat cache is beside it."""
        self._homes += 1
        home = self.path / f"volume-{self._homes}" / "home"
        home.mkdir(parents=True)
        return home

    def key(self) -> ArchiveKey:
        return ArchiveKey(self.workspace_id, str(uuid.uuid4()))

    def archive(
        self,
        home: Path,
        base: BaseRequest | None = None,
        *,
        key: ArchiveKey | None = None,
        hook: Callable[[int], None] = lambda _count: None,
    ) -> WrittenArchive:
        request = ArchiveRequest(key or self.key(), generation=3, revision=7, base=base)
        with opened(home) as fd:
            crew: Crew = InlineCrew(handlers_of(lambda: self.place, request.key, fd))
            try:
                return write(self.place, request, home, fd, crew, Meter(hook))
            finally:
                crew.close()

    def restore(self, archive: Root, home: Path | None = None, *, hook: Callable[[int], None] = lambda _count: None) -> Path:
        """Restore it as the controller does, which knows the manifest root; by default into a new home."""
        home = home or self.home()
        root = find_root(self.place, archive.key, archive.manifest_root)
        if root is None:
            raise Failed(Code.ARCHIVE_NOT_FOUND, "there is no root")
        mask = os.umask(0o077)
        try:
            with opened(home) as fd:
                crew = InlineCrew(restore_handlers(lambda: self.place, root.key, fd))
                try:
                    restore(self.place, root, home, fd, crew, Meter(hook))
                finally:
                    crew.close()
        finally:
            os.umask(mask)
        return home

    def pack(self, name: str) -> Path:
        return self.store / pack_path(self.workspace_id, name)

    def root(self, key: ArchiveKey) -> Path:
        return self.store / root_path(key)
