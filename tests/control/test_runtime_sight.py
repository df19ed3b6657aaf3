"""A controller knows from its observations whether the runtime answers, and leaves its workspaces to one that is answered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.support.control_plane import FAST, WORLD, ControlPlane, control_plane, make_controller
from tests.support.waiting import until
from torpor.control import coordinator, membership, runtime_sight
from torpor.control.coordinator import Coordinator, LeaderLockOptions
from torpor.control.membership import HeartbeatOptions, NodeIdentity
from torpor.control.runtime_sight import OBSERVING_S, SILENT_S, SLOW_S, ObservationHistory, RuntimeSight
from torpor.domain.errors import Unavailable
from torpor.domain.records import Survey, Workspace
from torpor.domain.states import Phase, Wish
from torpor.testing.fake_runtime import FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio

ANSWERS, UNKNOWN, SILENT = RuntimeSight.ANSWERS, RuntimeSight.UNKNOWN, RuntimeSight.SILENT
IDLE_S = 10.0
# Longer than a stall of a busy machine, shorter than the patience of `until`.
QUITE_SILENT_S = 2.5


# ── what observations tell ────────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    """A history of observations at times that the test sets."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self.now = 1000.0
        self.seen = ObservationHistory(idle_s=idle_s, monotonic=lambda: self.now)

    def answered(self, took_s: float, *, is_full: bool = True) -> None:
        self.seen.begin()
        self.now += took_s
        self.seen.succeeded(is_full=is_full)

    def failed(self, took_s: float) -> None:
        self.seen.begin()
        self.now += took_s
        self.seen.failed()

    def sights(self, *after_s: float) -> list[RuntimeSight]:
        """At these times from now on."""
        began, found = self.now, []
        for one in after_s:
            self.now = began + one
            found.append(self.seen.sight)
        return found


def test_an_observation_that_hangs_is_unknown_after_seconds_and_then_silent() -> None:
    here = Clock()
    here.answered(0.1)
    here.seen.begin()
    assert here.sights(0, SLOW_S - 0.1, SLOW_S, SILENT_S + IDLE_S - 0.1, SILENT_S + IDLE_S) == [
        ANSWERS,
        ANSWERS,
        UNKNOWN,
        UNKNOWN,
        SILENT,
    ]
    here.seen.succeeded(is_full=True)
    assert here.seen.sight is ANSWERS


def test_failed_observations_are_unknown_at_once_and_silent_from_the_beginning_of_the_first() -> None:
    here = Clock(idle_s=1)
    here.answered(0.1)
    here.failed(4)
    assert here.sights(0) == [UNKNOWN]
    here.failed(1)
    assert here.sights(SILENT_S - 4.1, SILENT_S - 3.9) == [UNKNOWN, SILENT]


def test_between_observations_the_last_one_counts() -> None:
    here = Clock()
    assert here.sights(0, 3600) == [UNKNOWN, UNKNOWN]
    here.answered(0.1)
    assert here.sights(0, 3600) == [ANSWERS, ANSWERS]


def test_a_slow_runtime_is_not_silent() -> None:
    here = Clock()
    here.answered(12)
    here.seen.begin()
    assert here.sights(40, 48) == [UNKNOWN, SILENT]
    here.seen.succeeded(is_full=True)
    for _ in range(100):
        here.answered(0.1)
    here.seen.begin()
    assert here.sights(SILENT_S + IDLE_S) == [SILENT], "the slow time is long past"


def test_a_first_observation_may_take_as_long_as_any() -> None:
    here = Clock()
    here.seen.begin()
    assert here.sights(0, OBSERVING_S - 0.1, OBSERVING_S) == [UNKNOWN, UNKNOWN, SILENT]


def test_a_controller_that_never_saw_its_runtime_does_not_wait_that_long_after_a_failure() -> None:
    here = Clock()
    here.failed(0.1)
    assert here.sights(SILENT_S + IDLE_S - 0.2, SILENT_S + IDLE_S) == [UNKNOWN, SILENT]


def test_observations_of_few_workspaces_do_not_hide_that_lists_fail() -> None:
    here = Clock()
    here.answered(0.1)
    here.failed(1)
    here.answered(0.1, is_full=False)
    assert here.sights(0, SILENT_S + IDLE_S) == [UNKNOWN, SILENT]
    here.answered(0.1)
    here.seen.begin()
    here.now += SILENT_S + IDLE_S
    here.seen.succeeded(is_full=False)
    assert here.seen.sight is ANSWERS, "nothing had failed"


# ── controllers ───────────────────────────────────────────────────────────────────────────────────────────────────────


class CutRuntime(FakeRuntime):
    """While it is cut off, its observations hang or fail. Smaller requests succeed."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(world)
        self.observations = 0
        self._hangs = False
        self._answers = asyncio.Event()
        self._answers.set()

    async def observe(self, only: frozenset[str] | None = None) -> Survey:
        self.observations += 1
        if not self._answers.is_set() and not self._hangs:
            raise Unavailable("the fake runtime does not list anything")
        await self._answers.wait()
        return await super().observe(only)

    def cut_off(self, *, hangs: bool) -> None:
        self._hangs = hangs
        self._answers.clear()

    def restore(self) -> None:
        self._answers.set()


@dataclass
class Node:
    coordinator: Coordinator
    runtime: CutRuntime
    task: "asyncio.Task[None]"

    @property
    def sight(self) -> RuntimeSight | None:
        return self.coordinator.controller.sight if self.coordinator.controller is not None else None

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def nodes(here: ControlPlane, database_url: str, *names: str) -> AsyncIterator[Sequence[Node]]:
    """Coordinators of one world, each with its own way to it; they are members and have observed it."""
    await here.controller_store.leave(here.life.life)
    async with contextlib.AsyncExitStack() as stack:
        made = [_node(here, database_url, name) for name in names]
        for one in made:
            stack.push_async_callback(one.end)
        await until(lambda: all(one.sight is ANSWERS and len(one.coordinator.members) == len(made) for one in made))
        yield made


def _node(here: ControlPlane, database_url: str, name: str) -> Node:
    store, runtime = here.controller_store, CutRuntime(here.world)
    made = Coordinator(
        store,
        NodeIdentity(name, WORLD, False),
        HeartbeatOptions(interval_s=0.05, expiry_s=60),
        LeaderLockOptions(database_url, lock_id=12345, retry_s=0.1),
        make_controller=lambda life: make_controller(store, here.world, life, FAST, parallel=4, runtime=runtime),
        duties=[],
        on_change=lambda: None,
    )
    return Node(made, runtime, asyncio.create_task(made.run()))


async def members(here: ControlPlane) -> Mapping[str, int]:
    return {one.node_id: one.epoch for one in await here.controller_store.members()}


async def workspace_of(here: ControlPlane, node: Node) -> Workspace:
    """A stopped workspace in a shard of this controller."""
    for number in range(100):
        made = await here.wishes.create(here.user, name=f"w-{number}", desired_state=Wish.STANDBY)
        if node.coordinator.owns(made.id):
            return await here.until_phase(made.name, Phase.STANDBY)
    raise AssertionError("of 100 workspaces none is in a shard of this controller")


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same proportions as in production."""
    monkeypatch.setattr(runtime_sight, "SILENT_S", QUITE_SILENT_S)
    monkeypatch.setattr(runtime_sight, "SLOW_S", QUITE_SILENT_S / 3)
    monkeypatch.setattr(membership, "OTHERS_ANSWERED_S", 1.0)
    monkeypatch.setattr(coordinator, "ASK_AGAIN_S", 0.05)


@pytest.mark.usefixtures("_hurried")
@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "fails"])
async def test_a_controller_without_its_runtime_steps_aside_and_joins_again_when_lists_work(
    database_url: str, hangs: bool
) -> None:
    async with control_plane(database_url, runs=False) as here, nodes(here, database_url, "ada", "bob") as (ada, bob):
        demo, before = await workspace_of(here, ada), await members(here)
        ada.runtime.cut_off(hangs=hangs)
        await here.wishes.wish(here.user, demo.id, Wish.RUNNING)
        running = await here.until_phase(demo.id, Phase.RUNNING)
        assert running.held_by == before["bob"]
        assert bob.coordinator.owns(demo.id)
        asked = ada.runtime.observations
        await until(lambda: ada.runtime.observations >= asked + (0 if hangs else 5))
        assert await members(here) == {"bob": before["bob"]}, "it asks, and does not join"

        ada.runtime.restore()
        await until(lambda: ada.coordinator.owns(demo.id) and not bob.coordinator.owns(demo.id) and ada.sight is ANSWERS)
        after = await members(here)
        assert after["ada"] > before["ada"]
        assert after["bob"] == before["bob"]
        await here.wishes.wish(here.user, demo.id, Wish.STANDBY)
        assert (await here.until_phase(demo.id, Phase.STANDBY)).held_by == after["ada"]


@pytest.mark.usefixtures("_hurried")
@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "fails"])
async def test_controllers_stay_if_the_runtime_answers_none_of_them(database_url: str, hangs: bool) -> None:
    async with control_plane(database_url, runs=False) as here, nodes(here, database_url, "ada", "bob") as both:
        before = await members(here)
        for one in both:
            one.runtime.cut_off(hangs=hangs)
        await until(lambda: all(one.sight is SILENT for one in both))
        expiry = {one.node_id: one.expires_at for one in await here.controller_store.members()}

        async def have_sent_heartbeats() -> bool:
            return all(
                (one.expires_at - expiry[one.node_id]).total_seconds() > 0.3 for one in await here.controller_store.members()
            )

        await until(have_sent_heartbeats)
        assert await members(here) == before
        for one in both:
            one.runtime.restore()
        await until(lambda: all(one.sight is ANSWERS for one in both))
        assert await members(here) == before


@pytest.mark.usefixtures("_hurried")
async def test_a_controller_that_stepped_aside_joins_if_no_other_one_is_left(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here, nodes(here, database_url, "ada", "bob") as (ada, bob):
        before = await members(here)
        ada.runtime.cut_off(hangs=False)
        await until(lambda: ada.coordinator.life is None)
        await until(lambda: _members_are(here, {"bob"}))
        await bob.end()
        await until(lambda: _members_are(here, {"ada"}))
        assert (await members(here))["ada"] > before["ada"]


async def _members_are(here: ControlPlane, names: set[str]) -> bool:
    return (await members(here)).keys() == names
