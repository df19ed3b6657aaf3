"""Fixtures for the tests of the bus."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus


@pytest.fixture
async def bus(redis_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.open(redis_url)
    yield bus
    await bus.close()


@pytest.fixture
async def own_valkey(tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    """A server that a test can kill and start again."""
    server = EmbeddedValkey(tmp_path / "bus")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def own_bus(own_valkey: EmbeddedValkey) -> AsyncIterator[Bus]:
    bus = await Bus.open(own_valkey.url)
    yield bus
    await bus.close()
