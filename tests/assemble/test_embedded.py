"""Test that a private server is restarted when it ends, but not in a busy loop."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.valkey import pid_of
from tests.support.waiting import until
from torpor.assemble import embedded
from torpor.assemble.embedded import ServerSupervisor
from torpor.bus import embedded as valkey_module
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus

pytestmark = pytest.mark.anyio


class ShortLived:
    """A server that ends right after its start."""

    def __init__(self) -> None:
        self.pid: int | None = 1
        self.starts = 0

    async def start(self) -> str:
        self.starts += 1
        self.pid = 1
        return ""

    async def stop(self) -> None:
        self.pid = None

    async def wait(self) -> int:
        return 1


async def test_an_ended_server_is_started_again_even_after_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "RETRY_S", 0.01)
    async with EmbeddedValkey(tmp_path / "bus") as server:
        bus = await Bus.open(server.url)
        keeping = asyncio.create_task(ServerSupervisor("valkey", server).run())
        first = pid_of(server)
        with capture_logs() as logs:

            def happened(event: str) -> bool:
                return any(entry["event"] == event for entry in logs)

            with monkeypatch.context() as patch:
                patch.setattr(valkey_module, "binaries", list)
                os.kill(first, signal.SIGKILL)
                await until(lambda: happened("server_did_not_start"))
                assert happened("server_ended")
                assert not await bus.reachable()
            await until(bus.reachable)
        assert pid_of(server) != first
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await bus.close()


async def test_a_server_that_ends_at_once_is_restarted_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ShortLived()
    keeping = asyncio.create_task(ServerSupervisor("short-lived", server).run())
    await until(lambda: server.starts == 1)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert server.starts == 1
    monkeypatch.setattr(embedded, "RETRY_S", 0.0)
    await until(lambda: server.starts > 1)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
