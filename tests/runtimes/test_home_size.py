"""The size of a home is its disk space, not the sum of its files' sizes."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, a_home, marker_of
from tests.support.small_disk import small_disk
from torpor.runtimes.process import ProcessRuntime
from torpor.runtimes.process.home_size import measure
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def make(home: Path) -> None:
    (home / "deep" / "er").mkdir(parents=True)
    (home / "deep" / "er" / "file").write_bytes(os.urandom(2 * MIB))
    (home / "again").hardlink_to(home / "deep" / "er" / "file")
    (home / "elsewhere").symlink_to("/usr")
    with (home / "sparse").open("wb") as file:
        file.truncate(1 << 34)


async def test_holes_do_not_count_and_hard_links_count_once(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    await asyncio.to_thread(make, home)
    found = await measure(home)
    assert found is not None
    assert 2 * MIB <= found < 3 * MIB


async def test_a_missing_home_has_no_size(tmp_path: Path) -> None:
    assert await measure(tmp_path / "nothing") is None


async def test_homes_may_be_on_a_separate_disk(tmp_path: Path) -> None:
    """With a link, as docs/how-to/disk.md describes."""
    with small_disk(tmp_path / "disk", "16m") as disk:
        data = tmp_path / "data"
        for made in (data, disk / "volumes"):
            await asyncio.to_thread(made.mkdir)
        await asyncio.to_thread((data / "volumes").symlink_to, disk / "volumes")
        options = process_options(bubblewrap=False, own_network=False, cgroups=False, disk_reserve_bytes=MIB)
        runtime = ProcessRuntime(data, options=options)
        await runtime.start()
        try:
            home = a_home()
            await runtime.ensure_volume(home, FENCE)
            await runtime.mark_volume(home, marker_of(home), FENCE)
            assert home.workspace_id in (await runtime.observe()).seen
            found = await runtime.disk()
            assert found is not None
            assert found.free_bytes < 16 * MIB
            assert not runtime.paths.ballast.exists(), "the database is not on this disk"
            await runtime.ensure_no_volume(home, FENCE, archived_revision=None)
        finally:
            await runtime.close()
