"""What runs in processes of a fault server (`fault_server`)."""

import asyncio
from pathlib import Path

from tests.support.control_plane import FAST, LIFE_S, QUICK, OnlyMember
from tests.support.fault_points import only_here
from tests.support.gc_stage import RETENTION, TERM
from tests.support.waiting import until
from torpor.archives import job as archive_job
from torpor.archives.archives import HomeArchives
from torpor.archives.packs import stat_cache
from torpor.control.controller import Controller
from torpor.control.effect_executor import EffectExecutor
from torpor.control.gc import GarbageCollector
from torpor.ports import CPU_WEIGHT, Limits
from torpor.runtimes.process import ProcessRuntime, cpu_weight
from torpor.store import database
from torpor.store.archive_bases import ArchiveBases
from torpor.store.controller_store import ControllerStore
from torpor.store.gc import GcStore
from torpor.store.pack_gc import PackGcStore
from torpor.templates.catalogue import shipped
from torpor.testing.defaults import process_options


def job(arguments: list[str]) -> int:
    """An archive job, with the stat cache also in memory (`tests/archives/packs/conftest.py`)."""
    stat_cache.FILE_SYSTEMS |= {"tmpfs"}
    return archive_job.main(arguments)


def collect(arguments: list[str]) -> int:
    """One garbage collection: the URLs of the database and of the archive store."""
    asyncio.run(_collect(*arguments))
    return 0


async def _collect(database_url: str, store_url: str) -> None:
    database.STOPPED_AFTER_S = 1
    connected = await database.Database.open(database_url, database.Role.CONTROLLER, connections=2)
    collector = GarbageCollector(
        GcStore(connected), PackGcStore(connected), HomeArchives(store_url), retention=RETENTION, every_s=3600
    )
    await collector.collect(TERM)


def control(arguments: list[str]) -> int:
    """A controller with the process runtime, until no operation is in progress: the URLs of the database and of the archive
    store, the data directory, and the phase that the only workspace reaches."""
    asyncio.run(_control(*arguments))
    return 0


async def _control(database_url: str, store_url: str, data: str, phase: str) -> None:
    # Archive jobs give way to all other processes: on a busy machine the loop over all steps would take hours.
    cpu_weight.NICE_OF_A_WORKSPACE, cpu_weight.ARCHIVE_WEIGHT = 0, CPU_WEIGHT
    connected = await database.Database.open(database_url, database.Role.CONTROLLER)
    runtime = ProcessRuntime(
        Path(data), options=process_options(grace_s=2.0, bubblewrap=False, own_network=False, cgroups=False)
    )
    await runtime.start()
    store = ControllerStore(connected, provider=runtime.name)
    life = OnlyMember(await store.join("test", await runtime.world(), expiry_s=LIFE_S, exclusive=True))
    executor = EffectExecutor(
        runtime,
        HomeArchives(store_url),
        shipped().program_of,
        Limits(memory_bytes=2**30, processes=100),
        bases=ArchiveBases(connected, newest=2, proof_age_s=3600),
    )
    controller = Controller(store, executor, life=life, tuning=FAST, intervals=QUICK, parallel=8)
    reached = "SELECT id FROM workspaces WHERE phase = $1 AND operation = 'NONE'"
    try:
        with only_here():
            running = asyncio.create_task(controller.run())
            await until(lambda: connected.fetchrow(reached, phase), within_s=50)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runtime.close()
        await connected.close()
