"""What may a test of the archives ask for?"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.archives.world import World, roomy


@pytest.fixture
def world() -> Iterator[World]:
    with TemporaryDirectory(dir=roomy(), prefix="torpor-test-") as directory:
        yield World(Path(directory, "world"))
