"""A restore that fills the disk frees the space before it reports, so that the next attempt can be recorded."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.archive_jobs import HOME, KEY
from tests.support.archive_jobs import ArchiveWorld as Store
from tests.support.builders import workspace
from tests.support.small_disk import small_disk
from torpor.control.effect_executor import EffectExecutor
from torpor.domain.effects import Restore
from torpor.domain.errors import Code
from torpor.domain.records import NOTHING_SEEN, Archive, EffectDone, EffectFailed
from torpor.ports import Fence, Home, Limits, Program
from torpor.runtimes.process import ProcessRuntime
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio

DISK_MB, HOME_MB = 8, 12
ROW = workspace(id=HOME.workspace_id)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", f"{DISK_MB}m") as path:
        yield path


@pytest.fixture
async def runtime(disk: Path) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(disk / "data", options=process_options(bubblewrap=False, own_network=False, cgroups=False))
    await runtime.start()
    yield runtime
    await runtime.close()


def archived(store: Store) -> Archive:
    home = store.home()
    for number in range(HOME_MB):
        (home / f"file-{number}").write_bytes(os.urandom(1 << 20))
    root = store.pack(home).result["manifest_root"]
    return Archive(KEY, HOME.generation, 7, str(root))


async def test_a_restore_that_fills_the_disk_frees_its_space(tmp_path: Path, disk: Path, runtime: ProcessRuntime) -> None:
    store = Store(tmp_path / "elsewhere")
    archive = archived(store)
    hands = EffectExecutor(runtime, store.archives, lambda _: Program("t", ("true",)), Limits(512 << 20, 128))
    free = shutil.disk_usage(disk).free

    report = await hands.carry_out(ROW, Restore(2, archive, frozenset()), Fence("op", 1), lambda *_: None)
    assert isinstance(report, EffectFailed), report
    assert report.context["code"] == Code.DISK_FULL
    assert (await runtime.observe()).of(ROW.id) == NOTHING_SEEN
    assert free - shutil.disk_usage(disk).free < 1 << 20, "the data of the restore is still on the disk"
    (disk / "database").write_bytes(bytes(4 << 20))

    larger = ["mount", "-o", f"remount,size={4 * HOME_MB}m", str(disk)]
    await asyncio.to_thread(subprocess.run, larger, check=True)
    report = await hands.carry_out(ROW, Restore(3, archive, frozenset()), Fence("op", 1), lambda *_: None)
    assert report == EffectDone()
    restored = runtime.paths.volume(Home(ROW.id, 3)) / "home"
    assert len(list(restored.iterdir())) == HOME_MB


async def test_a_cancelled_restore_frees_its_space(tmp_path: Path, disk: Path, runtime: ProcessRuntime) -> None:
    """As if the database on the same disk cannot write: the controller ends, and its effects with it."""
    store = Store(tmp_path / "elsewhere")
    archive = archived(store)
    hands = EffectExecutor(runtime, store.archives, lambda _: Program("t", ("true",)), Limits(512 << 20, 128))
    free = shutil.disk_usage(disk).free
    begun = asyncio.Event()

    restore = hands.carry_out(ROW, Restore(2, archive, frozenset()), Fence("op", 1), lambda *_: begun.set())
    restoring = asyncio.ensure_future(restore)
    await begun.wait()
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert (await runtime.observe()).of(ROW.id) == NOTHING_SEEN
    assert free - shutil.disk_usage(disk).free < 1 << 20, "the data of the restore is still on the disk"
