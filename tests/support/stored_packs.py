"""Write packs and roots of format 2 for tests, into a directory or a fake world."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.archives.entries import HomeFacts
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.root import PackUse, Root, SectionRef, StoredDocument
from torpor.archives.packs.sections import Frame
from torpor.archives.store import ArchiveStore
from torpor.domain.records import ArchiveKey
from torpor.ports import Home
from torpor.testing.fake_runtime import FakeWorld, put_root


def pack_name(key: ArchiveKey, content: bytes) -> str:
    return f"{key.op_id}-{hashlib.sha256(content).hexdigest()}"


def bare_root(key: ArchiveKey, home: Home, sizes: Mapping[str, int]) -> Root:
    """A root with these packs. Its sections cannot be read."""
    first = next(iter(sizes))
    document = StoredDocument(Frame(first, 0, 1, 1), bytes(32))
    return Root(
        key.workspace_id,
        key.op_id,
        home.generation,
        0,
        "root",
        HomeFacts(0, 0, 0),
        entries=1,
        files=0,
        home_bytes=0,
        uses={name: PackUse(size, size, size) for name, size in sizes.items()},
        sections=(SectionRef(1, document, document, {}),),
    )


@dataclass
class StoredPacks:
    """In a directory that is an archive store."""

    store: Path

    async def write(self, key: ArchiveKey, content: bytes) -> str:
        name = pack_name(key, content)
        await self.damage(key.workspace_id, name, content)
        return name

    async def finish(self, key: ArchiveKey, home: Home, names: tuple[str, ...]) -> None:
        sizes = {name: (self.store / pack_path(key.workspace_id, name)).stat().st_size for name in names}
        path = self.store / root_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bare_root(key, home, sizes).serialise())

    async def damage(self, workspace_id: str, name: str, content: bytes) -> None:
        path = self.store / pack_path(workspace_id, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@dataclass
class PacksInBucket:
    """In any archive store."""

    place: ArchiveStore

    async def write(self, key: ArchiveKey, content: bytes) -> str:
        name = pack_name(key, content)
        await self.damage(key.workspace_id, name, content)
        return name

    async def finish(self, key: ArchiveKey, home: Home, names: tuple[str, ...]) -> None:
        def finish() -> None:
            sizes = {name: self.place.size(pack_path(key.workspace_id, name)) or 0 for name in names}
            self.place.replace(root_path(key), bare_root(key, home, sizes).serialise())

        await asyncio.to_thread(finish)

    async def damage(self, workspace_id: str, name: str, content: bytes) -> None:
        await asyncio.to_thread(self.place.replace, pack_path(workspace_id, name), content)


@dataclass
class FakePacks:
    world: FakeWorld

    async def write(self, key: ArchiveKey, content: bytes) -> str:
        name = pack_name(key, content)
        self.world.packs[key.workspace_id, name] = content
        return name

    async def finish(self, key: ArchiveKey, home: Home, names: tuple[str, ...]) -> None:
        put_root(self.world, key, home, names)

    async def damage(self, workspace_id: str, name: str, content: bytes) -> None:
        self.world.packs[workspace_id, name] = content
