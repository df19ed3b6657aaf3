"""Fixtures shared by the tests of the proxy."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.proxy.open_gate import HASTY, Stage, staged


@pytest.fixture
async def stage(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


@pytest.fixture
async def hasty(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Stage]:
    async with staged(tmp_path, patience=HASTY) as made:
        yield made
