"""Fixtures of the tests of format 2."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.archives.packs.stage import PackStage
from tests.support.archive_jobs import roomy
from torpor.archives.packs import stat_cache


@pytest.fixture(scope="package", autouse=True)
def cache_in_memory() -> Iterator[None]:
    """The stat cache is used in memory, too: there every change sets the ctime, and inode numbers do not repeat."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stat_cache, "FILE_SYSTEMS", stat_cache.FILE_SYSTEMS | {"tmpfs"})
        yield


@pytest.fixture
def stage() -> Iterator[PackStage]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        yield PackStage(Path(directory))
