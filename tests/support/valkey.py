"""Wait for a listener of the bus, and kill and restart its server."""

import os
import signal

from tests.support.waiting import until
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus

AT_ONCE_S = 4.0
"""A refused connection fails at once: shorter than any timeout of the bus, and enough for a busy machine."""


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
