"""Measure the cost of one of each thing: the constants of the capacity model in docs/explanation/scale.md.

Everything but the engine is real: PostgreSQL, Valkey, the controller, and `torpor serve` as separate processes. Bytes and
counts can be trusted; times depend on this machine and its noise. Requests to an object store are counted in objects.py.

    python bench/constants.py [--only rows,cycles,...] [--idle-s 60] [--json]
"""

import argparse
import asyncio
import contextlib
import gc
import inspect
import json
import os
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from torpor.accounts import AuthMethod, Caller, digest, new_token
from torpor.api.event_fanout import POLL_S
from torpor.api.wire import workspace_json
from torpor.archives.store import LISTED_AT_ONCE
from torpor.bus.activity import RedisActivity
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import CONNECTIONS as BUS_CONNECTIONS
from torpor.bus.redis import Bus
from torpor.control.controller import Controller, Listeners, MembershipView
from torpor.control.effect_executor import EffectExecutor
from torpor.control.events import BATCH
from torpor.domain.access import EVERY_SCOPE
from torpor.domain.events import event_message
from torpor.domain.hostnames import Hosts
from torpor.domain.idle import UseReport
from torpor.domain.limits import RunningLimits
from torpor.domain.records import ArchiveKey, Marker, Survey
from torpor.domain.shards import ALL_SHARDS, shards_of
from torpor.domain.states import Phase, Wish
from torpor.ports import Container, Home, Limits, ListedArchive, Program
from torpor.proxy.use_leases import RENEW_AFTER_PART
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.controller_store import ControllerStore, ShardOwnership
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.events import Outbox
from torpor.store.gc import GcStore
from torpor.store.migrate import migrate
from torpor.store.service_store import ServiceStore
from torpor.store.user_store import NewUser, User, UserStore
from torpor.testing.defaults import DEFAULTS, tuning
from torpor.testing.fake_runtime import FakeArchives, FakeContainer, FakeRuntime, FakeVolume, FakeWorld

LIMITS = Limits(memory_bytes=2**30, processes=100)
PROGRAM = Program("command", ("true",))
HOSTS = Hosts(DEFAULTS.base_url, DEFAULTS.workspace_domain)
TERM = 1
MILLION = 1_000_000
ROWS = 100_000
CROWD = 200
ALONE = 20
SEEN = 10_000
WOKEN = 300
ASLEEP = 300
COMPLETE_LOOKS = 10  # after these a new controller has read everything
STREAMS = 100  # as many as one user may open


@dataclass(frozen=True)
class Constant:
    name: str
    value: float
    unit: str
    how: str = ""


# ── a database and its writers ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Alone:
    """A controller that always counts as alive."""

    life: int
    shards: frozenset[int] = ALL_SHARDS

    def lives(self) -> bool:
        return True


class CountedRuntime(FakeRuntime):
    """Counts how often it is observed."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.looks = 0

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        self.looks += 1
        return await super().observe(only)


@dataclass
class Plant:
    """Service layer and controller over one database, wired as in an installation."""

    admin: Any
    """A connection in neither role: its statements are not counted."""
    service: Database
    controller_database: Database
    store: ControllerStore
    user: Caller
    wishes: Wishes
    world: FakeWorld
    runtime: CountedRuntime
    controller: Controller

    async def until(self, names: Collection[str], phase: Phase) -> None:
        left = "SELECT count(*) FROM workspaces WHERE name = ANY ($1) AND (phase <> $2 OR operation <> 'NONE')"
        while await self.admin.fetchval(left, list(names), phase.value):
            await asyncio.sleep(0.02)

    async def reach(self, names: Collection[str], wish: Wish) -> None:
        """All of them at once."""
        await asyncio.gather(*(self.wishes.wish(self.user, name, wish) for name in names))
        await self.until(names, Phase(wish.value))


async def fresh(postgres: EmbeddedPostgres, name: str) -> str:
    """Another database in the same server, migrated, in which statements are counted."""
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    url = postgres.dsn_of(name)
    await migrate(url)
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE EXTENSION pg_stat_statements")
    await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'bench', $1)", TERM)
    await connection.close()
    return url


def acting(user: User) -> Caller:
    return Caller(user, AuthMethod.TOKEN, str(uuid.uuid4()), EVERY_SCOPE, "bench")


@contextlib.asynccontextmanager
async def planted(url: str) -> AsyncIterator[Plant]:
    async with contextlib.AsyncExitStack() as stack:
        admin = await asyncpg.connect(url)
        stack.push_async_callback(admin.close)
        service, database = await Database.open(url, Role.SERVICE), await Database.open(url, Role.CONTROLLER)
        stack.push_async_callback(service.close)
        stack.push_async_callback(database.close)
        people = ServiceStore(service)
        async with UserStore(service).writing() as writing:
            made = await writing.create_user(NewUser("ada"))
        assert made is not None
        ada = acting(made.user)
        world = FakeWorld()
        runtime = CountedRuntime(world)
        store = ControllerStore(database, provider="fake")
        wishes = Wishes(
            people,
            limits=RunningLimits(per_user=2 * MILLION, overall=2 * MILLION),
            ttls=DEFAULTS.ttls,
            new_id=lambda: str(uuid.uuid4()),
            hint=lambda workspace_id: controller.hint(workspace_id),
            using=UseService(
                people,
                new_id=lambda: str(uuid.uuid4()),
                hint=lambda workspace_id: controller.hint(workspace_id),
                lease_s=DEFAULTS.connection_lease,
            ),
        )
        life = Alone(await store.join("bench", f"fake:{world.id}", expiry_s=3600))
        controller = controlling(store, runtime, life, wishes)
        loop = asyncio.create_task(controller.run())
        try:
            yield Plant(admin, service, database, store, ada, wishes, world, runtime, controller)
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await store.leave(life.life)


def controlling(store: ControllerStore, runtime: FakeRuntime, life: MembershipView, wishes: Wishes | None = None) -> Controller:
    hands = EffectExecutor(runtime, FakeArchives(runtime._world), lambda _workspace: PROGRAM, LIMITS)
    listeners = Listeners(before_rest=partial(wishes.using.stopped, life=life.life)) if wishes else None
    return Controller(
        store,
        hands,
        life=life,
        tuning=tuning(),
        intervals=DEFAULTS.intervals,
        parallel=DEFAULTS.reconciler_parallel,
        listeners=listeners,
    )


async def multiply(admin: Any, specimen: str, count: int, *, prefix: str) -> None:
    """Copies of this workspace, each with its own id, name and archive key; ten to a user."""
    named = await admin.fetch(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_name = 'workspaces' AND is_generated = 'NEVER' ORDER BY ordinal_position"
    )
    own = {
        "id": "new.id",
        "name": f"'{prefix}-' || new.number",
        "owner_id": "new.owner_id",
        "op_id": "gen_random_uuid()",
        "archive_key": "CASE WHEN archive_key IS NOT NULL THEN new.id::text || '/' || gen_random_uuid() END",
        "created_at": "created_at + new.number * interval '1 millisecond'",
    }
    columns = [row["column_name"] for row in named]
    values = ", ".join(own.get(column, f"specimen.{column}") for column in columns)
    # No events and no checks: only the rows are needed.
    async with admin.transaction():
        await admin.execute("SET LOCAL session_replication_role = replica")
        owners = f"SELECT gen_random_uuid(), '{prefix}-' || number FROM generate_series(0, {count // 10}) AS number"
        await admin.execute(f"INSERT INTO users (id, username) {owners}")
        await admin.execute(
            f"""
            WITH owners AS MATERIALIZED (SELECT id, username FROM users),
            new AS MATERIALIZED (
                SELECT gen_random_uuid() AS id, number, owners.id AS owner_id
                FROM generate_series(0, {count - 1}) AS number JOIN owners ON owners.username = '{prefix}-' || number / 10
            )
            INSERT INTO workspaces ({", ".join(columns)})
            SELECT {values} FROM new, (SELECT * FROM workspaces WHERE name = '{specimen}') AS specimen ORDER BY new.number
            """
        )


async def raise_specimens(plant: Plant) -> None:
    """One that runs, one in STANDBY, one that is archived, all brought there by the controller."""
    for name, way in {
        "specimen-running": (),
        "specimen-standby": (Wish.STANDBY,),
        "specimen-archived": (Wish.STANDBY, Wish.ARCHIVED),
    }.items():
        await plant.wishes.create(plant.user, name=name, template_name="command", command=("true",))
        await plant.until([name], Phase.RUNNING)
        for wish in way:
            await plant.reach([name], wish)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def size_bytes(admin: Any, table: str) -> int:
    """With its indexes and its TOAST table."""
    return int(await admin.fetchval("SELECT pg_total_relation_size($1::text::regclass)", table))


async def wal_bytes(admin: Any) -> int:
    return int(await admin.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


async def rows(postgres: EmbeddedPostgres) -> list[Constant]:
    url = await fresh(postgres, "rows")
    found = []
    async with planted(url) as plant:
        await raise_specimens(plant)
        admin = plant.admin
        before = await size_bytes(admin, "workspaces")
        await multiply(admin, "specimen-archived", ROWS, prefix="w")
        await admin.execute("VACUUM ANALYZE workspaces")
        whole = await size_bytes(admin, "workspaces") - before
        indexes = int(await admin.fetchval("SELECT pg_indexes_size('workspaces')"))
        found.append(Constant("workspace_row_bytes", whole / ROWS, "bytes", f"archived, {ROWS} freshly written"))
        found.append(Constant("workspace_row_index_bytes", indexes / ROWS, "bytes", "of it, all its indexes"))
        found += await _history_rows(admin)
        found += await _events(plant)
    return found


async def _history_rows(admin: Any) -> list[Constant]:
    """As the controller wrote them for the specimens, one for each workspace."""
    before = {table: await size_bytes(admin, table) for table in ("operations", "archives")}
    async with admin.transaction():
        await admin.execute("SET LOCAL session_replication_role = replica")
        await admin.execute(
            "INSERT INTO operations SELECT w.id, gen_random_uuid(), o.attempt, o.kind, o.generation, o.epoch, o.started_at,"
            " o.ended_at, o.outcome, o.reason, o.message, o.done_bytes"
            " FROM workspaces w, (SELECT * FROM operations WHERE kind = 'STARTING' AND outcome = 'DONE' LIMIT 1) o"
            " WHERE w.name LIKE 'w-%'"
        )
        await admin.execute(
            "INSERT INTO archives SELECT w.archive_key, w.id, w.op_id, a.generation, a.revision, a.manifest_root,"
            " a.size_bytes, a.home_bytes, a.proven_at"
            " FROM workspaces w, (SELECT * FROM archives LIMIT 1) a WHERE w.name LIKE 'w-%'"
        )
    grown = {table: (await size_bytes(admin, table) - before[table]) / ROWS for table in before}
    return [
        Constant("operation_row_bytes", grown["operations"], "bytes", f"{ROWS} ended ones; one of each is kept for ever"),
        Constant("archive_row_bytes", grown["archives"], "bytes", f"{ROWS}; up to gc_keep of each workspace are kept"),
    ]


async def _events(plant: Plant) -> list[Constant]:
    """From the trigger that writes them to the leader that numbers and later removes them."""
    admin, outbox = plant.admin, Outbox(plant.controller_database)
    while (await outbox.number(TERM, limit=BATCH)).is_full:
        pass
    before = await size_bytes(admin, "outbox")
    await admin.execute("UPDATE workspaces SET wish_version = wish_version + 1 WHERE name LIKE 'w-%'")
    wal_before = await wal_bytes(admin)
    taken_s = []
    while True:
        began = time.perf_counter()
        batch = await outbox.number(TERM, limit=BATCH)
        if not batch.is_full:
            break
        taken_s.append(time.perf_counter() - began)
        event = batch.events[0]
    wal_numbered = await wal_bytes(admin) - wal_before
    await admin.execute("VACUUM outbox")
    as_written = await size_bytes(admin, "outbox") - before
    await admin.execute("CREATE TABLE packed (LIKE outbox INCLUDING ALL)")
    await admin.execute("INSERT INTO packed OVERRIDING SYSTEM VALUE SELECT * FROM outbox ORDER BY seq")
    packed = await size_bytes(admin, "packed")
    await admin.execute("DROP TABLE packed")
    wal_before, began = await wal_bytes(admin), time.perf_counter()
    while await outbox.prune(TERM, older_than_s=0, limit=BATCH):
        pass
    pruned_s, wal_pruned = time.perf_counter() - began, await wal_bytes(admin) - wal_before
    message = json.dumps(event_message(event, workspace_json(event.workspace, hosts=HOSTS)).body)
    first, last = statistics.mean(taken_s[:20]) / BATCH * 1e6, statistics.mean(taken_s[-20:]) / BATCH * 1e6
    return [
        Constant("event_row_bytes", as_written / ROWS, "bytes", f"{ROWS}, each written, then numbered: two versions of each"),
        Constant("event_row_packed_bytes", packed / ROWS, "bytes", "the same without the dead versions"),
        Constant(
            "event_wal_bytes", (wal_numbered + wal_pruned) / ROWS, "bytes", "numbering and forgetting one; not writing it"
        ),
        Constant("event_number_us", first, "us", f"to number one and read it, of the first of {ROWS} that wait"),
        Constant("event_number_last_us", last, "us", f"the same, of the last of {ROWS} that waited"),
        Constant("event_prune_us", pruned_s / ROWS * 1e6, "us", f"to forget one, {BATCH} at a time"),
        Constant("event_message_bytes", len(message), "bytes", "on the bus, twice; about the same to each reader"),
    ]


# ── cycles ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# Every step by itself, from a workspace that exists already.
STEPS: tuple[tuple[str, Wish], ...] = (
    ("start", Wish.RUNNING),
    ("stop", Wish.STANDBY),
    ("archive", Wish.ARCHIVED),
    ("restore", Wish.RUNNING),
)


@dataclass(frozen=True)
class Spent:
    """By the two roles; statements of the benchmark itself are not counted."""

    statements: float
    row_writes: float
    database_ms: float
    wal_bytes: float
    operations: float
    events: float
    provider_looks: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(mine + its for mine, its in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def per(self, count: int) -> "Spent":
        return Spent(*(value / count for value in asdict(self).values()))


COUNTED = """
SELECT coalesce(sum(calls), 0)::float8 AS statements,
       coalesce(sum(total_exec_time) FILTER (WHERE query NOT LIKE '%pg_advisory%'), 0)::float8 AS database_ms,
       coalesce(sum(rows) FILTER (WHERE query LIKE '%UPDATE workspaces SET%'), 0)::float8 AS row_writes,
       (SELECT count(*) FROM operations)::float8 AS operations,
       (SELECT count(*) FROM outbox)::float8 AS events
FROM pg_stat_statements JOIN pg_roles ON pg_roles.oid = userid
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND rolname LIKE 'torpor!_%' ESCAPE '!'
"""


async def spent_so_far(plant: Plant) -> Spent:
    counted = await plant.admin.fetchrow(COUNTED)
    return Spent(**counted, wal_bytes=await wal_bytes(plant.admin), provider_looks=plant.runtime.looks)


async def spent_on(plant: Plant, names: Collection[str], wish: Wish) -> Spent:
    before = await spent_so_far(plant)
    await plant.reach(names, wish)
    # The last pass of a step may still be in progress.
    after = await spent_so_far(plant)
    while (again := await _a_moment_later(plant)) != after:
        after = again
    return after + before.per(-1)


async def _a_moment_later(plant: Plant) -> Spent:
    await asyncio.sleep(0.3)
    return await spent_so_far(plant)


async def cycles(postgres: EmbeddedPostgres) -> list[Constant]:
    url = await fresh(postgres, "cycles")
    found = []
    async with planted(url) as plant:
        names = [f"c-{number}" for number in range(CROWD)]
        for name in names:
            await plant.wishes.create(
                plant.user, name=name, template_name="command", command=("true",), desired_state=Wish.STANDBY
            )
        await plant.until(names, Phase.STANDBY)
        await plant.reach(names, Wish.RUNNING)
        await plant.reach(names, Wish.STANDBY)
        for step, wish in STEPS:
            crowd = (await spent_on(plant, names, wish)).per(CROWD)
            found += _told(step, crowd, f"each of {CROWD} at once")
        await plant.reach(names, Wish.STANDBY)
        for step, wish in STEPS:
            alone = [await spent_on(plant, [name], wish) for name in names[:ALONE]]
            mean = sum(alone[1:], alone[0]).per(ALONE)
            # Without the log: what a checkpoint adds to the first write of each page would count for much.
            told = _told(f"{step}_alone", mean, f"by itself, mean of {ALONE}")
            found += [one for one in told if one.name.endswith(("_statements", "_database_ms", "_provider_looks"))]
    # Only now have the sessions reported everything to the server's statistics.
    admin = await asyncpg.connect(url)
    share = "SELECT n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'workspaces'"
    found.append(Constant("row_write_hot_share", await admin.fetchval(share), "", "of row writes that leave the indexes alone"))
    await admin.close()
    return found


def _told(step: str, spent: Spent, how: str) -> list[Constant]:
    units = {"database_ms": "ms", "wal_bytes": "bytes"}
    return [Constant(f"{step}_{name}", value, units.get(name, ""), how) for name, value in asdict(spent).items()]


# ── statements over a million rows ────────────────────────────────────────────────────────────────────────────────────


async def median_ms(do: Callable[[], Awaitable[object]], *, times: int = 10) -> float:
    """As the client sees it: planning, execution, network, and reading the answer."""
    taken = []
    for _ in range(times + 2):
        began = time.perf_counter()
        await do()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken[2:])


async def million(postgres: EmbeddedPostgres) -> list[Constant]:
    url = await fresh(postgres, "million")
    found = []
    async with planted(url) as plant:
        await raise_specimens(plant)
    async with contextlib.AsyncExitStack() as stack:
        admin = await asyncpg.connect(url, command_timeout=1800)
        stack.push_async_callback(admin.close)
        service = await Database.open(url, Role.SERVICE)
        stack.push_async_callback(service.close)
        controller = await Database.open(url, Role.CONTROLLER)
        stack.push_async_callback(controller.close)
        people = ServiceStore(service)
        await multiply(admin, "specimen-archived", MILLION - 10_000, prefix="w")
        running = 0
        for count in (100, 1_000, 10_000):
            await multiply(admin, "specimen-running", count - running, prefix=f"r-{count}")
            running = count
            await admin.execute("VACUUM ANALYZE workspaces")
            found.append(
                Constant(
                    f"limits_check_{count}_ms", await median_ms(partial(_limits, people)), "ms", f"{count} run, of {MILLION}"
                )
            )
            if count == 1_000:
                store = ControllerStore(controller, provider="fake")
                life = await store.join("bench", "fake:million", expiry_s=3600)
                found += await _looked_up(store, ShardOwnership(life, ALL_SHARDS), people)
            if count > 100:
                found.append(await _admitted(people, count))
        found.append(await _slept(admin, people))
        found += await _collected(admin, GcStore(controller))
        whole = await admin.fetchval("SELECT pg_database_size(current_database())")
        found.append(Constant("million_database_bytes", whole, "bytes", "with an archive each, no history, no events"))
    return found


async def _limits(people: ServiceStore) -> None:
    async with people.writing() as writing:
        await writing.running_besides(str(uuid.uuid4()), owner_id=str(uuid.uuid4()))


async def _admitted(people: ServiceStore, running: int) -> Constant:
    """Requests to run are admitted one after the other, so this is the limit of a whole installation."""
    wishes = Wishes(
        people,
        limits=RunningLimits(per_user=2 * MILLION, overall=2 * MILLION),
        ttls=DEFAULTS.ttls,
        new_id=lambda: str(uuid.uuid4()),
        hint=lambda _workspace_id: None,
        using=UseService(
            people, new_id=lambda: str(uuid.uuid4()), hint=lambda _workspace_id: None, lease_s=DEFAULTS.connection_lease
        ),
    )
    user = acting(User(str(uuid.uuid4()), "admin", is_admin=True))
    at_once = asyncio.Semaphore(8)

    async def wake(name: str) -> None:
        async with at_once:
            await wishes.wake(user, name)

    began = time.perf_counter()
    await asyncio.gather(*(wake(f"w-{running + number}") for number in range(WOKEN)))
    per_s = WOKEN / (time.perf_counter() - began)
    return Constant(f"admissions_{running}_per_s", per_s, "1/s", f"wakes accepted while about {running} run, 8 at once")


async def _slept(admin: Any, people: ServiceStore) -> Constant:
    """The leader stops them one after the other."""
    await multiply(admin, "specimen-standby", ASLEEP, prefix="s")
    then = "now() - interval '2 days'"
    ids = await admin.fetch(
        f"UPDATE workspaces SET last_access_at = {then}, phase_changed_at = {then} WHERE name LIKE 's-%' RETURNING id::text"
    )
    using = UseService(
        people, new_id=lambda: str(uuid.uuid4()), hint=lambda _workspace_id: None, lease_s=DEFAULTS.connection_lease
    )

    async def no_use(_ids: Sequence[str]) -> dict[str, UseReport]:
        return {}

    began = time.perf_counter()
    for row in ids:
        assert await using.let_sleep(row["id"], term=TERM, to=Wish.ARCHIVED, ask=no_use, lease_s=30)
    taken_ms = (time.perf_counter() - began) * 1000
    return Constant("let_sleep_ms", taken_ms / len(ids), "ms", "the leader's wish for one that is to be archived; no bus asked")


async def _looked_up(store: ControllerStore, hold: ShardOwnership, people: ServiceStore) -> list[Constant]:
    some = frozenset(range(16))
    known = await UserStore(people._database).by_name("w-77")
    assert known is not None
    ada = known.user
    one = await people.by_name("w-500000")
    assert one is not None
    asked: dict[str, tuple[Callable[[], Awaitable[object]], str]] = {
        "due_ms": (lambda: store.load_due(hold), "an idle look's question: nothing is due"),
        "due_rolling_ms": (lambda: store.load_due(hold, whole=some), "the same, and 16 of 1,024 shards read again"),
        "due_whole_ms": (lambda: store.load_due(hold, whole=ALL_SHARDS), "a new life: everything watched is read (1,000 rows)"),
        "standby_due_ms": (lambda: people.due(Wish.STANDBY, after=None, limit=500), "no workspace is due"),
        "archive_due_ms": (lambda: people.due(Wish.ARCHIVED, after=None, limit=500), "no workspace is due"),
        "expected_homes_ms": (store.expected_homes, "only when a home is missed"),
        "census_ms": (store.count_phases, "once a minute"),
        "find_by_id_ms": (lambda: people.by_id(one.id), ""),
        "find_by_name_ms": (lambda: people.by_name("w-500000"), ""),
        "find_living_ms": (lambda: people.living("w-500000"), "every proxied request asks this"),
        "page_of_owner_ms": (
            lambda: people.page(seen_by=ada, phase=None, after=None, limit=101),
            "a user's list, of 10 workspaces",
        ),
        "page_of_admin_ms": (lambda: people.page(seen_by=None, phase=None, after=None, limit=101), "the first page of all"),
    }
    return [
        Constant(name, await median_ms(do), "ms", ", ".join(filter(None, (how, f"{MILLION} rows, 1,000 awake"))))
        for name, (do, how) in asked.items()
    ]


async def _collected(admin: Any, store: GcStore) -> list[Constant]:
    async with admin.transaction():
        await admin.execute("SET LOCAL session_replication_role = replica")
        await admin.execute(
            "INSERT INTO archives SELECT archive_key, id, op_id, 1, 1, archive_root, 1, 1, now()"
            " FROM workspaces WHERE archive_key IS NOT NULL AND name LIKE 'w-%'"
        )
    await admin.execute("VACUUM ANALYZE archives")
    count = await admin.fetchval("SELECT count(*) FROM archives")
    how = f"{count} archives"

    async def listed() -> AsyncIterator[ListedArchive]:
        async with admin.transaction():
            async for row in admin.cursor("SELECT key FROM archives", prefetch=5000):
                yield ListedArchive(ArchiveKey.parse(row["key"]), is_whole=True)

    now = await admin.fetchval("SELECT clock_timestamp()")
    gc.collect()
    tracemalloc.start()
    compared = await store.compare(listed(), begun_at=now)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not compared.unknown, "all of them are known"
    return [
        Constant("gc_candidates_ms", await median_ms(lambda: store.candidates(DEFAULTS.retention), times=3), "ms", how),
        Constant("gc_totals_ms", await median_ms(store.totals, times=3), "ms", how),
        Constant("gc_listed_bytes", peak_bytes / count, "bytes", f"of the leader's memory for each archive listed, {how}"),
        Constant("gc_list_requests_per_1000", 2 * 1000 / LISTED_AT_ONCE, "", "for 1,000 archives: two objects each"),
    ]


# ── reconcile passes ──────────────────────────────────────────────────────────────────────────────────────────────────


async def looks(postgres: EmbeddedPostgres) -> list[Constant]:
    """The cost of a pass for each thing that the provider lists: every controller gets the whole list."""
    url = await fresh(postgres, "looks")
    async with planted(url) as plant:
        await raise_specimens(plant)
        world = plant.world
    admin = await asyncpg.connect(url)
    await multiply(admin, "specimen-running", SEEN, prefix="r")
    await admin.execute("ANALYZE workspaces")
    for row in await admin.fetch("SELECT id::text, generation, revision FROM workspaces WHERE name LIKE 'r-%'"):
        home = Home(row["id"], row["generation"])
        world.volumes[home] = FakeVolume(marker=Marker(row["id"], row["generation"], ""), opened_revision=row["revision"])
        container = Container(home, row["revision"], PROGRAM, LIMITS)
        world.containers[row["id"]] = FakeContainer(container, epoch=0)
    await admin.close()
    database = await Database.open(url, Role.CONTROLLER)
    store = ControllerStore(database, provider="fake")
    life = Alone(await store.join("bench", "fake:looks", expiry_s=3600))
    runtime = FakeRuntime(world)
    tenth = replace(life, shards=shards_of("0", [str(number) for number in range(10)]))
    found = []
    for name, one in (("look_own", life), ("look_tenth", tenth)):
        controller = controlling(store, runtime, one)
        for _ in range(COMPLETE_LOOKS):
            await controller.look()
        share = len(one.shards) / len(ALL_SHARDS)
        how = f"{SEEN} run; {share:.0%} of the shards are this controller's"
        found.append(Constant(f"{name}_ms", await median_ms(controller.look, times=20), "ms", how))
        assert controller.tally.conflicts == 0
        assert not controller.tally.rows_written, "an idle look wrote something"
    observe_ms = await median_ms(runtime.observe, times=20)
    found.append(Constant("look_fake_provider_ms", observe_ms, "ms", "of each of them: the fake engine's listing itself"))
    gc.collect()
    tracemalloc.start()
    controller = controlling(store, runtime, life)
    for _ in range(COMPLETE_LOOKS):
        await controller.look()
    gc.collect()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    await controller.look()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found.append(Constant("watched_bytes", kept_bytes / SEEN, "bytes", "of a controller's memory, for each that it watches"))
    how = "of a controller's memory while it looks, for each that the provider shows"
    found.append(Constant("seen_bytes", (peak_bytes - kept_bytes) / SEEN, "bytes", how))
    await database.close()
    return found


# ── the bus ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def used_memory(bus: Bus) -> int:
    (said,) = await bus.ask(("INFO", "memory"))
    return int(said["used_memory"])


async def used_cpu_s(bus: Bus) -> float:
    (said,) = await bus.ask(("INFO", "cpu"))
    return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])


async def bus_costs(valkey: EmbeddedValkey) -> list[Constant]:
    bus = await Bus.open(valkey.url)
    activity = RedisActivity(bus)
    ids = [str(uuid.uuid4()) for _ in range(ROWS)]
    found = []

    async def grown_by(do: Callable[[], Awaitable[object]]) -> tuple[float, float]:
        """Bytes of memory and microseconds of the server's CPU, for each."""
        before, cpu_before_s = await used_memory(bus), await used_cpu_s(bus)
        await do()
        return (await used_memory(bus) - before) / ROWS, (await used_cpu_s(bus) - cpu_before_s) / ROWS * 1e6

    one = {workspace_id: frozenset({uuid.uuid4().hex}) for workspace_id in ids}
    two = {workspace_id: frozenset({uuid.uuid4().hex}) for workspace_id in ids}
    how = f"{ROWS} workspaces"
    first, _ = await grown_by(lambda: _in_parts(one, lambda part: activity.renew(part, lease_s=3600)))
    second, _ = await grown_by(lambda: _in_parts(two, lambda part: activity.renew(part, lease_s=3600)))
    _, renew_us = await grown_by(lambda: _in_parts(one, lambda part: activity.renew(part, lease_s=3600)))
    timer, touch_us = await grown_by(lambda: _in_parts(dict.fromkeys(ids, 3600.0), lambda part: activity.touch(part)))
    _, uses_us = await grown_by(lambda: activity.uses(ids[:ROWS]))
    found += [
        Constant("bus_first_lease_bytes", first, "bytes", f"a workspace's first connection, {how}"),
        Constant("bus_next_lease_bytes", second, "bytes", "its second"),
        Constant("bus_timer_bytes", timer, "bytes", f"an idle timer, {how}"),
        Constant("bus_renew_us", renew_us, "us", "of the server's processor to renew one lease, 1,000 in a message"),
        Constant("bus_touch_us", touch_us, "us", "of the server's processor to start one timer, 1,000 in a message"),
        Constant("bus_uses_us", uses_us, "us", "of the server's processor to tell the use of one workspace"),
    ]
    await bus.close()
    return found


async def _in_parts(of: dict[str, Any], do: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    items = list(of.items())
    for start in range(0, len(items), 1000):
        await do(dict(items[start : start + 1000]))


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Node:
    """One `torpor serve`."""

    def __init__(self, role: str, number: int, folder: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        name = f"{role}-{number}"
        settings = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")},
            **environment,
            "TORPOR_DATA": str(folder / name),
            "TORPOR_PORT": str(self.port),
            "TORPOR_COORDINATOR_NODE_ID": name,
        }
        command = [sys.executable, "-m", "torpor", "serve", "--role", role]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=settings, text=True)
        assert self.process.stdout
        said = self.process.stdout.readline()
        assert said.startswith("torpor is ready at"), f"{name} said {said!r}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


async def processes(postgres: EmbeddedPostgres, valkey: EmbeddedValkey, folder: Path, idle_s: float) -> list[Constant]:
    url = await fresh(postgres, "processes")
    engine_socket = folder / "engine.sock"
    engine = subprocess.Popen(  # noqa: ASYNC220 - no other task waits meanwhile
        [sys.executable, "-m", "torpor.testing.fake_engine", str(engine_socket), "--while-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout
    engine.stdout.readline()
    environment = {
        "TORPOR_DATABASE_URL": url,
        "TORPOR_REDIS_URL": valkey.url,
        "TORPOR_RUNTIME": "fake",
        "TORPOR_FAKE_ENGINE": str(engine_socket),
        "TORPOR_ARCHIVE_URL": (folder / "archives").as_uri(),
    }
    nodes: list[Node] = []
    admin = await asyncpg.connect(url)
    found = []
    try:
        before = 0.0
        for role, label in (("controller", "leader"), ("controller", "follower"), ("api", "api"), ("proxy", "proxy")):
            nodes.append(await asyncio.to_thread(Node, role, len(nodes), folder, environment))
            rate = await _statements_per_s(admin, idle_s)
            found += [
                Constant(f"{label}_idle_statements_per_s", rate - before, "1/s", f"more than without it, over {idle_s:g} s"),
                Constant(f"{label}_memory_bytes", memory_bytes(nodes[-1].process.pid), "bytes", "resident, idle"),
            ]
            before = rate
        found.append(await _stream_bytes(url, nodes[2]))
    finally:
        for node in nodes:
            node.stop()
        engine.terminate()
        engine.wait(10)
        await admin.close()
    return found


async def _statements_per_s(admin: Any, window_s: float) -> float:
    """Of all processes but this one, after their start."""
    await asyncio.sleep(7)
    counted = (
        "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements"
        " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND query NOT LIKE '%pg_stat_statements%'"
    )
    before, began = await admin.fetchval(counted), time.perf_counter()
    await asyncio.sleep(window_s)
    return float((await admin.fetchval(counted) - before) / (time.perf_counter() - began))


async def _stream_bytes(url: str, node: Node) -> Constant:
    """Through the front, as a client connects."""
    database = await Database.open(url, Role.SERVICE)
    token = new_token()
    async with UserStore(database).writing() as writing:
        made = await writing.create_user(NewUser(f"bench-{secrets.token_hex(4)}", is_admin=True))
        assert made is not None
        await writing.ensure_token(made.user.id, "bench", digest(token), EVERY_SCOPE)
    await database.close()
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost:{node.port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    writers = []

    async def open_streams(count: int) -> None:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(head)
            async with asyncio.timeout(20):
                await reader.readuntil(b"event: heartbeat\n")
            writers.append(writer)

    await open_streams(STREAMS // 10)
    before = memory_bytes(node.process.pid)
    await open_streams(STREAMS)
    after = memory_bytes(node.process.pid)
    for writer in writers:
        writer.close()
    return Constant("stream_bytes", (after - before) / STREAMS, "bytes", f"of memory in an API process, each of {STREAMS} idle")


# ── constants of code and settings ────────────────────────────────────────────────────────────────────────────────────


async def said() -> list[Constant]:
    pool = inspect.signature(Database.open).parameters["connections"].default
    return [
        Constant("api_connections_at_most", pool, "", "to the database: one pool"),
        Constant("proxy_connections_at_most", pool, "", "to the database: one pool"),
        Constant("controller_connections_at_most", 2 * pool + 1, "", "to the database: two pools and the lead's"),
        Constant("bus_connections_at_most", BUS_CONNECTIONS + 1, "", "of each process: a pool, and one that listens"),
        Constant("heartbeats_per_s", 1 / DEFAULTS.coordinator_heartbeat, "1/s", "of each controller, two statements each"),
        Constant(
            "looks_per_s", 1 / DEFAULTS.reconciler_interval, "1/s", "of each controller, each with a listing of everything"
        ),
        Constant("renewals_per_s", 1 / (DEFAULTS.connection_lease * RENEW_AFTER_PART), "1/s", "of each connection"),
        Constant("feed_polls_per_s", 1 / POLL_S, "1/s", "of each API process, while the bus is silent"),
    ]


# ── the whole benchmark ───────────────────────────────────────────────────────────────────────────────────────────────

PARTS = ("said", "bus", "rows", "cycles", "looks", "processes", "million")


async def count_statements(postgres: EmbeddedPostgres) -> None:
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
    await admin.close()
    await postgres.stop()
    await postgres.start()


async def main(parts: Sequence[str], idle_s: float) -> list[Constant]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: list[Constant] = []
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torpor-bench-")))
        postgres = await stack.enter_async_context(EmbeddedPostgres(folder / "postgres"))
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        await count_statements(postgres)
        measure: dict[str, Callable[[], Awaitable[list[Constant]]]] = {
            "said": said,
            "bus": lambda: bus_costs(valkey),
            "rows": lambda: rows(postgres),
            "cycles": lambda: cycles(postgres),
            "looks": lambda: looks(postgres),
            "processes": lambda: processes(postgres, valkey, folder, idle_s),
            "million": lambda: million(postgres),
        }
        for part in parts:
            began = time.perf_counter()
            some = await measure[part]()
            found += some
            print(f"{part}: {len(some)} constants in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def shown(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    arguments.add_argument("--idle-s", type=float, default=60, help="how long idle processes are watched")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    constants = asyncio.run(main(chosen.only.split(","), chosen.idle_s))
    if chosen.json:
        print(json.dumps({one.name: {"value": one.value, "unit": one.unit, "how": one.how} for one in constants}, indent=1))
    else:
        for one in constants:
            print(f"{one.name:42} {shown(one.value):>14} {one.unit:6} {one.how}")
