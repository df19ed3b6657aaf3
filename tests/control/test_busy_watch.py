"""A workspace with busy processes stays awake, and others are stopped. With a real PostgreSQL and Valkey."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.idle_stage import TERM, IdleStage, idle_stage
from tests.support.waiting import until
from torpor.bus.activity import MEMORY, RedisActivity
from torpor.bus.redis import Bus
from torpor.control.busy_watch import BusyWatch
from torpor.domain.busy import Foreground, Work
from torpor.domain.errors import Unavailable
from torpor.domain.idle import AwakeReason
from torpor.domain.records import Marker, Workspace
from torpor.domain.states import Wish
from torpor.ports import Container, Fence, Home, Limits, Program
from torpor.testing.fake_runtime import FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio

FOREGROUND_TTL_S = 100.0
SLEEPS = (Foreground(1, 2, "sleep 600", 0.0, None),)
BUSY_FOR_S = 60.0


@pytest.fixture
async def night(database_url: str, redis_url: str) -> AsyncIterator[IdleStage]:
    async with idle_stage(database_url, redis_url) as made:
        yield made


class Day:
    """One workspace on a fake runtime, with a busy watch whose clock the test moves."""

    def __init__(self, night: IdleStage, workspace: Workspace, activity: RedisActivity) -> None:
        self.now = 0.0
        self.world = FakeWorld()
        self.runtime = FakeRuntime(self.world)
        self.workspace = workspace
        self.watch = BusyWatch(
            self.runtime,
            activity,
            lease_s=BUSY_FOR_S,
            foreground_ttl_s=FOREGROUND_TTL_S,
            counts_cpu=lambda template: template != "quiet",
            write_down=night.using.seen_in_use,
            monotonic=lambda: self.now,
        )

    async def begin(self) -> None:
        home, fence = Home(self.workspace.id, 1), Fence(str(uuid.uuid4()), 1)
        await self.runtime.ensure_volume(home, fence)
        await self.runtime.mark_volume(home, Marker(home.workspace_id, 1, ""), fence)
        program = Program("terminal", ("true",))
        await self.runtime.ensure_running(Container(home, 1, program, Limits(1 << 30, 9)), fence, lambda *_: None)

    async def look(self, work: Work, *, after_s: float = 10.0) -> None:
        self.world.work[self.workspace.id] = work
        await self.watch.look()
        self.now += after_s


async def day(night: IdleStage, activity: RedisActivity | None = None) -> Day:
    made = Day(night, await night.workspace(), activity or night.activity)
    await made.begin()
    return made


def at_a_terminal() -> Work:
    return Work("terminal", 0.0, SLEEPS)


async def test_a_command_in_a_terminal_prevents_the_stop_and_explain_names_it(night: IdleStage) -> None:
    here = await day(night)
    await night.remembers()
    await here.look(at_a_terminal())
    await night.watch.do(TERM)
    assert await night.wish_of(here.workspace) is Wish.RUNNING
    stays = await night.using.why_awake(await night.look(here.workspace))
    assert stays is not None
    assert (stays[0].why, stays[0].words) == (AwakeReason.BUSY, "the command 'sleep 600' runs in a terminal")


async def test_a_command_that_is_idle_for_too_long_does_not_prevent_the_stop(night: IdleStage) -> None:
    here = await day(night)
    await here.look(at_a_terminal(), after_s=FOREGROUND_TTL_S)
    await night.bus.ask(("FLUSHALL",))  # the first report
    await here.look(at_a_terminal())
    await night.remembers()
    await night.until_asleep(here.workspace)


@pytest.mark.parametrize(("template", "wish"), [("quiet", Wish.STANDBY), ("terminal", Wish.RUNNING)])
async def test_cpu_use_prevents_the_stop_unless_the_template_excludes_it(night: IdleStage, template: str, wish: Wish) -> None:
    here = await day(night)
    for cpu_s in (0.0, 5.0):
        await here.look(Work(template, cpu_s))
    await night.remembers()
    await night.watch.do(TERM)
    assert await night.wish_of(here.workspace) is wish


async def test_without_the_bus_the_use_is_written_to_the_database(night: IdleStage, tmp_path: Path) -> None:
    nowhere = await Bus.open(f"unix://{tmp_path}/nowhere")
    here = await day(night, RedisActivity(nowhere))
    with pytest.raises(Unavailable):
        await here.look(at_a_terminal())
    await nowhere.close()
    before = here.workspace.last_access_at

    async def is_written() -> bool:
        return (await night.look(here.workspace)).last_access_at > before

    await until(is_written)


async def test_the_age_of_the_bus_data_starts_with_the_first_turn_of_the_idle_watch(night: IdleStage) -> None:
    """Also if no workspace is due: otherwise the first idle one would wait for it."""
    await night.watch.do(TERM)
    (is_there,) = await night.bus.ask(("EXISTS", MEMORY))
    assert is_there == 1
