"""Test that failed sign-ins are limited for their address and name only, with and without the bus."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.waiting import until
from torpor.bus import login_throttle as throttle_module
from torpor.bus.login_throttle import OF_ONE_ADDRESS, OF_ONE_NAME, REMEMBERED, WINDOW_S, Throttle
from torpor.bus.redis import Bus
from torpor.domain.errors import Refused

pytestmark = pytest.mark.anyio


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["bus", "alone"])
async def throttle(request: pytest.FixtureRequest, redis_url: str, clock: Clock) -> AsyncIterator[Throttle]:
    """`alone`: the bus is unreachable."""
    bus = await Bus.open(redis_url if request.param == "bus" else "unix:///nowhere/bus.sock")
    yield Throttle(bus, clock=clock)
    await bus.close()


async def is_admitted(throttle: Throttle, username: str, address: str) -> bool:
    try:
        await throttle.admit(username, address)
    except Refused as refused:
        wait_s = refused.context["retry_after_s"]
        return not (refused.code == "too_many_sign_ins" and isinstance(wait_s, int) and 0 < wait_s <= WINDOW_S)
    return True


async def admitted(throttle: Throttle, username: str, address: str, times: int) -> int:
    return sum([await is_admitted(throttle, username, address) for _ in range(times)])


async def test_attempts_for_one_name_from_one_address_are_limited(throttle: Throttle) -> None:
    assert await admitted(throttle, "ada", "192.0.2.1", OF_ONE_NAME + 5) == OF_ONE_NAME
    assert await is_admitted(throttle, "ada", "192.0.2.2")
    assert await is_admitted(throttle, "bob", "192.0.2.1")


async def test_attempts_for_many_names_from_one_address_are_limited(throttle: Throttle) -> None:
    tried = [await is_admitted(throttle, f"user{number}", "192.0.2.1") for number in range(OF_ONE_ADDRESS + 5)]
    assert sum(tried) == OF_ONE_ADDRESS
    assert await is_admitted(throttle, "user0", "192.0.2.2")


async def test_a_thousand_concurrent_attempts_have_the_same_limit(throttle: Throttle) -> None:
    tried = await asyncio.gather(*(is_admitted(throttle, "ada", "192.0.2.1") for _ in range(1000)))
    assert sum(tried) == OF_ONE_NAME


async def test_a_correct_password_resets_the_count(throttle: Throttle) -> None:
    for _ in range(2 * OF_ONE_ADDRESS):
        assert await is_admitted(throttle, "ada", "192.0.2.1")
        await throttle.forgive("ada", "192.0.2.1")


async def test_a_success_resets_no_other_count(throttle: Throttle) -> None:
    await admitted(throttle, "ada", "192.0.2.1", OF_ONE_NAME)
    assert await is_admitted(throttle, "bob", "192.0.2.1")
    await throttle.forgive("bob", "192.0.2.1")
    assert not await is_admitted(throttle, "ada", "192.0.2.1")


async def test_an_ipv6_network_counts_as_one_address(throttle: Throttle) -> None:
    tried = [await is_admitted(throttle, "ada", f"2001:db8::{number:x}") for number in range(OF_ONE_NAME + 5)]
    assert sum(tried) == OF_ONE_NAME
    assert await is_admitted(throttle, "ada", "2001:db8:0:1::1")
    assert await admitted(throttle, "ada", "::ffff:192.0.2.1", OF_ONE_NAME) == OF_ONE_NAME
    assert not await is_admitted(throttle, "ada", "192.0.2.1")


async def test_an_unknown_address_counts_as_one_address(throttle: Throttle) -> None:
    assert await admitted(throttle, "ada", "", OF_ONE_NAME + 1) == OF_ONE_NAME


async def test_a_window_expires(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle_module, "WINDOW_S", 1)
    bus = await Bus.open(redis_url)
    throttle = Throttle(bus)
    assert await admitted(throttle, "ada", "192.0.2.1", OF_ONE_NAME + 1) == OF_ONE_NAME
    await until(lambda: is_admitted(throttle, "ada", "192.0.2.1"), within_s=20)
    # Every key expires: -1 would be a key without expiry, -2 is one that has expired meanwhile.
    (keys,) = await bus.ask(("KEYS", "torpor:sign_in:*"))
    assert -1 not in await bus.ask(*(("PTTL", key) for key in keys))
    await bus.close()


async def test_a_window_expires_without_the_bus(clock: Clock) -> None:
    bus = await Bus.open("unix:///nowhere/bus.sock")
    throttle = Throttle(bus, clock=clock)
    assert await admitted(throttle, "ada", "192.0.2.1", OF_ONE_NAME + 1) == OF_ONE_NAME
    clock.now += WINDOW_S
    assert await admitted(throttle, "ada", "192.0.2.1", OF_ONE_NAME + 1) == OF_ONE_NAME
    await bus.close()


async def test_two_processes_count_together(redis_url: str) -> None:
    buses = [await Bus.open(redis_url) for _ in range(2)]
    one, other = (Throttle(bus) for bus in buses)
    assert await admitted(one, "ada", "192.0.2.1", OF_ONE_NAME - 1) == OF_ONE_NAME - 1
    assert await admitted(other, "ada", "192.0.2.1", 2) == 1
    for bus in buses:
        await bus.close()


async def test_keys_contain_no_names_or_addresses(bus: Bus) -> None:
    await Throttle(bus).admit("a password in the wrong field", "192.0.2.1")
    (keys,) = await bus.ask(("KEYS", "*"))
    assert keys
    assert not any(b"password" in key or b"192" in key for key in keys)


async def test_the_local_counts_are_limited(clock: Clock) -> None:
    counts = throttle_module._LocalThrottle(clock)
    for number in range(REMEMBERED + 10):
        counts.admit({f"key{number}": 1})
    assert len(counts.counts) == REMEMBERED


async def test_only_the_first_refusal_of_a_limit_is_reported_as_new(throttle: Throttle) -> None:
    await admitted(throttle, "ada", "192.0.2.1", OF_ONE_NAME)
    news = []
    for _ in range(3):
        with pytest.raises(throttle_module.TooManySignIns) as refused:
            await throttle.admit("ada", "192.0.2.1")
        news.append(refused.value.is_news)
    assert news == [True, False, False]
