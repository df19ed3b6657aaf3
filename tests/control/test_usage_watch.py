"""The usage watch samples the running containers of its runtime."""

import pytest

from torpor.bus.redis import Bus
from torpor.bus.usage import RedisUsageSeries
from torpor.control.usage_watch import UsageWatch
from torpor.domain.errors import Unavailable
from torpor.domain.records import Marker
from torpor.domain.usage import Usage
from torpor.ports import Container, Fence, Home, Limits, Program
from torpor.testing.fake_runtime import FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio

FENCE = Fence("op-1", 1)


async def start(runtime: FakeRuntime, workspace_id: str) -> None:
    home = Home(workspace_id, 1)
    await runtime.ensure_volume(home, FENCE)
    await runtime.mark_volume(home, Marker(workspace_id, 1, ""), FENCE)
    container = Container(home, 1, Program("terminal", ("sh",)), Limits(1 << 20, 10))
    await runtime.ensure_running(container, FENCE, lambda *_: None)


async def test_running_workspaces_are_sampled_and_stopped_ones_are_not(redis_url: str) -> None:
    world = FakeWorld()
    runtime = FakeRuntime(world)
    await start(runtime, "a")
    await start(runtime, "b")
    bus = await Bus.open(redis_url)
    series = RedisUsageSeries(bus)
    watch = UsageWatch(runtime, series, monotonic=lambda: 0.0)
    world.usage["a"] = Usage(3.0, 4096)
    await watch.sample()
    await runtime.ensure_no_container("a", FENCE)
    await watch.sample()
    assert [one.usage for one in await series.samples("a")] == [Usage(3.0, 4096)]
    assert [one.usage for one in await series.samples("b")] == [Usage(0.0, 0)] * 2
    world.runtime_out = True
    with pytest.raises(Unavailable):
        await watch.sample()
    await bus.close()


async def test_two_controllers_of_one_runtime_sample_each_workspace_once(redis_url: str) -> None:
    runtime = FakeRuntime(FakeWorld())
    await start(runtime, "a")
    await start(runtime, "b")
    bus = await Bus.open(redis_url)
    series = RedisUsageSeries(bus)
    for own in ("a", "b"):
        await UsageWatch(runtime, series, concerns=own.__eq__, monotonic=lambda: 0.0).sample()
    assert [len(await series.samples(one)) for one in ("a", "b")] == [1, 1]
    await bus.close()


async def test_after_a_sample_that_took_long_there_is_a_pause(redis_url: str) -> None:
    """Without cgroups a sample reads all of /proc; on a machine with many processes it must not use a whole core."""
    world, now = FakeWorld(), 0.0
    runtime = FakeRuntime(world)
    await start(runtime, "a")
    bus = await Bus.open(redis_url)
    series = RedisUsageSeries(bus)

    def monotonic() -> float:
        nonlocal now
        now += 1.0  # each reading of the clock takes a second, so each sample does
        return now

    watch = UsageWatch(runtime, series, monotonic=monotonic)
    for _ in range(10):
        await watch.sample()
    assert len(await series.samples("a")) == 1
    now += 20
    await watch.sample()
    assert len(await series.samples("a")) == 2
    await bus.close()
