"""Run archive jobs of format 2 that are killed or stopped at a chosen step, and look at what they leave in the store."""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fault_server import Ended, FaultServer, fault_server
from torpor.archives.archives import HomeArchives
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.pack_check import prove_pack
from torpor.archives.packs.root import Root, fetch_root
from torpor.archives.store import IDENTITY, ArchiveStore, StoreAddress
from torpor.domain.records import ArchiveKey, ProvenArchive
from torpor.ports import ArchiveBase, Home, HomeJob

GENERATION = 3
REVISION = 7


def result_of(ended: Ended) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ended.required().output.splitlines()[-1])["result"]
    return found


def error_of(ended: Ended) -> dict[str, Any]:
    assert ended.code == 1, (ended.code, ended.output, ended.errors)
    found: dict[str, Any] = json.loads(ended.output.splitlines()[-1])["error"]
    return found


def base_of(proven: ProvenArchive | None) -> ArchiveBase | None:
    """As the controller knows an archive that was proven not long ago."""
    if proven is None:
        return None
    trusted = {pack.name: pack.store_version for pack in proven.packs}
    return ArchiveBase(proven.archive.key, proven.archive.manifest_root, trusted, frozenset())


@dataclass(slots=True)
class FaultyJobs:
    """A store in a directory, homes of one workspace, and jobs."""

    path: Path
    server: FaultServer
    workspace_id: str
    archives: HomeArchives = field(init=False)
    place: ArchiveStore = field(init=False)
    _homes: int = 0

    def __post_init__(self) -> None:
        self.store.mkdir(mode=0o700, exist_ok=True)
        self.archives = HomeArchives(f"file://{self.store}")
        self.place = ArchiveStore(StoreAddress.parse(f"file://{self.store}"))

    @property
    def store(self) -> Path:
        return self.path / "store"

    def new_home(self) -> Path:
        """In a volume of its own: the stat cache is beside it."""
        self._homes += 1
        home = self.path / f"volume-{self._homes}" / "home"
        home.mkdir(parents=True)
        return home

    def new_key(self) -> ArchiveKey:
        return ArchiveKey(self.workspace_id, str(uuid.uuid4()))

    def archive(
        self, home: Path, key: ArchiveKey, base: ProvenArchive | None, at: int = 0, number: signal.Signals = signal.SIGKILL
    ) -> Ended:
        return self.archive_with(home, key, base_of(base), at, number)

    def archive_with(
        self, home: Path, key: ArchiveKey, base: ArchiveBase | None, at: int = 0, number: signal.Signals = signal.SIGKILL
    ) -> Ended:
        job = self.archives.pack_job(key, Home(self.workspace_id, GENERATION), REVISION, format=2, base=base)
        return self._run(job, home, at, number)

    def archived(self, home: Path, key: ArchiveKey | None = None, base: ProvenArchive | None = None) -> ProvenArchive:
        key = key or self.new_key()
        return self.proven(key, self.archive(home, key, base))

    def proven(self, key: ArchiveKey, ended: Ended) -> ProvenArchive:
        return self.archives.proven(key, Home(self.workspace_id, GENERATION), REVISION, result_of(ended))

    def restore(self, archive: ProvenArchive, home: Path, at: int = 0, number: signal.Signals = signal.SIGKILL) -> Ended:
        return self._run(self.archives.unpack_job(archive.archive.key, archive.archive.manifest_root), home, at, number)

    def restored(self, archive: ProvenArchive, home: Path | None = None) -> Path:
        home = home or self.new_home()
        assert result_of(self.restore(archive, home))["manifest_root"] == archive.archive.manifest_root
        return home

    def require_whole(self, key: ArchiveKey) -> Root:
        """The archive has a root, and the hash of each of its packs is that of its name."""
        root = fetch_root(self.place, key)
        assert root is not None
        for name, size in root.packs.items():
            prove_pack(self.place, self.workspace_id, name, size)
        return root

    def has_root(self, key: ArchiveKey) -> bool:
        return (self.store / root_path(key)).exists()

    def objects(self) -> set[str]:
        """All files in the store but its identity."""
        found = {str(path.relative_to(self.store)) for path in self.store.rglob("*") if path.is_file()}
        return found - {IDENTITY}

    def objects_of(self, *keys: ArchiveKey) -> set[str]:
        """What these archives need."""
        roots = [self.require_whole(key) for key in keys]
        packs = {pack_path(self.workspace_id, name) for root in roots for name in root.packs}
        return packs | {root_path(key) for key in keys}

    def _run(self, job: HomeJob, home: Path, at: int, number: signal.Signals) -> Ended:
        return self.server.run("tests.support.fault_targets:job", str(home), stdin=job.stdin, at=at, number=number)


@contextmanager
def faulty_jobs(path: Path, workspace_id: str) -> Iterator[FaultyJobs]:
    with fault_server("tests.support.fault_targets") as server:
        yield FaultyJobs(path, server, workspace_id)


def fill(home: Path) -> None:
    """A dozen entries: small files, one with two blocks, links, attributes."""
    for number in range(4):
        (home / f"small-{number}").write_bytes(b"%d" % number * 1000)
    (home / "folder" / "deeper").mkdir(parents=True)
    (home / "folder" / "deeper" / "note").write_bytes(b"a note")
    (home / "folder" / "empty").write_bytes(b"")
    (home / "large").write_bytes(os.urandom(1 << 20) * 5)
    (home / "link").symlink_to("folder/deeper/note")
    (home / "twin").hardlink_to(home / "small-0")
    os.setxattr(home / "small-1", "user.k", b"v")
    (home / "script").write_bytes(b"#!/bin/sh\n")
    (home / "script").chmod(0o755)


def change(home: Path, number: int = 0) -> None:
    (home / "small-2").write_bytes(b"changed %d" % number)
    (home / "folder" / "new").write_bytes(b"new %d" % number * 500)
    with (home / "large").open("r+b") as large:
        large.seek(9 << 19)
        large.write(os.urandom(1000))
