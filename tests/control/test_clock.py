"""Jumps of the database's clock, forward and back, do not harm a workspace."""

import asyncpg
import pytest

from tests.control.test_membership import Node, leaders, nodes
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.idle_stage import TERM, idle_stage
from tests.support.waiting import until
from torpor.domain.states import Phase, Wish
from torpor.ports import Home

pytestmark = pytest.mark.anyio

# Functions with the same names come first in the search path, so that every query of the product gets the shifted time.
CLOCK = """
CREATE SCHEMA shifted;
CREATE TABLE shifted.by (amount interval NOT NULL);
INSERT INTO shifted.by VALUES (interval '0');
CREATE FUNCTION shifted.now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT pg_catalog.now() + amount FROM shifted.by';
CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + amount FROM shifted.by';
GRANT USAGE ON SCHEMA shifted TO PUBLIC;
GRANT SELECT ON shifted.by TO PUBLIC;
"""


@pytest.fixture
async def clock(database_url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(database_url)
    await connection.execute(CLOCK)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET search_path = shifted, public, pg_catalog")
    return connection


async def set_clock(clock: asyncpg.Connection, amount: str) -> None:
    await clock.execute("UPDATE shifted.by SET amount = $1::text::interval", amount)


JUMPS = [("2 hours", "0"), ("-2 hours", "0"), ("2 hours", "-2 hours", "0")]


@pytest.mark.parametrize("jumps", JUMPS, ids=" ".join)
async def test_a_clock_jump_harms_no_workspace(database_url: str, clock: asyncpg.Connection, jumps: tuple[str, ...]) -> None:
    async with control_plane(database_url) as here:
        for name in ("runs", "sleeps", "moves"):
            await here.wishes.create(here.user, name=name)
            await here.until_phase(name, Phase.RUNNING)
        await write_note(here, "sleeps")
        await here.wishes.wish(here.user, "sleeps", Wish.ARCHIVED)
        await here.until_phase("sleeps", Phase.ARCHIVED)
        for jump in jumps:
            await here.wishes.wish(here.user, "moves", Wish.STANDBY)
            await set_clock(clock, jump)
            assert (await here.show("runs")).phase is Phase.RUNNING
            await here.until_phase("moves", Phase.STANDBY)
            await here.wishes.wish(here.user, "moves", Wish.RUNNING)
            await here.until_phase("moves", Phase.RUNNING)
        await here.wishes.wish(here.user, "sleeps", Wish.RUNNING)
        awake = await here.until_phase("sleeps", Phase.RUNNING)
        assert here.world.volumes[Home(awake.id, awake.generation)].files["note"] == b"hello"
        assert [(await here.show(name)).error for name in ("runs", "sleeps", "moves")] == [None, None, None]
    await clock.close()


@pytest.mark.parametrize("jumps", JUMPS, ids=" ".join)
async def test_controllers_continue_and_one_leads_after_every_clock_jump(
    database_url: str, clock: asyncpg.Connection, jumps: tuple[str, ...]
) -> None:
    async with nodes(database_url, "ada", "bob") as both:
        await until_settled(both, clock)
        for jump in jumps:
            await set_clock(clock, jump)
            await until_settled(both, clock)
    await clock.close()


async def until_settled(among: list[Node], clock: asyncpg.Connection) -> None:
    """Each controller knows all others, and one leads: its duties continue, with the term in the database."""
    before = sum(len(node.duty.terms) for node in among)

    async def is_settled() -> bool:
        term = await clock.fetchval("SELECT epoch FROM system_locks WHERE lock_name = 'leader'")
        led = [node.coordinator.term for node in leaders(among)] == [term]
        known = all(len(node.coordinator.members) == len(among) for node in among)
        return led and known and sum(len(node.duty.terms) for node in among) > before + 10

    await until(is_settled)


async def test_a_clock_jump_stops_no_workspace_in_use(database_url: str, redis_url: str, clock: asyncpg.Connection) -> None:
    async with idle_stage(database_url, redis_url) as night:
        names = ("connected", "touched", "unused", "later")
        connected, touched, unused, later = [await night.workspace(name, idle_s=0) for name in names]
        await night.set(touched, "standby_ttl_s = 100")
        await night.set(later, "standby_ttl_s = 10000")
        await night.remembers()
        await night.activity.renew({connected.id: frozenset({"a-connection"})}, lease_s=600)
        await night.activity.touch({touched.id: 100})
        for jump in ("2 hours", "-2 hours", "0"):
            await set_clock(clock, jump)
            await night.watch.do(TERM)
            awake = [await night.wish_of(one) for one in (connected, touched, later)]
            assert awake == [Wish.RUNNING, Wish.RUNNING, Wish.RUNNING], jump
        assert await night.wish_of(unused) is Wish.STANDBY, "the watch did a turn"
    await clock.close()


async def test_the_clock_of_the_test_is_the_clock_of_the_product(database_url: str, clock: asyncpg.Connection) -> None:
    async with control_plane(database_url, runs=False) as here:
        await set_clock(clock, "2 hours")
        loaded = await here.controller_store.load_these(here.hold(), frozenset())
        real = await clock.fetchval("SELECT pg_catalog.clock_timestamp()")
        assert 7100 < (loaded.now - real).total_seconds() < 7300
    await clock.close()


async def write_note(here: ControlPlane, name: str) -> None:
    seen = await here.show(name)
    here.world.volumes[Home(seen.id, seen.generation)].files["note"] = b"hello"
