"""Measure the cost of an idle reconcile pass, and how fast many requests are carried out.

While idle: the time of one pass, its SQL statements, the rows it writes and the memory it keeps, over 1,000 to 100,000
workspaces on a fake runtime and a real PostgreSQL. No row may be written, and the statements may not depend on the number of
workspaces. Then 5,000 stopped workspaces are requested to run at once.

    python bench/control.py [--looks 20] [--wishes 5000] [--json]
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from torpor.accounts import AuthMethod, Caller
from torpor.control.controller import Controller
from torpor.control.effect_executor import EffectExecutor
from torpor.domain.access import EVERY_SCOPE
from torpor.domain.limits import RunningLimits
from torpor.domain.records import Marker
from torpor.domain.shards import ALL_SHARDS
from torpor.domain.states import Wish
from torpor.ports import Container, Home, Limits, Program
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.controller_store import MOST_AT_ONCE, ControllerStore
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.migrate import migrate
from torpor.store.service_store import ServiceStore
from torpor.store.user_store import UserStore
from torpor.testing.defaults import DEFAULTS, tuning
from torpor.testing.fake_runtime import FakeArchives, FakeContainer, FakeRuntime, FakeVolume, FakeWorld

LIMITS = Limits(memory_bytes=2**30, processes=100)
PROGRAM = Program("command", ("true",))
COLUMNS = (
    "id name owner_id template command desired_state standby_ttl_s archive_ttl_s phase generation revision home_seen"
    " archive_key archive_generation archive_revision archive_root"
)


# (workspaces, running, in STANDBY); the others are archived.
SHAPES = (
    (1_000, 1_000, 0),
    (10_000, 10_000, 0),
    (10_000, 1_000, 0),
    (10_000, 1_000, 9_000),
    (100_000, 1_000, 0),
)


@dataclass(frozen=True)
class Life:
    life: int
    shards: frozenset[int] = ALL_SHARDS

    def lives(self) -> bool:
        return True


@dataclass(frozen=True)
class Result:
    workspaces: int
    awake: int
    standby: int
    look_ms_median: float
    look_ms_worst: float
    statements_per_look: float
    rows_written: int
    read_everything_ms: float
    """All passes of a new controller until it has read every workspace that needs watching."""
    bytes_per_watched: int


@dataclass(frozen=True)
class Converged:
    wishes: int
    accepted_s: float
    converged_s: float
    """From the first request to the last workspace that runs."""
    looks: int
    statements: int


async def populate(url: str, world: FakeWorld, count: int, awake: int, standby: int) -> None:
    """Create workspaces that run, that are in STANDBY, and others that are archived; rows and world agree."""
    connection = await asyncpg.connect(url)
    owner = uuid.uuid4()
    await connection.execute("TRUNCATE workspaces, users CASCADE")
    await connection.execute("INSERT INTO users (id, username) VALUES ($1, 'ada')", owner)

    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(count):
            workspace_id = uuid.uuid4()
            has_home = number < awake + standby
            wish = "RUNNING" if number < awake else "STANDBY" if has_home else "ARCHIVED"
            if has_home:
                home = Home(str(workspace_id), 1)
                world.volumes[home] = FakeVolume(marker=Marker(str(workspace_id), 1, ""), opened_revision=1)
            if number < awake:
                world.containers[str(workspace_id)] = FakeContainer(Container(home, 1, PROGRAM, LIMITS), epoch=0)
            archive = (None,) * 4 if has_home else (f"{workspace_id}/{uuid.uuid4()}", 1, 1, "root")
            yield (
                workspace_id,
                f"w-{number}",
                owner,
                "command",
                ["true"],
                wish,
                300,
                86400,
                wish,
                1,
                1,
                has_home,
                *archive,
            )

    await connection.copy_records_to_table("workspaces", records=rows(), columns=COLUMNS.split())
    await connection.execute("ANALYZE workspaces")
    await connection.close()


async def versions(url: str) -> int:
    """The sum of all row versions: PostgreSQL's own count of writes."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT sum(version) FROM workspaces"))
    finally:
        await connection.close()


async def controlling(database: Database, world: FakeWorld, parallel: int = 8) -> Controller:
    store = ControllerStore(database, provider="fake")
    hands = EffectExecutor(FakeRuntime(world), FakeArchives(world), lambda _workspace: PROGRAM, LIMITS)
    life = Life(await store.join("bench", "fake:bench", expiry_s=3600, exclusive=True))
    return Controller(store, hands, life=life, tuning=tuning(), intervals=DEFAULTS.intervals, parallel=parallel)


async def settled(controller: Controller, watched: int) -> None:
    """As many passes as a new controller needs to have read everything, and to have seen what it wrote."""
    for _ in range(watched // MOST_AT_ONCE + 3):
        await controller.look()


async def kept_by(controller: Controller, watched: int) -> int:
    """The memory that a controller keeps after it has read everything."""
    gc.collect()
    tracemalloc.start()
    await settled(controller, watched)
    gc.collect()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept_bytes


async def measure(url: str, count: int, awake: int, standby: int, looks: int) -> Result:
    world = FakeWorld()
    await populate(url, world, count, awake, standby)
    database = await Database.open(url, Role.CONTROLLER)
    # The first passes save first observations; after that no row changes.
    await settled(await controlling(database, world), awake + standby)
    versions_before = await versions(url)
    controller = await controlling(database, world)
    began = time.perf_counter()
    await settled(controller, awake + standby)
    complete_ms = (time.perf_counter() - began) * 1000
    kept_bytes = await kept_by(await controlling(database, world), awake + standby)
    controller = await controlling(database, world)
    await settled(controller, awake + standby)
    sent_before = database.statements
    times_ms = []
    for _ in range(looks):
        began = time.perf_counter()
        await controller.look()
        times_ms.append((time.perf_counter() - began) * 1000)
    assert await versions(url) == versions_before, "a row was written in an idle look"
    result = Result(
        workspaces=count,
        awake=awake,
        standby=standby,
        look_ms_median=round(statistics.median(times_ms), 2),
        look_ms_worst=round(max(times_ms), 2),
        statements_per_look=(database.statements - sent_before) / looks,
        rows_written=controller.tally.rows_written,
        read_everything_ms=round(complete_ms, 1),
        bytes_per_watched=kept_bytes // (awake + standby),
    )
    await database.close()
    return result


async def converge(url: str, count: int) -> Converged:
    """This many workspaces in STANDBY are requested to run at once, through the service layer."""
    world = FakeWorld()
    await populate(url, world, count, awake=0, standby=count)
    database, service_database = await Database.open(url, Role.CONTROLLER), await Database.open(url, Role.SERVICE)
    controller = await controlling(database, world, parallel=64)
    await settled(controller, count)
    loop = asyncio.create_task(controller.run())
    service = ServiceStore(service_database)
    known = await UserStore(service_database).by_name("ada")
    assert known is not None
    ada = Caller(known.user, AuthMethod.TOKEN, str(uuid.uuid4()), EVERY_SCOPE, "bench")
    wishes = Wishes(
        service,
        limits=RunningLimits(per_user=count, overall=count),
        ttls=DEFAULTS.ttls,
        new_id=lambda: str(uuid.uuid4()),
        hint=controller.hint,
        using=UseService(service, new_id=lambda: str(uuid.uuid4()), hint=controller.hint, lease_s=DEFAULTS.connection_lease),
    )
    sent_before, looks_before = database.statements, controller.tally.looks
    began = time.perf_counter()
    at_once = asyncio.Semaphore(64)

    async def wish(number: int) -> None:
        async with at_once:
            await wishes.wish(ada, f"w-{number}", Wish.RUNNING)

    await asyncio.gather(*(wish(number) for number in range(count)))
    accepted_s = time.perf_counter() - began
    connection = await asyncpg.connect(url)
    while await connection.fetchval("SELECT count(*) FROM workspaces WHERE phase <> 'RUNNING' OR operation <> 'NONE'"):
        await asyncio.sleep(0.05)
    converged_s = time.perf_counter() - began
    await connection.close()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    result = Converged(
        wishes=count,
        accepted_s=round(accepted_s, 2),
        converged_s=round(converged_s, 2),
        looks=controller.tally.looks - looks_before,
        statements=database.statements - sent_before,
    )
    await database.close()
    await service_database.close()
    return result


async def main(looks: int, wishes: int) -> tuple[list[Result], Converged]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        async with EmbeddedPostgres(Path(folder)) as postgres:
            await migrate(postgres.dsn)
            results = []
            for shape in SHAPES:
                results.append(await measure(postgres.dsn, *shape, looks))
                print(results[-1], file=sys.stderr, flush=True)
            return results, await converge(postgres.dsn, wishes)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--looks", type=int, default=20)
    arguments.add_argument("--wishes", type=int, default=5000)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    measured, converged = asyncio.run(main(chosen.looks, chosen.wishes))
    if chosen.json:
        print(json.dumps({"looks": [asdict(one) for one in measured], "converged": asdict(converged)}))
    else:
        columns = [field.name for field in fields(Result)]
        print(" | ".join(columns))
        for one in measured:
            print(" | ".join(str(getattr(one, column)).rjust(len(column)) for column in columns))
        print(converged)
    assert all(one.rows_written == 0 for one in measured), "an idle look wrote something"
    assert {round(one.statements_per_look) for one in measured} == {2}, "the statements depend on the number of workspaces"
