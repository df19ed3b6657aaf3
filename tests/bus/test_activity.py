"""Test that the bus knows which workspaces are in use, and since when its data is complete."""

import asyncio
import sys
import time

import pytest

from tests.support.valkey import AT_ONCE_S
from tests.support.waiting import until
from torpor.bus.activity import AT_ONCE, RedisActivity
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.domain.errors import Unavailable
from torpor.ports import ClosedConnection, Use

pytestmark = pytest.mark.anyio

IDLE_S = 300.0
LEASE_S = 30.0

# A proxy that takes a lease, prints that, and then hangs.
HOLDER = """
import asyncio, sys
from torpor.bus.activity import RedisActivity
from torpor.bus.redis import Bus

async def main() -> None:
    await RedisActivity(await Bus.open(sys.argv[1])).renew({"w": frozenset({"of the dead"})}, lease_s=float(sys.argv[2]))
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def use_of(activity: RedisActivity, workspace_id: str = "w") -> Use:
    return (await activity.uses([workspace_id]))[workspace_id]


async def connections_of(activity: RedisActivity, workspace_id: str = "w") -> int:
    return (await use_of(activity, workspace_id)).connections


@pytest.fixture
def activity(bus: Bus) -> RedisActivity:
    return RedisActivity(bus)


async def test_a_busy_workspace_is_reported_with_its_reason_until_the_lease_expires(activity: RedisActivity) -> None:
    await activity.busy({"w": "the command 'make' runs in a terminal", "x": "it uses 7% of a core"}, lease_s=0.3)
    assert await activity.uses(["w", "x", "y"]) == {
        "w": Use(busy="the command 'make' runs in a terminal"),
        "x": Use(busy="it uses 7% of a core"),
        "y": Use(),
    }

    async def is_forgotten() -> bool:
        return await activity.uses(["w", "x"]) == {"w": Use(), "x": Use()}

    await until(is_forgotten)


async def test_an_unknown_workspace_has_no_use(activity: RedisActivity) -> None:
    assert await activity.uses(["a", "b"]) == {"a": Use(0, None), "b": Use(0, None)}
    assert await activity.uses([]) == {}


async def test_empty_updates_write_no_keys(bus: Bus, activity: RedisActivity) -> None:
    await activity.renew({}, lease_s=LEASE_S)
    await activity.renew({"w": frozenset()}, lease_s=LEASE_S)
    await activity.touch({})
    assert await bus.ask(("DBSIZE",)) == [0]


async def test_each_connection_counts_once_and_for_its_own_workspace(activity: RedisActivity) -> None:
    leases = {"a": frozenset({"1", "2"}), "b": frozenset({"3"})}
    await activity.renew(leases, lease_s=LEASE_S)
    await activity.renew(leases, lease_s=LEASE_S)
    await activity.renew({"b": frozenset({"4"})}, lease_s=LEASE_S)
    assert await activity.uses(["a", "b", "c"]) == {"a": Use(2), "b": Use(2), "c": Use(0)}


async def test_a_lease_expires_unless_it_is_renewed(bus: Bus, activity: RedisActivity) -> None:
    await activity.renew({"w": frozenset({"short", "long"})}, lease_s=0.3)
    await activity.renew({"w": frozenset({"long"})}, lease_s=LEASE_S)
    assert await connections_of(activity) == 2

    async def one_is_left() -> bool:
        return await connections_of(activity) == 1

    await until(one_is_left)
    # The expired lease does not prevent the timer when the other connection closes.
    await activity.release([ClosedConnection("w", "long", IDLE_S)])
    use = await use_of(activity)
    assert use.connections == 0
    assert use.idle_timer_s == pytest.approx(IDLE_S, abs=5)


async def test_the_key_expires_with_its_last_lease(bus: Bus, activity: RedisActivity) -> None:
    await activity.renew({"w": frozenset({"long"})}, lease_s=LEASE_S)
    await activity.renew({"w": frozenset({"short"})}, lease_s=0.1)
    left_ms, latest = await bus.ask(("PTTL", "ws_conn:w"), ("ZSCORE", "ws_conn:w", "long"))
    assert 0 < left_ms <= LEASE_S * 1000
    (expires_ms,) = await bus.ask(("PEXPIRETIME", "ws_conn:w"))
    assert expires_ms == int(latest)

    await activity.renew({"v": frozenset({"only"})}, lease_s=0.05)

    async def is_gone() -> bool:
        return await bus.ask(("EXISTS", "ws_conn:v")) == [0]

    await until(is_gone)


async def test_the_lease_of_a_killed_holder_expires_and_the_others_stay(redis_url: str, activity: RedisActivity) -> None:
    await activity.renew({"w": frozenset({"of the living"})}, lease_s=LEASE_S)
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, redis_url, "1.5"), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout
    assert await holder.stdout.readline() == b"ready\n"
    assert await connections_of(activity) == 2
    holder.kill()
    await holder.wait()

    async def one_is_left() -> bool:
        return await connections_of(activity) == 1

    await until(one_is_left)


async def test_only_the_last_close_starts_the_idle_timer(activity: RedisActivity) -> None:
    await activity.renew({"w": frozenset({"1", "2"})}, lease_s=LEASE_S)
    await activity.release([ClosedConnection("w", "1", IDLE_S)])
    assert await use_of(activity) == Use(1, None)
    await activity.release([ClosedConnection("w", "1", IDLE_S)])
    assert await use_of(activity) == Use(1, None)
    await activity.release([ClosedConnection("w", "2", IDLE_S)])
    use = await use_of(activity)
    assert use.connections == 0
    assert use.idle_timer_s == pytest.approx(IDLE_S, abs=5)


async def test_of_concurrent_closes_exactly_the_last_starts_the_timer(bus: Bus, activity: RedisActivity) -> None:
    for attempt in range(5):
        names = frozenset(str(number) for number in range(40))
        workspace_id = f"w{attempt}"
        await activity.renew({workspace_id: names}, lease_s=LEASE_S)
        await asyncio.gather(*(activity.release([ClosedConnection(workspace_id, name, IDLE_S)]) for name in names))
        use = await use_of(activity, workspace_id)
        assert use.connections == 0
        assert use.idle_timer_s


async def test_closing_an_unknown_connection_starts_the_timer(activity: RedisActivity) -> None:
    await activity.release([ClosedConnection("w", "unheard of", IDLE_S)])
    assert (await use_of(activity)).idle_timer_s


async def test_many_connections_are_closed_at_once(activity: RedisActivity) -> None:
    ids = [f"w{number}" for number in range(2 * AT_ONCE + 1)]
    await activity.renew({one: frozenset({"1", "2"}) for one in ids}, lease_s=LEASE_S)
    await activity.release([ClosedConnection(one, "1", IDLE_S) for one in ids])
    await activity.release([ClosedConnection(one, "2", IDLE_S) for one in ids[::2]])
    await activity.release([])
    uses = await activity.uses(ids)
    assert [uses[one].connections for one in ids] == [at % 2 for at in range(len(ids))]
    assert [uses[one].idle_timer_s is not None for one in ids] == [at % 2 == 0 for at in range(len(ids))]


async def test_each_touch_restarts_the_timer(activity: RedisActivity) -> None:
    await activity.touch({"a": 10.0, "b": 20.5})
    await activity.touch({"a": 100.0})
    uses = await activity.uses(["a", "b"])
    assert uses["a"].idle_timer_s == pytest.approx(100, abs=5)
    assert uses["b"].idle_timer_s == pytest.approx(20.5, abs=5)
    assert uses["a"].connections == 0


async def test_the_timer_expires(activity: RedisActivity) -> None:
    await activity.touch({"w": 0.2, "at once": 0.0})
    assert (await use_of(activity)).idle_timer_s

    async def both_ran_out() -> bool:
        return await activity.uses(["w", "at once"]) == {"w": Use(), "at once": Use()}

    await until(both_ran_out)


async def test_many_workspaces_are_read_at_once_and_returned_in_order(activity: RedisActivity) -> None:
    ids = [f"w{number}" for number in range(2 * AT_ONCE + 1)]
    await activity.renew({ids[at]: frozenset(map(str, range(at % 3))) for at in range(len(ids))}, lease_s=LEASE_S)
    await activity.touch(dict.fromkeys(ids[::2], IDLE_S))
    uses = await activity.uses(ids)
    assert list(uses) == ids
    assert [uses[workspace_id].connections for workspace_id in ids] == [at % 3 for at in range(len(ids))]
    assert [uses[workspace_id].idle_timer_s is not None for workspace_id in ids] == [at % 2 == 0 for at in range(len(ids))]


async def test_the_clock_of_the_client_does_not_matter(activity: RedisActivity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    await activity.renew({"w": frozenset({"1"})}, lease_s=LEASE_S)
    assert await connections_of(activity) == 1


async def test_the_age_of_the_data_counts_from_the_first_read(bus: Bus, activity: RedisActivity) -> None:
    assert await activity.memory_s() == 0.0

    async def has_grown() -> bool:
        return await activity.memory_s() > 0.05

    await until(has_grown)
    # Every other client gets the same count.
    assert await RedisActivity(bus).memory_s() > 0.05


async def test_concurrent_first_reads_start_one_count(bus: Bus, activity: RedisActivity) -> None:
    await asyncio.gather(*(activity.memory_s() for _ in range(20)))
    (since,) = await bus.ask(("GET", "torpor:memory"))
    await asyncio.gather(*(activity.memory_s() for _ in range(20)))
    assert await bus.ask(("GET", "torpor:memory")) == [since]


@pytest.mark.parametrize("how", [("FLUSHALL",), ("SET", "torpor:memory", "nonsense"), ("DEL", "torpor:memory")])
async def test_lost_data_resets_the_age(bus: Bus, activity: RedisActivity, how: tuple[str, ...]) -> None:
    await activity.memory_s()

    async def has_grown() -> bool:
        return await activity.memory_s() > 0

    await until(has_grown)
    await bus.ask(how)
    assert await activity.memory_s() == 0.0
    await until(has_grown)


async def test_evicted_keys_reset_the_age(own_bus: Bus) -> None:
    activity = RedisActivity(own_bus)
    await own_bus.ask(("CONFIG", "SET", "maxmemory-policy", "volatile-lru"))
    await activity.memory_s()

    async def has_grown() -> bool:
        return await activity.memory_s() > 0

    await until(has_grown)
    await own_bus.ask(("SET", "heavy", "x" * 4_000_000, "PX", 60_000))
    (about,) = await own_bus.ask(("INFO", "memory"))
    await own_bus.ask(("CONFIG", "SET", "maxmemory", about["used_memory"] - 1_000_000))
    await activity.touch({"w": IDLE_S})
    assert await own_bus.ask(("EXISTS", "torpor:memory")) == [1]
    assert await activity.memory_s() == 0.0
    await until(has_grown)


async def test_the_age_is_counted_without_permission_for_info(redis_url: str, bus: Bus) -> None:
    await bus.ask(("ACL", "SETUSER", "humble", "on", "nopass", "~*", "+@all", "-info"))
    humble = await Bus.open(f"{redis_url}?username=humble&password=any")
    try:
        assert await RedisActivity(humble).memory_s() == 0.0

        async def has_grown() -> bool:
            return await RedisActivity(humble).memory_s() > 0

        await until(has_grown)
    finally:
        await humble.close()
        await bus.ask(("ACL", "DELUSER", "humble"))


async def test_a_restart_keeps_leases_and_timers_and_resets_the_age(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    activity = RedisActivity(own_bus)
    await activity.memory_s()
    await activity.renew({"w": frozenset({"1"})}, lease_s=LEASE_S)
    await activity.touch({"w": IDLE_S})

    async def has_grown() -> bool:
        return await activity.memory_s() > 0

    await until(has_grown)
    await own_valkey.stop()
    await own_valkey.start()
    # A client that could not renew meanwhile may still have an open connection.
    assert await activity.memory_s() == 0.0
    await until(has_grown)
    use = await use_of(activity)
    assert use.connections == 1
    assert use.idle_timer_s


async def test_every_call_fails_at_once_while_the_bus_is_down_and_works_afterwards(
    own_valkey: EmbeddedValkey, own_bus: Bus
) -> None:
    activity = RedisActivity(own_bus)
    await activity.touch({"w": IDLE_S})
    await own_valkey.stop()
    for verb in (
        activity.renew({"w": frozenset({"1"})}, lease_s=LEASE_S),
        activity.release([ClosedConnection("w", "1", IDLE_S)]),
        activity.touch({"w": IDLE_S}),
        activity.uses(["w"]),
        activity.memory_s(),
    ):
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(Unavailable):
                await verb
    await own_valkey.start()
    assert (await use_of(activity)).idle_timer_s
