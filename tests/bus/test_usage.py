"""The series of CPU, memory and disk use on the bus."""

import time

import pytest

from torpor.bus.activity import AT_ONCE
from torpor.bus.redis import Bus
from torpor.bus.usage import MOST_SAMPLES, USAGE_S, RedisUsageSeries, usage_key
from torpor.domain.usage import Usage

pytestmark = pytest.mark.anyio


@pytest.fixture
def series(bus: Bus) -> RedisUsageSeries:
    return RedisUsageSeries(bus)


async def test_samples_are_kept_in_order_for_each_workspace(series: RedisUsageSeries) -> None:
    await series.append({"a": Usage(1.5, 1000), "b": Usage(0.25, 2000)})
    await series.append({"a": Usage(2.5, 3000)})
    assert [one.usage for one in await series.samples("a")] == [Usage(1.5, 1000), Usage(2.5, 3000)]
    assert [one.usage for one in await series.samples("b")] == [Usage(0.25, 2000)]
    assert await series.samples("c") == ()
    assert all(abs(one.at_s - time.time()) < 60 for one in await series.samples("a"))


async def test_a_series_has_a_maximum_length_and_expires(series: RedisUsageSeries, bus: Bus) -> None:
    for number in range(MOST_SAMPLES + 3):
        await series.append({"a": Usage(number, number)})
    kept = await series.samples("a")
    assert (len(kept), kept[0].usage, kept[-1].usage.memory_bytes) == (MOST_SAMPLES, Usage(3, 3), MOST_SAMPLES + 2)
    (left_s,) = await bus.ask(("TTL", usage_key("a")))
    assert 0 < left_s <= USAGE_S


async def test_more_workspaces_than_fit_in_one_script_are_stored(series: RedisUsageSeries) -> None:
    await series.append({})
    await series.append({f"w{number}": Usage(number, number) for number in range(AT_ONCE + 1)})
    assert [one.usage.memory_bytes for one in await series.samples(f"w{AT_ONCE}")] == [AT_ONCE]


async def test_measurements_of_the_disk_are_kept(series: RedisUsageSeries) -> None:
    await series.append_disk("a", 10)
    await series.append_disk("a", 20)
    assert [disk_bytes for _, disk_bytes in await series.disk_samples("a")] == [10, 20]
