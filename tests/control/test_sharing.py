"""Several controllers share the work, take over from each other, and do not interfere."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import asyncpg
import pytest

from tests.support.control_plane import FAST, LIFE_S, WORLD, ControlPlane, OnlyMember, control_plane, make_controller
from tests.support.waiting import until
from torpor.control.controller import Controller, Listeners
from torpor.control.membership import HeartbeatOptions, Membership, NodeIdentity
from torpor.domain.errors import Code, Deposed, Failed, Reason, Unavailable
from torpor.domain.shards import ALL_SHARDS, shard_of
from torpor.domain.states import Operation, Outcome, Phase, Wish

pytestmark = pytest.mark.anyio


class FirstWaits:
    """The first call of this verb waits until it is released, like in a stopped process; later calls do not."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, verb: str, _workspace_id: str) -> None:
        if verb == self.verb and not self.reached.is_set():
            self.reached.set()
            await self.let_go.wait()


@contextlib.asynccontextmanager
async def running(controller: Controller) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(controller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def another(
    here: ControlPlane, shards: frozenset[int] = ALL_SHARDS, *, expiry_s: float = LIFE_S
) -> tuple[int, Controller]:
    life = await here.controller_store.join(f"another-{secrets.token_hex(4)}", WORLD, expiry_s=expiry_s)
    return life, make_controller(here.controller_store, here.world, OnlyMember(life, shards), FAST, parallel=8)


async def held_by(database_url: str) -> dict[str, int]:
    owner = await asyncpg.connect(database_url)
    rows = await owner.fetch("SELECT id::text, held_by FROM workspaces")
    await owner.close()
    return {row["id"]: row["held_by"] for row in rows}


async def test_each_controller_runs_its_own_shards_and_every_workspace_starts_once(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        members = [
            Membership(here.controller_store, NodeIdentity(name, WORLD, False), HeartbeatOptions(0.05, 5))
            for name in ("ada", "bob")
        ]
        await here.controller_store.leave(here.life.life)
        for one in members:
            await one.join()
        keeping = [asyncio.create_task(one.keep()) for one in members]
        try:
            await until(lambda: all(len(one.members) == 2 for one in members))
            controllers = [make_controller(here.controller_store, here.world, one, FAST, parallel=8) for one in members]
            async with running(controllers[0]), running(controllers[1]):
                for number in range(40):
                    await here.wishes.create(here.user, name=f"w-{number}")
                for number in range(40):
                    await here.until_phase(f"w-{number}", Phase.RUNNING)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
        holders = await held_by(database_url)
        assert set(holders.values()) == {one.life for one in members}
        for workspace_id, life in holders.items():
            assert shard_of(workspace_id) in next(one.shards for one in members if one.life == life)
        starts = [workspace_id for verb, workspace_id in here.world.done if verb == "ensure_running"]
        assert len(starts) == len(set(starts)) == 40


async def test_an_operation_stays_with_its_controller_when_shards_move(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        life, first = await another(here)
        gate = here.world.interfere = FirstWaits("ensure_running")
        async with running(first):
            created = await here.wishes.create(here.user, name="demo")
            await gate.reached.wait()
            # The next controller owns every shard, and does not touch the workspaces of a live controller.
            successor_life, successor = await another(here)
            async with running(successor):
                successor.hint(created.id)
                await asyncio.sleep(0.5)
                seen = await here.show("demo")
                assert (seen.operation, seen.held_by) == (Operation.STARTING, life)
                gate.let_go.set()
                await here.until_phase("demo", Phase.RUNNING)
                await here.wishes.wish(here.user, "demo", Wish.STANDBY)
                successor.hint(created.id)
                await here.until_phase("demo", Phase.STANDBY)
        assert successor_life > life
        assert [verb for verb, _ in here.world.done].count("ensure_running") == 1


async def test_a_paused_controller_does_no_harm_when_it_continues(database_url: str) -> None:
    """It believes it is a member, with a running effect and a pending write, while another controller has taken over."""
    async with control_plane(database_url, runs=False) as here:
        paused_life, paused = await another(here, expiry_s=0.6)
        gate = here.world.interfere = FirstWaits("ensure_running")
        created = await here.wishes.create(here.user, name="demo")
        async with running(paused):
            await gate.reached.wait()
            before = await here.show("demo")
            assert before.held_by == paused_life
            life, successor = await another(here)
            async with running(successor):
                await here.until_phase("demo", Phase.RUNNING)
                await here.wishes.wish(here.user, "demo", Wish.STANDBY)
                successor.hint(created.id)
                asleep = await here.until_phase("demo", Phase.STANDBY)
                assert asleep.epoch > before.epoch
                effects = list(here.world.done)

                gate.let_go.set()  # the late start by the stopped controller
                paused.hint()
                await asyncio.sleep(0.3)
                assert here.world.done == effects, "no container was started by the old controller"
                after = await here.show("demo")
                assert (after.phase, after.held_by, after.version) == (Phase.STANDBY, life, asleep.version)
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        with pytest.raises(Deposed):
            await paused.look()  # its next write shows it
        outcomes = [(one.kind, one.outcome) for one in (await here.wishes.history(here.user, "demo")).items]
        assert outcomes.count((Operation.STARTING, Outcome.ABANDONED)) == 1


async def test_many_controllers_write_nothing_when_there_is_nothing_to_do(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        _, one = await another(here)
        async with running(one):
            for number in range(5):
                await here.wishes.create(here.user, name=f"w-{number}")
            for number in range(5):
                await here.until_phase(f"w-{number}", Phase.RUNNING)
        _, other = await another(here)
        await other.look()
        await other.look()
        before = await held_by(database_url)
        for _ in range(3):
            await other.look()
        assert other.tally.rows_written == 0
        assert await held_by(database_url) == before


async def test_a_missing_container_of_an_idle_row_is_noticed(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        created = await here.wishes.create(here.user, name="demo")
        async with running(here.controller):
            await here.until_phase("demo", Phase.RUNNING)
        assert not (await here.controller_store.load_due(here.hold())).workspaces
        async with running(here.controller):
            await until(lambda: here.controller._resting._at_rest)
            del here.world.containers[created.id]
            again = await here.until("demo", lambda seen: seen.revision == 2 and seen.phase is Phase.RUNNING)
        assert again.operation is Operation.NONE


async def test_a_late_start_is_refused_even_if_the_successor_made_no_call(database_url: str) -> None:
    """The wish changed meanwhile, so the successor had no container to start or stop."""
    async with control_plane(database_url, runs=False) as here:
        _, paused = await another(here, expiry_s=0.6)
        gate = here.world.interfere = FirstWaits("ensure_running")
        created = await here.wishes.create(here.user, name="demo")
        async with running(paused):
            await gate.reached.wait()
            await here.wishes.wish(here.user, "demo", Wish.STANDBY)
            _, successor = await another(here)
            async with running(successor):
                await here.until_phase("demo", Phase.STANDBY)
                await asyncio.sleep(0.2)
                gate.let_go.set()
                await asyncio.sleep(0.3)
                assert created.id not in here.world.containers
                assert "ensure_running" not in [verb for verb, _ in here.world.done]


async def test_a_database_restored_from_a_backup_catches_up_with_the_providers_epochs(database_url: str) -> None:
    async with control_plane(database_url) as here:
        created = await here.wishes.create(here.user, name="demo")
        await here.until_phase("demo", Phase.RUNNING)
        here.world.epochs[created.id] = 40
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        archived = await here.until_phase("demo", Phase.ARCHIVED)
        assert archived.epoch > 40
        assert archived.error is None


async def test_many_rows_are_read_in_several_passes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.store.controller_store.MOST_AT_ONCE", 5)
    async with control_plane(database_url) as here:
        ids = [(await here.wishes.create(here.user, name=f"w-{number}")).id for number in range(23)]
        for number in range(23):
            await here.until_phase(f"w-{number}", Phase.RUNNING)
        successor = await here.successor()
        async with running(successor):
            await until(lambda: len(successor._resting._at_rest) >= 23, within_s=10)
            del here.world.containers[ids[7]]
            await here.until("w-7", lambda seen: seen.revision == 2 and seen.phase is Phase.RUNNING)


async def test_a_failing_stop_listener_does_not_delay_other_workspaces(database_url: str) -> None:
    async def nobody_answers(_workspace_ids: Sequence[str]) -> None:
        if out:
            raise Unavailable("no connection is free")

    out = True
    async with control_plane(database_url, runs=False) as here:
        listeners = Listeners(before_rest=nobody_answers)
        controller = make_controller(here.controller_store, here.world, here.life, FAST, parallel=8, listeners=listeners)
        async with running(controller):
            for name in ("stops", "other"):
                controller.hint((await here.wishes.create(here.user, name=name)).id)
                await here.until_phase(name, Phase.RUNNING)
            await here.wishes.wish(here.user, "stops", Wish.STANDBY)
            await here.until("stops", lambda seen: seen.operation is Operation.STOPPING)
            await here.wishes.create(here.user, name="third")
            await here.until_phase("third", Phase.RUNNING)
            assert (await here.show("stops")).operation is Operation.STOPPING
            out = False
            await here.until_phase("stops", Phase.STANDBY)


async def test_the_latch_pauses_retries_and_their_deadlines(database_url: str) -> None:
    """Three workspaces are being retried when all resources disappear."""

    async def refuse(verb: str, _workspace_id: str) -> None:
        if verb == "ensure_running":
            raise Failed(Code.CONTAINER_START_FAILED, "no room")

    slow = replace(FAST, retry_base_s=0.6, retry_cap_s=0.6, max_retries=50, timeouts_s=dict.fromkeys(Operation, 2.5))
    async with control_plane(database_url, tuning=slow) as here:
        for number in range(6):
            await here.wishes.create(here.user, name=f"w-{number}", desired_state=Wish.STANDBY)
        for number in range(6):
            await here.until_phase(f"w-{number}", Phase.STANDBY)
        here.world.interfere = refuse
        for number in range(3):
            await here.wishes.wish(here.user, f"w-{number}", Wish.RUNNING)
            await here.until(f"w-{number}", lambda seen: seen.error is not None)
        gone, here.world.volumes = here.world.volumes, {}
        await asyncio.sleep(4)  # longer than any deadline
        assert {one.error.reason for one in (await here.wishes.page(here.user)).items if one.error} == {Reason.ACTION_FAILED}
        here.world.volumes, here.world.interfere = gone, FirstWaits("nothing")
        for number in range(3):
            await here.until_phase(f"w-{number}", Phase.RUNNING)
