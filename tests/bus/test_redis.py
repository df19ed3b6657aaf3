"""Test that errors of Redis are translated in time, and contain no password."""

import asyncio
import os
import signal
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.valkey import pid_of
from torpor.bus import embedded
from torpor.bus import redis as redis_module
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.domain.errors import Refused, Unavailable

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t"


@pytest.fixture
def free_port() -> Iterator[int]:
    """A bound port without a listener, so that no other process can use it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_redis_is_reachable_and_answers_in_order(bus: Bus) -> None:
    assert await bus.reachable()
    assert await bus.ask(("SET", "key", "1"), ("INCR", "key"), ("GET", "key")) == [True, 2, b"2"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        f"http://user:{SECRET}@host",
        f"redis://user:{SECRET}/more@host:1",  # an unquoted slash: urllib's own error would repeat the password
        f"redis://:{SECRET}@host:99999999",
        f"redis://:{SECRET}@host?no_such_option=1",
        f"redis://:{SECRET}@host?db=x",
        f"redis://:{SECRET}@[::1",
    ],
)
async def test_a_malformed_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Refused) as refused:
        await Bus.open(url)
    assert refused.value.code == "bad_redis"
    assert SECRET not in "".join(traceback.format_exception(refused.value))


async def test_a_wrong_login_is_refused_without_repeating_it(redis_url: str, bus: Bus) -> None:
    await bus.ask(("ACL", "SETUSER", "guarded", "on", ">right", "~*", "+@all"))
    try:
        with pytest.raises(Refused) as refused:
            await Bus.open(f"{redis_url}?username=guarded&password={SECRET}")
        assert refused.value.code == "bad_redis"
        assert SECRET not in "".join(traceback.format_exception(refused.value))
        right = await Bus.open(f"{redis_url}?username=guarded&password=right")
        assert await right.reachable()
        await right.close()
    finally:
        await bus.ask(("ACL", "DELUSER", "guarded"))


async def test_a_user_without_permission_for_info_can_use_the_bus(redis_url: str, bus: Bus) -> None:
    await bus.ask(("ACL", "SETUSER", "humble", "on", "nopass", "~*", "+@all", "-info"))
    try:
        humble = await Bus.open(f"{redis_url}?username=humble&password=any")
        assert await humble.reachable()
        await humble.close()
    finally:
        await bus.ask(("ACL", "DELUSER", "humble"))


async def test_a_missing_database_index_is_refused(redis_url: str) -> None:
    with pytest.raises(Refused, match="DB index"):
        await Bus.open(f"{redis_url}?db=4711")


async def test_options_of_the_address_do_not_change_what_we_rely_on(redis_url: str) -> None:
    bus = await Bus.open(f"{redis_url}?decode_responses=True&protocol=3&socket_timeout=900")
    assert await bus.ask(("SET", "key", "1"), ("GET", "key")) == [True, b"1"]
    await bus.close()


async def test_an_unreachable_redis_does_not_prevent_the_start(free_port: int) -> None:
    bus = await Bus.open(f"redis://:{SECRET}@127.0.0.1:{free_port}/0")
    assert not await bus.reachable()
    with pytest.raises(Unavailable) as out:
        await bus.ask(("PING",))
    assert SECRET not in "".join(traceback.format_exception(out.value))
    await bus.close()


async def test_an_error_of_the_server_is_unavailable(bus: Bus) -> None:
    with pytest.raises(Unavailable, match="WRONGTYPE"):
        await bus.ask(("SET", "key", "1"), ("ZADD", "key", "1", "x"))
    assert await bus.reachable()


async def test_a_restart_causes_no_errors(own_valkey: EmbeddedValkey, own_bus: Bus) -> None:
    await asyncio.gather(*(own_bus.ask(("PING",)) for _ in range(30)))  # every connection of the pool has been used
    await own_valkey.stop()
    await own_valkey.start()
    await asyncio.gather(*(own_bus.ask(("PING",)) for _ in range(30)))


async def test_a_hanging_redis_times_out_and_is_used_again_afterwards(
    own_valkey: EmbeddedValkey, own_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "COMMAND_TIMEOUT_S", 0.3)
    os.kill(pid_of(own_valkey), signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            await own_bus.ask(("PING",))
        assert not await own_bus.reachable()
    finally:
        os.kill(pid_of(own_valkey), signal.SIGCONT)
    monkeypatch.undo()
    assert await own_bus.reachable()


async def test_a_cancelled_call_leaves_no_reply_for_the_next(bus: Bus) -> None:
    await bus.ask(("SET", "key", "mine"))
    for _ in range(20):
        asking = asyncio.create_task(bus.ask(*[("ECHO", "theirs")] * 1000))
        await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await bus.ask(("GET", "key")) == [b"mine"]


async def test_more_calls_than_connections_are_all_answered(redis_url: str) -> None:
    bus = await Bus.open(redis_url, connections=2)
    answers = await asyncio.gather(*(bus.ask(("ECHO", str(number))) for number in range(200)))
    assert answers == [[str(number).encode()] for number in range(200)]
    await bus.close()


@pytest.mark.parametrize(
    ("settings", "is_warned"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, True),
        ({"maxmemory": "100mb", "maxmemory-policy": "noeviction"}, False),
        ({"maxmemory": "0", "maxmemory-policy": "allkeys-lru"}, False),
    ],
)
async def test_a_redis_that_may_evict_keys_is_logged(
    own_bus: Bus, own_valkey: EmbeddedValkey, settings: dict[str, str], is_warned: bool
) -> None:
    for name, value in settings.items():
        await own_bus.ask(("CONFIG", "SET", name, value))
    with capture_logs() as logs:
        await (await Bus.open(own_valkey.url)).close()
    assert ["bus_may_forget" in entry["event"] for entry in logs] == [True] * is_warned


async def test_a_cluster_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.SETTINGS, "cluster-enabled", "yes")
    async with EmbeddedValkey(tmp_path / "bus") as server:
        with pytest.raises(Refused, match="Cluster"):
            await Bus.open(server.url)


async def test_a_cancellation_is_never_swallowed(redis_url: str) -> None:
    """Otherwise a caller that cancels a task and waits for its end would hang."""
    bus = await Bus.open(redis_url)
    ended_as = set()
    for number in range(300):

        async def ask_for_ever() -> None:
            while True:
                await bus.ask(("PING",))

        task = asyncio.create_task(ask_for_ever())
        await asyncio.sleep(0.0001 * (number % 7))
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=5)
        assert done, "it goes on though it was cancelled"
        ended_as.add(task.cancelled())
    assert ended_as == {True}
    await bus.close()
