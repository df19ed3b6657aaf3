"""Fixtures of the kit's tests: one kit, built once by each test process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import open_folder
from torpor.kit.kit_folder import ensure_kit
from torpor.kit.manifest import Kit


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    with open_folder.open_folder() as path:
        yield path


@pytest.fixture(scope="session")
def kit_data() -> Iterator[Path]:
    """A data directory with a kit. Tests must not change it."""
    with open_folder.open_folder() as data:
        ensure_kit(data, os.environ, lambda done, total: None)
        yield data


@pytest.fixture(scope="session")
def kit(kit_data: Path) -> Kit:
    """The same kit, found and checked instead of built."""
    return ensure_kit(kit_data, os.environ, _must_not_build)


def _must_not_build(done: int, total: int) -> None:
    raise AssertionError("the kit was built again")
