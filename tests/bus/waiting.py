"""How do tests of the bus wait for what they expect, and kill what must be killed?"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus

PATIENCE_S = 20.0
AT_ONCE_S = 4.0
"""Refused, not waited for: less than any time limit of the bus, and enough for a busy machine."""


async def until(seen: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = seen()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


async def until_listened(bus: Bus, listeners: int = 1) -> None:
    async def are_there() -> bool:
        (clients,) = await bus.ask(("CLIENT LIST", "TYPE", "PUBSUB"))
        return [client["psub"] for client in clients] == ["1"] * listeners

    await until(are_there)


def pid_of(valkey: EmbeddedValkey) -> int:
    assert valkey.pid
    return valkey.pid


async def kill_and_start_again(valkey: EmbeddedValkey) -> None:
    os.kill(pid_of(valkey), signal.SIGKILL)
    assert await valkey.wait() == -signal.SIGKILL
    await valkey.stop()
    await valkey.start()
