"""Garbage collections that are killed or stopped at every step, with real archives, a real store and a real database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP, Signals
from tempfile import TemporaryDirectory

import asyncpg
import pytest

from tests.support.archive_jobs import roomy
from tests.support.fault_server import Ended
from tests.support.faulty_jobs import FaultyJobs, faulty_jobs
from tests.support.gc_stage import ARCHIVING, gc_stage
from tests.support.pack_stage import PackStage
from tests.support.stored_packs import StoredPacks
from torpor.archives.archives import HomeArchives
from torpor.archives.tree import tree_root
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey, ProvenArchive
from torpor.store.archive_bases import ArchiveBases
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

MOST_STEPS = 500
AT_REST = {"operation": "'NONE'", "stage": "'REST'", "deadline_at": "NULL"}
CONTENTS = 4
"""A home has the content of the archive that so many archives before was made: the last of its packs are being removed."""


@dataclass
class Pipeline:
    """A workspace that is archived again and again: each collection marks and removes an archive and packs."""

    jobs: FaultyJobs
    stage: PackStage
    bases: ArchiveBases
    database_url: str
    home: Path
    archives: list[ProvenArchive] = field(default_factory=list)

    @property
    def last(self) -> ProvenArchive | None:
        return self.archives[-1] if self.archives else None

    def change_home(self) -> None:
        number = len(self.archives)
        (self.home / "old").write_bytes(b"content %d" % (number % CONTENTS) * 2000)
        (self.home / "new").write_bytes(b"change %d" % number)

    async def begin(self) -> ArchiveKey:
        key = self.jobs.new_key()
        await self.stage.gc.change(self.jobs.workspace_id, **{**ARCHIVING, "op_id": f"'{key.op_id}'"})
        await self.stage.gc.operation(str(key), outcome=None)
        return key

    async def end(self, key: ArchiveKey, outcome: str) -> None:
        await self.stage.gc.owner.execute(
            "UPDATE operations SET ended_at = now(), outcome = $2 WHERE op_id = $1::text::uuid", key.op_id, outcome
        )
        await self.stage.gc.change(self.jobs.workspace_id, **AT_REST)

    async def job(self, key: ArchiveKey, at: int = 0, number: Signals = SIGKILL) -> Ended:
        """With the base that the database knows."""
        base = await self.bases.base(self.last.archive) if self.last else None
        return self.jobs.archive_with(self.home, key, base, at, number)

    async def record(self, key: ArchiveKey, ended: Ended) -> None:
        """As the controller does after a job; the database refuses an archive that names a pack that is removed."""
        proven = self.jobs.proven(key, ended)
        await self.bases.refuse_unusable(proven)
        async with self.stage.gc.owner.transaction():
            await self.stage.record(proven, hours=0)
            await self.stage.gc.point(self.jobs.workspace_id, str(key))
        await self.end(key, "DONE")
        self.archives.append(proven)

    async def archive(self) -> None:
        self.change_home()
        key = await self.begin()
        await self.record(key, await self.job(key))

    async def archive_or_refuse(self) -> None:
        """If it is refused, the next attempt makes the archive."""
        self.change_home()
        key = await self.begin()
        try:
            await self.record(key, await self.job(key))
        except (Failed, asyncpg.IntegrityConstraintViolationError) as error:
            if isinstance(error, Failed) and error.code is not Code.READBACK_MISMATCH:
                raise
            await self.end(key, "TURNED")
            await self.archive()

    async def leave_packs(self) -> None:
        """An operation whose job is killed before its root is written, and that is given up."""
        key = await self.begin()
        (self.home / "new").write_bytes(b"never archived %d" % len(self.archives))
        assert (await self.job(key, at=8)).is_killed
        await self.end(key, "TURNED")

    def collect(self, at: int = 0, number: Signals = SIGKILL) -> Ended:
        address = f"file://{self.jobs.store}"
        return self.jobs.server.run("tests.support.fault_targets:collect", self.database_url, address, at=at, number=number)

    async def require_intact(self) -> None:
        """Every archive that is not being removed has all its objects, and the last one is the home."""
        for key, (_, is_going) in (await self.stage.gc.rows()).items():
            if not is_going and key in {str(one.archive.key) for one in self.archives}:
                self.jobs.require_whole(ArchiveKey.parse(key))

    def require_restored(self) -> None:
        assert self.last is not None
        assert tree_root(self.jobs.restored(self.last)) == tree_root(self.home)

    async def require_nothing_else(self) -> None:
        """After some collections, the store has what the two kept archives need, and nothing else."""
        await self.archive()  # the last operation's packs are never left over
        for _ in range(4):
            self.collect().required()
            await self.stage.grace_passes()
        kept = [one.archive.key for one in self.archives[-2:]]
        assert set(await self.stage.gc.rows()) == {str(key) for key in kept}
        assert self.jobs.objects() == self.jobs.objects_of(*kept)
        self.require_restored()


@pytest.fixture
async def pipeline(database_url: str) -> AsyncIterator[Pipeline]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        async with _pipeline(database_url, Path(directory)) as made:
            for _ in range(5):
                await made.archive()
                made.collect().required()
                await made.stage.grace_passes()
            yield made


@asynccontextmanager
async def _pipeline(database_url: str, folder: Path) -> AsyncIterator[Pipeline]:
    (folder / "store").mkdir()
    database = await Database.open(database_url, Role.CONTROLLER)
    async with gc_stage(database_url, HomeArchives(f"file://{folder / 'store'}")) as gc:
        with faulty_jobs(folder, await gc.workspace("demo")) as jobs:
            home = jobs.new_home()
            (home / "fixed").write_bytes(b"in all archives" * 5000)
            bases = ArchiveBases(database, newest=2, proof_age_s=3600)
            yield Pipeline(jobs, PackStage(gc, StoredPacks(jobs.store)), bases, database_url, home)
    await database.close()


@pytest.mark.long
async def test_a_collection_is_killed_at_every_step(pipeline: Pipeline) -> None:
    for at in range(1, MOST_STEPS):
        if at % 3 == 0:
            await pipeline.leave_packs()
        await pipeline.archive()
        await pipeline.stage.grace_passes()
        ended = pipeline.collect(at)
        await pipeline.require_intact()
        if not ended.is_killed:
            ended.required()
            break
        pipeline.collect().required()
        await pipeline.require_intact()
    else:
        pytest.fail("there is always another step")
    assert at > 20
    await pipeline.require_nothing_else()


@pytest.mark.deep
async def test_an_archive_is_made_while_a_collection_is_stopped_at_any_step(pipeline: Pipeline) -> None:
    """The home has the content of packs that the collection removes."""
    for at in range(1, MOST_STEPS):
        await pipeline.stage.grace_passes()
        stopped = pipeline.collect(at, SIGSTOP)
        if not stopped.is_stopped:
            stopped.required()
            break
        await asyncio.wait_for(pipeline.archive_or_refuse(), 30)
        ended = pipeline.jobs.server.resume(stopped)
        assert ended.code == 0 or "the database cannot be reached" in ended.errors, ended
        await pipeline.require_intact()
        if at % 4 == 0:
            pipeline.require_restored()
    else:
        pytest.fail("there is always another step")
    assert at > 20
    await pipeline.require_nothing_else()


@pytest.mark.long
async def test_collections_run_while_an_archive_is_stopped_at_any_step(pipeline: Pipeline) -> None:
    for at in range(1, MOST_STEPS):
        pipeline.change_home()
        key = await pipeline.begin()
        stopped = await pipeline.job(key, at, SIGSTOP)
        if not stopped.is_stopped:
            await pipeline.record(key, stopped)
            break
        for _ in range(2):
            await pipeline.stage.grace_passes()
            pipeline.collect().required()
        await pipeline.record(key, pipeline.jobs.server.resume(stopped))
        await pipeline.require_intact()
        if at % 4 == 0:
            pipeline.require_restored()
        pipeline.collect().required()
    else:
        pytest.fail("there is always another step")
    assert at > 15
    await pipeline.require_nothing_else()
