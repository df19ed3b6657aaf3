"""The work of one user does not delay the workspaces of another user.

The loop runs on a fake provider and a real database. Effects of one user are blocked, like archives that take minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from tests.support.control_plane import ControlPlane, control_plane
from tests.support.users import person
from tests.support.waiting import until
from torpor.accounts import Caller
from torpor.domain.states import Operation, Phase, Wish
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

PARALLEL = 2
MANY = 20


class Held:
    """Effects of these workspaces begin, and continue when they are released."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.verbs: set[str] = set()
        self.begun: list[str] = []
        self.let_go = asyncio.Event()

    async def __call__(self, verb: str, workspace_id: str) -> None:
        if workspace_id in self.ids and verb in self.verbs:
            self.begun.append(workspace_id)
            await self.let_go.wait()


@dataclass
class Town:
    here: ControlPlane
    eve: Caller
    held: Held

    async def make(self, user: Caller, names: Sequence[str], wish: Wish) -> list[str]:
        made = [(await self.here.wishes.create(user, name=name, desired_state=wish)).id for name in names]
        for name in names:
            await self.here.until_phase(name, Phase(wish.value))
        return made

    async def wish(self, user: Caller, names: Sequence[str], wish: Wish) -> None:
        for name in names:
            await self.here.wishes.wish(user, name, wish)

    async def hold(self, verb: str, names: Sequence[str], wish: Wish) -> None:
        """All of eve's workspaces request a slot, and those that have one keep it."""
        self.held.verbs.add(verb)
        await self.wish(self.eve, names, wish)
        for name in names:
            await self.here.until(name, lambda seen: seen.operation is not Operation.NONE)
        await until(lambda: len(self.held.begun) >= 1)


@pytest.fixture
async def town(database_url: str) -> AsyncIterator[Town]:
    database = await Database.open(database_url, Role.SERVICE)
    async with control_plane(database_url, parallel=PARALLEL) as here:
        held = Held()
        here.world.interfere = held
        try:
            yield Town(here, await person(database, "eve"), held)
        finally:
            held.let_go.set()
            await database.close()


EVES = [f"eve-{number}" for number in range(MANY)]


async def test_many_archives_of_one_user_do_not_delay_starts_of_another(town: Town) -> None:
    here = town.here
    await town.make(here.user, ["archived", "standby", "running"], Wish.STANDBY)
    await town.wish(here.user, ["archived"], Wish.ARCHIVED)
    await here.until_phase("archived", Phase.ARCHIVED)
    town.held.ids.update(await town.make(town.eve, EVES, Wish.STANDBY))
    await town.hold("run_at_home", EVES, Wish.ARCHIVED)

    await town.wish(here.user, ["archived", "standby"], Wish.RUNNING)
    for name in ("archived", "standby"):
        await here.until_phase(name, Phase.RUNNING)
    await town.wish(here.user, ["running"], Wish.ARCHIVED)
    await here.until_phase("running", Phase.ARCHIVED)
    assert len(town.held.begun) == PARALLEL // 2, "the rest still waits"

    town.held.let_go.set()
    for name in EVES:
        await here.until_phase(name, Phase.ARCHIVED)


async def test_many_restores_of_one_user_do_not_delay_restores_of_another(town: Town) -> None:
    here = town.here
    await town.make(here.user, ["mine"], Wish.ARCHIVED)
    town.held.ids.update(await town.make(town.eve, EVES, Wish.ARCHIVED))
    await town.hold("run_at_home", EVES, Wish.STANDBY)

    await town.wish(here.user, ["mine"], Wish.RUNNING)
    await here.until_phase("mine", Phase.RUNNING)
    assert len(town.held.begun) == PARALLEL // 2, "the rest still waits"


async def test_many_slow_starts_of_one_user_do_not_delay_starts_of_another(town: Town) -> None:
    here = town.here
    await town.make(here.user, ["mine"], Wish.STANDBY)
    town.held.ids.update(await town.make(town.eve, EVES, Wish.STANDBY))
    await town.hold("ensure_running", EVES, Wish.RUNNING)

    await town.wish(here.user, ["mine"], Wish.RUNNING)
    await here.until_phase("mine", Phase.RUNNING)


async def test_starting_a_workspace_that_waits_for_archiving_loses_no_slot(town: Town) -> None:
    here = town.here
    names = EVES[:3]
    ids = await town.make(town.eve, names, Wish.STANDBY)
    town.held.ids.update(ids)
    await town.hold("run_at_home", names, Wish.ARCHIVED)
    waiting = [name for name, id_ in zip(names, ids, strict=True) if id_ not in town.held.begun]
    assert len(waiting) == 2

    await town.wish(town.eve, waiting[:1], Wish.RUNNING)
    await here.until_phase(waiting[0], Phase.RUNNING)
    town.held.let_go.set()
    for name in names:
        if name != waiting[0]:
            await here.until_phase(name, Phase.ARCHIVED)
    await town.wish(town.eve, waiting[:1], Wish.ARCHIVED)
    await here.until_phase(waiting[0], Phase.ARCHIVED)
