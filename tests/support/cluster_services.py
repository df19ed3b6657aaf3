"""Run PostgreSQL and Valkey for the pods of a test cluster, at an address that they reach.

    python -m tests.support.cluster_services ADDRESS FOLDER

Run it in the network of the cluster. Its file `services.json` has the URLs as soon as both are ready. SIGTERM ends it.
"""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.relay import Relay
from torpor.atomic_file import write
from torpor.bus.embedded import EmbeddedValkey
from torpor.store.embedded import SOCKET_NAME, EmbeddedPostgres

SERVICES = "services.json"


async def serve(address: str, folder: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres", durable=False))
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        database, bus = Relay(postgres.socket / SOCKET_NAME), Relay(valkey.socket)
        for relay in (database, bus):
            await stack.enter_async_context(relay.running(address))
        login = urlsplit(postgres.dsn).netloc.rpartition("@")[0]
        urls = {
            "TORPOR_DATABASE_URL": f"postgresql://{login}@{address}:{database.port}/torpor",
            "TORPOR_REDIS_URL": f"redis://{address}:{bus.port}/0",
        }
        write(folder / SERVICES, json.dumps(urls).encode(), mode=0o600)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
