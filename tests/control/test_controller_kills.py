"""A controller that is killed at every step of archiving and restoring, with real homes, archives and a real database."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.archive_jobs import roomy
from tests.support.fault_server import Ended, FaultServer, fault_server
from tests.support.gc_stage import GcStage, gc_stage
from tests.support.pack_stage import PackStage
from tests.support.stored_packs import StoredPacks
from torpor.archives.archives import HomeArchives
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.store import IDENTITY
from torpor.archives.tree import tree_root
from torpor.domain.records import ArchiveKey
from torpor.domain.states import Phase, Wish

pytestmark = [pytest.mark.anyio, pytest.mark.long]

MOST_STEPS = 500


@dataclass
class KilledControllers:
    server: FaultServer
    gc: GcStage
    folder: Path
    database_url: str

    @property
    def store(self) -> str:
        return f"file://{self.folder / 'store'}"

    def run(self, phase: Phase, at: int = 0) -> Ended:
        arguments = (self.database_url, self.store, str(self.folder / "data"), phase.value)
        return self.server.run("tests.support.fault_targets:control", *arguments, at=at, waits=True)

    async def wish(self, wish: Wish, at: int = 0) -> bool:
        """Request a state and reach it. True: the first controller was killed, and the next one continued."""
        await self.gc.wishes.wish(self.gc.user, "demo", wish)
        phase = Phase(wish.value)
        ended = self.run(phase, at)
        if ended.is_killed:
            self.run(phase).required()
            return True
        ended.required()
        return False

    @property
    def volumes(self) -> list[Path]:
        return [path for path in (self.folder / "data" / "volumes").iterdir() if path.name.startswith("ws-")]

    @property
    def home(self) -> Path:
        (volume,) = self.volumes
        return volume / "home"

    async def row(self) -> Any:
        return await self.gc.owner.fetchrow("SELECT * FROM workspaces")

    async def require_archived(self) -> str:
        """The archive of the row is whole, and no volume is left. Returns its root."""
        row = await self.row()
        assert row["error_info"] is None
        assert self.volumes == []
        root = await self.gc.archives.manifest_root(ArchiveKey.parse(row["archive_key"]))
        assert root == row["archive_root"]
        return root

    async def require_only_kept_archives(self) -> None:
        """After some collections, the store has what the kept archives need, and nothing else."""
        store = self.folder / "store"
        stage = PackStage(self.gc, StoredPacks(store))
        for _ in range(4):
            report = await self.gc.collect()
            await stage.grace_passes()
        assert report["unknown"] == report["packs"]["unknown"] == []
        needed = set()
        for row in await self.gc.owner.fetch("SELECT key, workspace_id FROM archives"):
            key = ArchiveKey.parse(row["key"])
            packs = (await self.gc.archives.root_packs(key)).packs
            needed |= {root_path(key), *(pack_path(key.workspace_id, name) for name in packs)}
        found = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
        assert found - {IDENTITY} == needed


@pytest.fixture
async def killed(database_url: str) -> AsyncIterator[KilledControllers]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        folder = Path(directory)
        (folder / "store").mkdir()
        async with gc_stage(database_url, HomeArchives(f"file://{folder / 'store'}")) as gc:
            with fault_server("tests.support.fault_targets") as server:
                await gc.wishes.create(gc.user, name="demo", desired_state=Wish.STANDBY)
                made = KilledControllers(server, gc, folder, database_url)
                made.run(Phase.STANDBY).required()
                change_home(made.home, 0)
                yield made


def change_home(home: Path, number: int) -> None:
    """Few files, because the removal of each is a step."""
    owner = home.stat()
    for name in ("note", "other"):
        (home / name).write_bytes(b"%d" % number * 1000)
        os.chown(home / name, owner.st_uid, owner.st_gid)


async def test_a_controller_is_killed_at_every_step(killed: KilledControllers) -> None:
    for at in range(1, MOST_STEPS):
        change_home(killed.home, at)
        tree = tree_root(killed.home)
        archiving = await killed.wish(Wish.ARCHIVED, at)
        await killed.require_archived()
        restoring = await killed.wish(Wish.STANDBY, at)
        assert tree_root(killed.home) == tree
        if not (archiving or restoring):
            break
    else:
        pytest.fail("there is always another step")
    assert at > 12
    await killed.wish(Wish.ARCHIVED)
    await killed.require_only_kept_archives()
