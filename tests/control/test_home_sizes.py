"""The size of each home is stored: when it is new, after a stop, and at intervals while it runs."""

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from tests.support.control_plane import ControlPlane, control_plane
from torpor import metrics
from torpor.control.home_sizes import HomeSizes
from torpor.control.workspace_metrics import Census
from torpor.domain.errors import Deposed
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish
from torpor.ports import Home
from torpor.testing.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio

TERM = 7


class Counting(FakeRuntime):
    measured = 0

    async def home_bytes(self, home: Home) -> int | None:
        self.measured += 1
        return await super().home_bytes(home)


@dataclass
class Here:
    plant: ControlPlane
    runtime: Counting
    sizes: HomeSizes

    async def write(self, name: str, size_bytes: int) -> None:
        shown = await self.plant.show(name)
        self.plant.world.volumes[Home(shown.id, shown.generation)].files["file"] = bytes(size_bytes)

    async def measured(self, name: str) -> Workspace:
        await self.sizes.do(TERM)
        return await self.plant.show(name)

    async def wish(self, name: str, wish: Wish, phase: Phase) -> None:
        await self.plant.wishes.wish(self.plant.user, name, wish)
        await self.plant.until_phase(name, phase)


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Here]:
    async with control_plane(database_url) as running:
        owner = await asyncpg.connect(database_url)
        await owner.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)
        await owner.close()
        runtime = Counting(running.world)
        await running.wishes.create(running.user, name="demo")
        await running.until_phase("demo", Phase.RUNNING)
        yield Here(running, runtime, HomeSizes(running.controller_store, runtime))


async def test_a_home_is_measured_when_it_is_new_and_after_each_stop(here: Here) -> None:
    assert (await here.plant.show("demo")).disk_bytes is None
    await here.write("demo", 1000)
    first = await here.measured("demo")
    assert first.disk_bytes == 1000
    await here.write("demo", 5000)
    assert (await here.measured("demo")).disk_bytes == 1000, "not in every turn while it runs"
    await here.wish("demo", Wish.STANDBY, Phase.STANDBY)
    assert (await here.measured("demo")).disk_bytes == 5000
    count = here.runtime.measured
    await here.sizes.do(TERM)
    assert here.runtime.measured == count, "it has not run since"


async def test_a_running_workspace_is_measured_again_after_a_while(here: Here) -> None:
    await here.measured("demo")
    await here.write("demo", 700)
    often = HomeSizes(here.plant.controller_store, here.runtime, while_running_s=0)
    await often.do(TERM)
    assert (await here.plant.show("demo")).disk_bytes == 700


async def test_an_archived_home_has_size_zero_and_a_restored_one_is_measured_again(here: Here) -> None:
    await here.write("demo", 900)
    await here.wish("demo", Wish.ARCHIVED, Phase.ARCHIVED)
    archived = await here.measured("demo")
    assert (archived.disk_bytes, archived.disk_use) == (0, None)
    await here.wish("demo", Wish.STANDBY, Phase.STANDBY)
    assert (await here.plant.show("demo")).disk_bytes is None
    assert (await here.measured("demo")).disk_bytes == 900


async def test_a_measurement_changes_nothing_else(here: Here) -> None:
    before = await here.plant.show("demo")
    after = await here.measured("demo")
    assert (after.version, after.home_size is not None) == (before.version, True)


async def test_a_home_that_cannot_be_measured_is_retried_later(here: Here) -> None:
    here.plant.world.runtime_out = True
    for _ in range(3):
        await here.sizes.do(TERM)
    assert here.runtime.measured == 1
    here.plant.world.runtime_out = False
    here.sizes.rest()
    assert (await here.measured("demo")).disk_bytes == 0


async def test_only_the_leader_writes_sizes(here: Here) -> None:
    with pytest.raises(Deposed):
        await here.sizes.do(TERM + 1)
    assert (await here.plant.show("demo")).disk_bytes is None


async def test_the_sum_is_a_metric_of_the_leader(here: Here) -> None:
    await here.write("demo", 1234)
    await here.sizes.do(TERM)
    census = Census(here.plant.controller_store)
    await census.do(TERM)
    assert metrics.REGISTRY.get_sample_value("torpor_home_bytes") == 1234
    census.rest()
    assert math.isnan(metrics.REGISTRY.get_sample_value("torpor_home_bytes") or 0)


async def test_a_pause_and_its_end_are_events(here: Here, database_url: str) -> None:
    demo = await here.plant.show("demo")
    owner = await asyncpg.connect(database_url)

    async def events() -> int:
        count: int = await owner.fetchval("SELECT count(*) FROM outbox WHERE workspace_id = $1::text::uuid", demo.id)
        return count

    try:
        before = await events()
        for number, is_paused in enumerate((True, False), start=1):
            here.plant.world.containers[demo.id].is_paused = is_paused
            here.plant.controller.hint(demo.id)
            seen = await here.plant.until("demo", lambda seen, wanted=is_paused: seen.is_paused is wanted)  # type: ignore[misc]
            assert (seen.phase, await events()) == (Phase.RUNNING, before + number)
    finally:
        await owner.close()
