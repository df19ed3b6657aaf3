"""Members join and expire, share the shards, and elect one leader."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.control_plane import FAST, make_controller
from tests.support.relay import Relay
from tests.support.users import person
from tests.support.waiting import until
from torpor.control import membership
from torpor.control.coordinator import Coordinator, LeaderLockOptions
from torpor.control.membership import HeartbeatOptions, Membership, NodeIdentity
from torpor.control.runtime_sight import RuntimeSight
from torpor.domain.errors import Deposed, Refused
from torpor.domain.shards import ALL_SHARDS
from torpor.domain.unconfined import CONFINED, ControllerConfinement, MissingProtection
from torpor.store import leader_lock
from torpor.store.controller_store import ControllerStore
from torpor.store.database import Database, Role
from torpor.store.embedded import PORT, EmbeddedPostgres
from torpor.store.leader_lock import Leadership, require_term
from torpor.testing.fake_runtime import FakeWorld

pytestmark = pytest.mark.anyio

QUICK = HeartbeatOptions(interval_s=0.05, expiry_s=0.5)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[ControllerStore]:
    database = await Database.open(database_url, Role.CONTROLLER)
    yield ControllerStore(database, provider="fake")
    await database.close()


def member(store: ControllerStore, node_id: str, *, world: str = "fake:w", exclusive: bool = False) -> Membership:
    return Membership(store, NodeIdentity(node_id, world, exclusive), QUICK)


@contextlib.asynccontextmanager
async def kept(membership: Membership) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(membership.keep())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Sight:
    """What a member says about its runtime in its heartbeats, and how many times it was asked."""

    def __init__(self) -> None:
        self.is_now = RuntimeSight.SILENT
        self.asked = 0

    def __call__(self) -> RuntimeSight:
        self.asked += 1
        return self.is_now


async def test_a_member_whose_runtime_is_silent_ends_its_life_only_if_another_one_is_answered(
    store: ControllerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "OTHERS_ANSWERED_S", 600.0)
    unhurried, of_ada, of_bob = HeartbeatOptions(interval_s=0.05, expiry_s=60), Sight(), Sight()
    ada = Membership(store, NodeIdentity("ada", "fake:w", False), unhurried, sight=of_ada)
    bob = Membership(store, NodeIdentity("bob", "fake:w", False), unhurried, sight=of_bob)
    await ada.join()
    await bob.join()
    async with kept(ada) as ada_lives, kept(bob) as bob_lives:
        # Each asks once more after a heartbeat that has read what the other one wrote.
        await until(lambda: min(of_ada.asked, of_bob.asked) >= 3)
        assert await store_says(store, {"ada": False, "bob": False})
        assert not ada_lives.done()
        assert not bob_lives.done()
        of_bob.is_now = RuntimeSight.ANSWERS
        await until(lambda: store_says(store, {"ada": False, "bob": True}))
        asked = of_ada.asked
        await until(lambda: of_ada.asked >= asked + 3)
        assert not ada_lives.done(), "at the end of an outage, it will be answered soon, too"
        monkeypatch.setattr(membership, "OTHERS_ANSWERED_S", 0.1)
        await until(ada_lives.done)
        with pytest.raises(Deposed, match="bob, which it answers, takes over"):
            ada_lives.result()
        await ada.leave()
        await until(lambda: bob.shards == ALL_SHARDS)
        assert await store_says(store, {"bob": True})
        assert not bob_lives.done()


async def store_says(store: ControllerStore, expected: dict[str, bool]) -> bool:
    return {one.node_id: one.sees_runtime for one in await store.members()} == expected


async def test_shards_are_divided_among_live_controllers_and_return_when_one_expires(store: ControllerStore) -> None:
    ada, bob = member(store, "ada"), member(store, "bob")
    await ada.join()
    assert ada.shards == ALL_SHARDS
    async with kept(ada):
        await bob.join()
        async with kept(bob):
            await until(lambda: ada.shards != ALL_SHARDS)
            assert ada.shards | bob.shards == ALL_SHARDS
            assert not ada.shards & bob.shards
        # bob does not leave: its heartbeats stop.
        await until(lambda: ada.shards == ALL_SHARDS)


async def test_the_shards_of_a_controller_that_leaves_are_taken_over_at_once(store: ControllerStore) -> None:
    ada = Membership(store, NodeIdentity("ada", "fake:w", False), HeartbeatOptions(interval_s=0.05, expiry_s=60))
    bob = Membership(store, NodeIdentity("bob", "fake:w", False), HeartbeatOptions(interval_s=0.05, expiry_s=60))
    await ada.join()
    await bob.join()
    async with kept(ada):
        await until(lambda: ada.shards != ALL_SHARDS)
        await bob.leave()
        await until(lambda: ada.shards == ALL_SHARDS)


async def is_expired(store: ControllerStore, life: int) -> bool:
    return not await store.lives(life)


async def test_a_late_heartbeat_does_not_renew_an_expired_life(store: ControllerStore) -> None:
    ada = member(store, "ada")
    await ada.join()
    await until(lambda: not ada.lives())
    # The database counts from a later moment than the controller, which began before its request.
    await until(lambda: is_expired(store, ada.life))
    with pytest.raises(Deposed):
        await ada.keep()
    assert not await store.live_on(ada.life, expiry_s=60, sees_runtime=True), "an expired life stays expired"
    before = ada.life
    await ada.join()
    assert ada.life > before
    assert ada.lives()


async def test_a_life_ends_by_its_own_clock_without_the_database(database_url: str) -> None:
    database = await Database.open(database_url, Role.CONTROLLER)
    ada = member(ControllerStore(database, provider="fake"), "ada")
    await ada.join()
    await database.close()
    with pytest.raises(Deposed):
        async with asyncio.timeout(10):
            await ada.keep()


async def test_controllers_of_different_engines_do_not_share_a_database(store: ControllerStore) -> None:
    await member(store, "ada", world="fake:one").join()
    with pytest.raises(Refused, match="another Torpor controls this database"):
        await member(store, "bob", world="fake:other").join()
    await member(store, "bob", world="fake:other").join(within_s=5)


async def test_an_exclusive_engine_is_taken_over_at_once(store: ControllerStore) -> None:
    ada = Membership(store, NodeIdentity("ada", "process:p", True), HeartbeatOptions(interval_s=0.05, expiry_s=60))
    await ada.join()
    bob = member(store, "bob", world="process:p", exclusive=True)
    await bob.join()
    assert bob.shards == ALL_SHARDS
    assert not await store.lives(ada.life)


# ── what it confines ──────────────────────────────────────────────────────────────────────────────────────────────────

UNCONFINED = ControllerConfinement(
    (MissingProtection("network", "no bubblewrap", "apt-get install bubblewrap"),), port_warning="open"
)
ACCEPTED = replace(UNCONFINED, is_accepted=True)


def confining(store: ControllerStore, node_id: str, confinement: ControllerConfinement) -> Membership:
    """A membership that does not expire during a test, also on a slow machine."""
    return Membership(
        store, NodeIdentity(node_id, "fake:w", False, confinement), HeartbeatOptions(interval_s=0.05, expiry_s=600)
    )


async def sign_up(database_url: str, *usernames: str) -> None:
    database = await Database.open(database_url, Role.SERVICE)
    for username in usernames:
        await person(database, username)
    await database.close()


async def test_the_row_of_a_life_has_its_confinement(store: ControllerStore) -> None:
    told = {"ada": CONFINED, "bob": UNCONFINED, "cyd": ACCEPTED}
    for node_id, confinement in told.items():
        await confining(store, node_id, confinement).join()
    assert {one.node_id: one.confinement for one in await store.members()} == told


async def test_unknown_fields_of_the_confinement_are_ignored(store: ControllerStore, database_url: str) -> None:
    await confining(store, "ada", CONFINED).join()
    owner = await asyncpg.connect(database_url)
    newer = [{"what": "network", "why": "it is shared", "remedy": "", "unknown here": 1}]
    await owner.execute("UPDATE controllers SET missing = $1", json.dumps(newer))
    await owner.close()
    (ada,) = await store.members()
    assert [one.what for one in ada.confinement.missing] == ["network"]


async def test_an_unconfined_controller_does_not_join_where_there_are_several_users(
    store: ControllerStore, database_url: str
) -> None:
    await sign_up(database_url, "eve", "fay")
    began = time.monotonic()
    with pytest.raises(Refused, match=r"2 users can sign in.*apt-get install bubblewrap") as refused:
        await confining(store, "ada", UNCONFINED).join(within_s=60)
    assert refused.value.code == "unconfined"
    assert time.monotonic() - began < 30, "it does not wait for a permanent refusal"
    assert not await store.members()
    await confining(store, "ada", CONFINED).join()
    await confining(store, "bob", ACCEPTED).join()


async def test_users_who_cannot_sign_in_do_not_count(store: ControllerStore, database_url: str) -> None:
    await sign_up(database_url, "eve", "fay")
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE users SET is_active = false WHERE username = 'fay'")
    await connection.close()
    await confining(store, "ada", UNCONFINED).join()
    assert [one.node_id for one in await store.members()] == ["ada"]


# ── who leads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Count:
    """A duty that only counts its turns."""

    name: str = "count"
    interval_s: float = 0.02
    turn_s: float = 5.0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    terms: list[int] = field(default_factory=list)
    trouble: Exception | None = None
    rested: int = 0

    def rest(self) -> None:
        self.rested += 1

    async def do(self, term: int) -> None:
        self.terms.append(term)
        if self.trouble is not None:
            raise self.trouble


@dataclass
class Node:
    coordinator: Coordinator
    duty: Count
    task: "asyncio.Task[None]"

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def nodes(database_url: str, *names: str, duty: Count | None = None, lock_url: str = "") -> AsyncIterator[list[Node]]:
    async with contextlib.AsyncExitStack() as stack:
        made = []
        world = FakeWorld()
        for name in names:
            database = await Database.open(database_url, Role.CONTROLLER)
            stack.push_async_callback(database.close)
            store = ControllerStore(database, provider="fake")
            made.append(_node(lock_url or database_url, store, world, name, duty or Count()))
            stack.push_async_callback(made[-1].end)
        yield made


def _node(lock_url: str, store: ControllerStore, world: FakeWorld, name: str, duty: Count) -> Node:
    coordinator = Coordinator(
        store,
        NodeIdentity(name, "fake:w", False),
        QUICK,
        LeaderLockOptions(lock_url, lock_id=12345, retry_s=0.1),
        make_controller=lambda membership: make_controller(store, world, membership, FAST, parallel=4),
        duties=[duty],
        on_change=duty.wake.set,
    )
    return Node(coordinator, duty, asyncio.create_task(coordinator.run()))


def leaders(among: list[Node]) -> list[Node]:
    return [node for node in among if node.coordinator.is_leader]


async def test_one_controller_leads_and_its_successor_has_a_higher_term(database_url: str) -> None:
    async with nodes(database_url, "ada", "bob", "cyd") as all_of_them:
        await until(lambda: len(leaders(all_of_them)) == 1 and leaders(all_of_them)[0].duty.terms)
        (first,) = leaders(all_of_them)
        term = first.coordinator.term
        assert term is not None
        others = [node for node in all_of_them if node is not first]
        assert not any(node.duty.terms for node in others)
        await first.end()
        await until(lambda: any(node.duty.terms for node in others))
        (second,) = leaders(others)
        assert second.coordinator.term is not None
        assert second.coordinator.term > term


async def test_each_workspace_is_owned_by_one_controller(database_url: str) -> None:
    workspaces = [f"00000000-0000-4000-8000-{shard:012x}" for shard in ALL_SHARDS]
    async with nodes(database_url, "ada", "bob") as (ada, bob):

        def owners() -> set[tuple[bool, bool]]:
            return {(ada.coordinator.owns(one), bob.coordinator.owns(one)) for one in workspaces}

        await until(lambda: owners() == {(True, False), (False, True)})
        await ada.end()
        await until(lambda: owners() == {(False, True)})


async def test_the_uptime_is_that_of_the_process_also_of_a_follower(database_url: str) -> None:
    async with nodes(database_url, "ada", "bob") as both:
        await until(lambda: leaders(both))
        before = {node.coordinator.node_id: node.coordinator.uptime_s for node in both}
        assert min(before.values()) > 0
        (first,) = leaders(both)
        (other,) = (node for node in both if node is not first)
        await first.end()
        await until(lambda: leaders([other]))
        assert other.coordinator.uptime_s > before[other.coordinator.node_id], "it does not restart with the lead"


async def test_a_lost_connection_ends_the_lead_which_is_taken_again(database_url: str) -> None:
    async with nodes(database_url, "ada") as (ada,):
        await until(lambda: ada.duty.terms)
        before = ada.duty.terms[-1]
        owner = await asyncpg.connect(database_url)
        ended = await owner.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'torpor_leader'"
        )
        assert ended
        await until(lambda: ada.duty.terms[-1] > before)
        await owner.close()


async def test_a_half_open_connection_of_the_lock_does_not_prevent_a_new_leader(
    postgres: EmbeddedPostgres, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps the lock for a connection that is dead only for its client, and the client stays a member."""
    monkeypatch.setattr(leader_lock, "ASK_EVERY_S", 0.1)
    monkeypatch.setattr(leader_lock, "ANSWERS_WITHIN_S", 0.5)
    relay, login = Relay(postgres.socket / f".s.PGSQL.{PORT}"), urlsplit(database_url)
    async with relay.running():
        lock_url = f"postgresql://{login.username}:{login.password}@127.0.0.1:{relay.port}{login.path}"
        async with nodes(database_url, "ada", lock_url=lock_url) as (ada,):
            await until(lambda: ada.duty.terms)
            before = ada.duty.terms[-1]
            for link in relay.links:
                link.freeze()
            await until(lambda: ada.duty.terms[-1] > before, within_s=20)


@dataclass
class Stubborn(Count):
    """A duty that needs time to end after its cancellation."""

    is_ending: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def do(self, term: int) -> None:
        await super().do(term)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_ending.set()
            await self.may_end.wait()
            raise


async def test_a_cancellation_during_the_end_of_the_lead_does_not_interrupt_it(database_url: str) -> None:
    duty = Stubborn()
    async with nodes(database_url, "ada", duty=duty) as (ada,):
        await until(lambda: duty.terms)
        owner = await asyncpg.connect(database_url)
        await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'torpor_leader'")
        await duty.is_ending.wait()
        ada.task.cancel()
        await asyncio.sleep(0)
        duty.may_end.set()
        await asyncio.wait({ada.task})
        assert duty.rested == 1
        assert await owner.fetchval("SELECT controller IS NULL FROM system_locks")
        await owner.close()


async def test_a_silent_leader_is_replaced_and_its_term_ends(database_url: str) -> None:
    async with nodes(database_url, "ada") as (ada,):
        # A leader that was stopped (SIGSTOP): its connection holds the lock, its membership has expired.
        await until(lambda: ada.duty.terms)
        await ada.end()
        stopped = await asyncpg.connect(database_url, server_settings={"application_name": "torpor_leader"})
        await stopped.execute("SELECT pg_advisory_lock(12345)")
        await stopped.execute(
            "UPDATE system_locks SET holder_id = 'stopped', controller = 99999, backend = pg_backend_pid(), epoch = epoch + 1,"
            " acquired_at = now()"
        )
        term = await stopped.fetchval("SELECT epoch FROM system_locks")
        async with nodes(database_url, "bob") as (bob,):
            await until(lambda: bob.duty.terms)
            assert bob.duty.terms[0] > term
            await until(stopped.is_closed)
            late = await asyncpg.connect(database_url)
            with pytest.raises(Deposed):
                await require_term(late, term)
            await late.close()


async def test_a_leader_stopped_during_a_duty_does_not_block_the_next_term(database_url: str) -> None:
    async with nodes(database_url, "ada") as (ada,):
        await until(lambda: ada.duty.terms)
        await ada.end()
    stopped = await asyncpg.connect(database_url)
    await stopped.execute("BEGIN")
    assert await stopped.fetchval("SELECT leads(epoch) FROM system_locks")
    async with nodes(database_url, "bob") as (bob,):
        await until(lambda: bob.duty.terms)
        await until(stopped.is_closed)


async def test_a_new_holder_of_the_lock_has_time_to_begin_its_term(database_url: str) -> None:
    async with nodes(database_url, "ada") as (ada,):
        await until(lambda: ada.duty.terms)
        await ada.end()
    fresh = await Leadership.take(database_url, lock_id=12345, silent_after_s=60)
    assert fresh is not None
    assert await Leadership.take(database_url, lock_id=12345, silent_after_s=60) is None
    assert await fresh.begin_term("fresh", 1) > ada.duty.terms[-1], "it was left alone"
    await fresh.give_up()
    stuck = await Leadership.take(database_url, lock_id=12345, silent_after_s=60)
    assert stuck is not None
    await asyncio.sleep(0.2)
    successor = await Leadership.take(database_url, lock_id=12345, silent_after_s=0.1)
    assert successor is not None, "there was no term"
    await successor.give_up()
    await stuck.give_up()


async def test_a_foreign_lock_is_never_broken(database_url: str) -> None:
    foreign = await asyncpg.connect(database_url)
    await foreign.execute("SELECT pg_advisory_lock(12345)")
    assert await Leadership.take(database_url, lock_id=12345, silent_after_s=0.0) is None
    assert not foreign.is_closed()
    await foreign.close()


async def test_two_controllers_of_one_name_are_not_members_at_once(store: ControllerStore) -> None:
    await member(store, "ada").join()
    with pytest.raises(Refused, match="another controller is already named 'ada'"):
        await member(store, "ada").join()
    await member(store, "ada").join(within_s=5)


async def test_a_live_leader_is_not_replaced(database_url: str) -> None:
    async with nodes(database_url, "ada", "bob") as both:
        await until(lambda: len(leaders(both)) == 1)
        (first,) = leaders(both)
        term = first.coordinator.term
        await asyncio.sleep(1.5)  # several times the expiry, and many attempts of the other controller
        assert leaders(both) == [first]
        assert first.coordinator.term == term


async def test_a_failed_turn_of_a_duty_is_followed_by_the_next(database_url: str) -> None:
    async with nodes(database_url, "ada") as (ada,):
        await until(lambda: ada.duty.terms)
        ada.duty.trouble = ValueError("today it does not work")
        count = len(ada.duty.terms)
        # Repeated within one term: a busy machine may end a membership, and so a term, which is not tested here.
        await until(lambda: max(Counter(ada.duty.terms[count:]).values(), default=0) > 3)


async def test_a_deposed_duty_ends_the_lead(database_url: str) -> None:
    async with nodes(database_url, "ada") as (ada,):
        await until(lambda: ada.duty.terms)
        before = ada.duty.terms[-1]
        ada.duty.trouble = Deposed("somebody else leads")
        await until(lambda: ada.duty.terms[-1] > before)
