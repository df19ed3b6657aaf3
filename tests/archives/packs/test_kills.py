"""Archive and restore jobs that are killed at every step: no home is lost, and garbage collection removes the rest."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.archive_jobs import roomy
from tests.support.faulty_jobs import FaultyJobs, change, faulty_jobs, fill
from tests.support.gc_stage import gc_stage
from tests.support.pack_stage import PackStage
from tests.support.stored_packs import StoredPacks
from torpor.archives.archives import HomeArchives
from torpor.archives.packs.stat_cache import cache_file
from torpor.archives.tree import tree_root
from torpor.domain.records import ProvenArchive

pytestmark = [pytest.mark.anyio, pytest.mark.long]

MOST_STEPS = 500


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        yield Path(directory)


def restored_and_changed(jobs: FaultyJobs) -> tuple[Path, ProvenArchive]:
    """A home that was restored from an archive, with changes since, and that archive."""
    first = jobs.new_home()
    fill(first)
    base = jobs.archived(first)
    home = jobs.restored(base)
    assert tree_root(home) == tree_root(first)
    change(home)
    (home / "small-3").unlink()
    return home, base


async def test_an_archive_job_is_killed_at_every_step(database_url: str, folder: Path) -> None:
    """Every second time the same operation continues; otherwise it is given up, and the next one archives a changed home."""
    (folder / "store").mkdir()
    async with gc_stage(database_url, HomeArchives(f"file://{folder / 'store'}")) as gc:
        with faulty_jobs(folder, await gc.workspace("demo")) as jobs:
            await archive_with_kills(jobs, PackStage(gc, StoredPacks(jobs.store)))


async def archive_with_kills(jobs: FaultyJobs, stage: PackStage) -> None:
    gc = stage.gc
    home, base = restored_and_changed(jobs)
    await stage.record(base, hours=1000)
    kept = [base]
    for at in range(1, MOST_STEPS):
        tree, key = tree_root(home), jobs.new_key()
        ended = jobs.archive(home, key, base, at)
        assert tree_root(home) == tree
        jobs.require_whole(base.archive.key)
        if not ended.is_killed:
            ended.required()
            break
        if jobs.has_root(key):
            jobs.require_whole(key)
        if at % 2:
            await gc.operation(str(key))
            change(home, at)
            tree, key = tree_root(home), jobs.new_key()
        proven = jobs.archived(home, key, base)
        assert tree_root(jobs.restored(proven)) == tree
        await gc.operation(str(key), outcome="DONE")
        await stage.record(proven, hours=500 - at)
        kept = [kept[-1], proven]
    else:
        pytest.fail("there is always another step")
    assert at > 10
    # The last job has ended, but its controller was killed before it recorded the archive.
    await gc.operation(str(key))
    await gc.point(jobs.workspace_id, str(proven.archive.key))
    for _ in range(4):
        report = await gc.collect()
        await stage.grace_passes()
    assert report["unknown"] == report["packs"]["unknown"] == []
    keys = [one.archive.key for one in kept]
    assert set(await gc.rows()) == {str(key) for key in keys}
    assert jobs.objects() == jobs.objects_of(*keys)
    assert tree_root(jobs.restored(proven)) == tree


def test_a_restore_job_is_killed_at_every_step(folder: Path) -> None:
    with faulty_jobs(folder, "0d1f8a3c-0000-4000-8000-000000000001") as jobs:
        home, base = restored_and_changed(jobs)
        archive = jobs.archived(home, base=base)
        tree, objects = tree_root(home), jobs.objects()
        for at in range(1, MOST_STEPS):
            again = jobs.new_home()
            ended = jobs.restore(archive, again, at)
            if not ended.is_killed:
                ended.required()
                break
            assert jobs.objects() == objects, "a restore only reads the store"
            jobs.restored(archive, again)
            assert tree_root(again) == tree
            assert cache_file(again).exists()
            if at % 4 == 0:
                assert jobs.archived(again, base=archive).archive.manifest_root == archive.archive.manifest_root
                objects = jobs.objects()
        else:
            pytest.fail("there is always another step")
        assert at > 30
