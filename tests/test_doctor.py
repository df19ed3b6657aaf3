"""What `torpor doctor` says of the archive store, on a first start and when the store was lost."""

from pathlib import Path

import pytest

from torpor.doctor import Finding, archives_finding
from torpor.runtimes.process.places import places
from torpor.runtimes.process.volumes import Volumes
from torpor.settings import load

pytestmark = pytest.mark.anyio


async def finding(data: Path) -> Finding:
    return await archives_finding(load({"TORPOR_DATA": str(data)}))


async def test_before_the_first_start_there_is_no_archive_directory(tmp_path: Path) -> None:
    for data in (tmp_path / "data", tmp_path):
        found = await finding(data)
        assert found.ok
        assert "made" in found.detail


@pytest.mark.parametrize("trace", ["volumes.identity", "postgres"])
async def test_an_archive_directory_that_was_lost_is_reported(tmp_path: Path, trace: str) -> None:
    if trace == "postgres":
        (tmp_path / trace).mkdir()
    else:
        Volumes(places(tmp_path)).open_root()
    found = await finding(tmp_path)
    assert not found.ok
    assert found.blocks
    assert str(tmp_path / "archives") in found.detail
    assert "missing" in found.detail
    assert "restore" in found.advice


async def test_an_archive_directory_that_is_there_answers(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "archives").mkdir()
    assert (await finding(tmp_path)).ok
