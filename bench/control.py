"""What does an idle tick cost?

With nothing to do: the time of one look, the SQL statements it sends and the rows it writes, over 1,000 and 10,000 workspaces
on a fake runtime and a real PostgreSQL. No row may be written, and the statements may not depend on how many there are.

    python bench/control.py [--sizes 1000,10000] [--looks 20] [--json]
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from torpor.control.controller import Controller
from torpor.control.execute import Hands
from torpor.control.pace import Intervals
from torpor.domain.knobs import Knobs
from torpor.domain.records import Marker
from torpor.ports import Container, Home, Limits, Program
from torpor.runtimes.fake import FakeArchives, FakeContainer, FakeRuntime, FakeVolume, FakeWorld
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.for_controller import ControllerStore
from torpor.store.migrate import migrate

LIMITS = Limits(memory_bytes=2**30, processes=100)
PROGRAM = Program("command", ("true",))
COLUMNS = (
    "id name owner_id template command desired_state standby_ttl_s archive_ttl_s phase generation revision home_seen"
    " archive_key archive_generation archive_revision archive_root"
)


@dataclass(frozen=True)
class Result:
    workspaces: int
    awake: int
    look_ms_median: float
    look_ms_worst: float
    statements_per_look: float
    rows_written: int


async def populate(url: str, world: FakeWorld, count: int, awake: int) -> None:
    """`awake` of them run, the others are archived; rows and world agree."""
    connection = await asyncpg.connect(url)
    owner = uuid.uuid4()
    await connection.execute("TRUNCATE workspaces, users CASCADE")
    await connection.execute("INSERT INTO users (id, username) VALUES ($1, 'ada')", owner)

    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(count):
            workspace_id = uuid.uuid4()
            wish = "RUNNING" if number < awake else "ARCHIVED"
            if number < awake:
                home = Home(str(workspace_id), 1)
                world.volumes[home] = FakeVolume(marker=Marker(str(workspace_id), 1, ""), opened_revision=1)
                world.containers[str(workspace_id)] = FakeContainer(Container(home, 1, PROGRAM, LIMITS), epoch=0)
            archive = (None,) * 4 if number < awake else (f"{workspace_id}/{uuid.uuid4()}", 1, 1, "root")
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
                number < awake,
                *archive,
            )

    await connection.copy_records_to_table("workspaces", records=rows(), columns=COLUMNS.split())
    await connection.execute("ANALYZE workspaces")
    await connection.close()


async def versions(url: str) -> int:
    """The sum of all row versions: what PostgreSQL itself knows of writes."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT sum(version) FROM workspaces"))
    finally:
        await connection.close()


async def measure(url: str, count: int, awake: int, looks: int) -> Result:
    world = FakeWorld()
    await populate(url, world, count, awake)
    database = await Database.open(url, Role.CONTROLLER)
    store = ControllerStore(database)
    hands = Hands(FakeRuntime(world), FakeArchives(world), lambda _workspace: PROGRAM, LIMITS)
    controller = Controller(
        store, hands, epoch=await store.take_epoch("bench"), knobs=Knobs(), intervals=Intervals(), parallel=8
    )
    # The first looks write down what was never observed before; from then on nothing changes.
    for _ in range(3):
        await controller.look()
    written_before, sent_before = controller.tally.rows_written, database.statements
    versions_before = await versions(url)
    times_ms = []
    for _ in range(looks):
        began = time.perf_counter()
        await controller.look()
        times_ms.append((time.perf_counter() - began) * 1000)
    result = Result(
        workspaces=count,
        awake=awake,
        look_ms_median=round(statistics.median(times_ms), 2),
        look_ms_worst=round(max(times_ms), 2),
        statements_per_look=(database.statements - sent_before) / looks,
        rows_written=controller.tally.rows_written - written_before,
    )
    assert await versions(url) == versions_before, "a row was written in an idle look"
    await database.close()
    return result


async def main(sizes: list[int], looks: int) -> list[Result]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    results = []
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        async with EmbeddedPostgres(Path(folder)) as postgres:
            await migrate(postgres.dsn)
            for count in sizes:
                for awake in (count, count // 10):
                    results.append(await measure(postgres.dsn, count, awake, looks))
                    print(results[-1], file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sizes", default="1000,10000")
    arguments.add_argument("--looks", type=int, default=20)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    measured = asyncio.run(main([int(size) for size in chosen.sizes.split(",")], chosen.looks))
    if chosen.json:
        print(json.dumps([asdict(one) for one in measured]))
    else:
        print(f"{'workspaces':>10} {'awake':>7} {'median ms':>10} {'worst ms':>9} {'statements':>11} {'rows written':>13}")
        for one in measured:
            print(
                f"{one.workspaces:>10} {one.awake:>7} {one.look_ms_median:>10} {one.look_ms_worst:>9}"
                f" {one.statements_per_look:>11} {one.rows_written:>13}"
            )
    assert all(one.rows_written == 0 for one in measured), "an idle look wrote something"
    assert len({one.statements_per_look for one in measured}) == 1, "the statements depend on the number of workspaces"
