"""Fixtures of the archive tests."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.archives.s3 import S3
from tests.support import open_folder
from tests.support.archive_jobs import ArchiveWorld, roomy


@pytest.fixture
def world() -> Iterator[ArchiveWorld]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        yield ArchiveWorld(Path(directory, "world"))


@pytest.fixture
def reachable_for_all(world: ArchiveWorld) -> ArchiveWorld:
    open_folder.reachable_for_all(world.path)
    if os.geteuid() == 0:
        os.chown(world.store, 65534, 65534)
    return world


@pytest.fixture
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server
