"""The leader's duties and the controller continue after the connections of the database are cut.

Each duty here holds a transaction and waits for another event in it, as the idle watch does when it asks the bus. If the duty
is canceled while its connection is dead, asyncpg raises InterfaceError instead of CancelledError.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from tests.support.control_plane import FAST, make_controller
from tests.support.waiting import until
from torpor.control.coordinator import Coordinator, LeaderLockOptions
from torpor.control.membership import HeartbeatOptions, NodeIdentity
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role
from torpor.store.embedded import EmbeddedPostgres
from torpor.store.leader_lock import require_term
from torpor.store.migrate import migrate
from torpor.testing.fake_runtime import FakeWorld

pytestmark = pytest.mark.anyio

HEARTBEAT = HeartbeatOptions(interval_s=0.1, expiry_s=1.0)
LOCK_ID = 54321
ROUNDS = 6
ENDS_WITHIN_S = 40.0


@dataclass
class InTransaction:
    """A duty that spends its turns inside a transaction."""

    database: Database
    name: str
    interval_s: float = 0.01
    turn_s: float = 5.0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    turns: Counter[int] = field(default_factory=Counter)
    """The turns of each term."""

    def rest(self) -> None: ...

    async def do(self, term: int) -> None:
        async with self.database.transaction() as connection:
            await require_term(connection, term)
            await asyncio.sleep(0.3)
            await connection.fetchval("SELECT 1")
        self.turns[term] += 1


@dataclass
class Running:
    database_url: str
    coordinator: Coordinator
    duties: list[InTransaction]

    async def until_everything_turns(self, after_term: int = 0) -> int:
        """Wait for a later term in which the lock is held and every duty and the controller did a turn; return it."""
        term = await self._until_term(after_term)
        await until(lambda: all(duty.turns.get(term, 0) > 1 for duty in self.duties))
        controller = self.coordinator.controller
        assert controller is not None
        looks = controller.tally.looks
        controller.hint()
        await until(lambda: controller.tally.looks > looks)
        return term

    async def _until_term(self, after_term: int) -> int:
        await until(lambda: (self.coordinator.term or 0) > after_term)
        owner = await asyncpg.connect(self.database_url)
        held = await owner.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1", LOCK_ID)
        await owner.close()
        assert held == 1, "it claims to lead without the lock"
        assert self.coordinator.term is not None
        return self.coordinator.term


@contextlib.asynccontextmanager
async def running(database_url: str) -> AsyncIterator[Running]:
    database = await Database.open(database_url, Role.CONTROLLER)
    store, world = ControllerStore(database, provider="fake"), FakeWorld()
    duties = [InTransaction(database, f"duty-{number}") for number in range(3)]
    coordinator = Coordinator(
        store,
        NodeIdentity("ada", "fake:w", False),
        HEARTBEAT,
        LeaderLockOptions(database_url, lock_id=LOCK_ID, retry_s=0.1),
        make_controller=lambda membership: make_controller(store, world, membership, FAST, parallel=4),
        duties=duties,
        on_change=lambda: None,
    )
    task = asyncio.create_task(coordinator.run())
    try:
        yield Running(database_url, coordinator, duties)
    finally:
        task.cancel()
        _, left = await asyncio.wait({task}, timeout=ENDS_WITHIN_S)
        assert not left, "the coordinator does not end"
        async with asyncio.timeout(ENDS_WITHIN_S):
            await database.close()


async def terminate_all_backends(database_url: str) -> None:
    owner = await asyncpg.connect(database_url)
    await owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await owner.close()


@contextlib.contextmanager
def stopped(server: EmbeddedPostgres) -> Iterator[None]:
    """Send SIGSTOP to every process of this server, and SIGCONT afterwards."""
    pids = EmbeddedPostgres.processes_in(server.cluster)
    assert server.pid in pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def while_connections_break() -> AsyncIterator[None]:
    """asyncpg returns connections in its own tasks, which fail if the server hangs: wait for them in this test."""
    loop = asyncio.get_running_loop()
    before, others = loop.get_exception_handler(), asyncio.all_tasks()
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        yield
        await until(lambda: not asyncio.all_tasks() - others)
        gc.collect()
    finally:
        loop.set_exception_handler(before)


async def test_every_duty_runs_again_after_all_backends_are_terminated(database_url: str) -> None:
    async with running(database_url) as here:
        term = await here.until_everything_turns()
        for _ in range(ROUNDS):
            await terminate_all_backends(database_url)
            term = await here.until_everything_turns(after_term=term)


async def test_every_duty_runs_again_after_postgresql_is_stopped_and_continued(tmp_path: Path) -> None:
    async with while_connections_break(), EmbeddedPostgres(tmp_path / "postgres", durable=False) as server:
        await migrate(server.dsn)
        async with running(server.dsn) as here:
            term = await here.until_everything_turns()
            for _ in range(2):
                with stopped(server):
                    # Longer than the expiry, so that the membership and its duties end.
                    await asyncio.sleep(3 * HEARTBEAT.expiry_s)
                term = await here.until_everything_turns(after_term=term)


@pytest.mark.long
async def test_the_coordinator_ends_while_postgresql_is_stopped(tmp_path: Path) -> None:
    async with while_connections_break(), EmbeddedPostgres(tmp_path / "postgres", durable=False) as server:
        await migrate(server.dsn)
        with contextlib.ExitStack() as stack:
            async with running(server.dsn) as here:
                await here.until_everything_turns()
                stack.enter_context(stopped(server))
