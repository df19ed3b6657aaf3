"""All homes move to another runtime, through the loop, with a real database."""

import asyncio

import pytest

from tests.support.control_plane import LIFE_S, WORLD, ControlPlane, control_plane
from tests.support.waiting import until
from torpor.domain.errors import Refused
from torpor.domain.states import Operation, Phase, Wish, WishOrigin
from torpor.service.runtime_switch import SwitchService
from torpor.testing.fake_runtime import FakeArchives, FakeVolume

pytestmark = pytest.mark.anyio

DOCKER = "docker:other"
STATES = {"runs": Wish.RUNNING, "stands": Wish.STANDBY, "sleeps": Wish.ARCHIVED}


async def populated(here: ControlPlane) -> None:
    for name, wish in STATES.items():
        await here.wishes.create(here.user, name=name, desired_state=wish)
    for name, wish in STATES.items():
        await here.until_phase(name, Phase[wish])


async def until_archived(here: ControlPlane) -> None:
    async def is_done() -> bool:
        return (await here.wishes.switch.status()).homes_left == 0

    await until(is_done, within_s=30)


async def join(here: ControlPlane, world: str) -> int:
    return await here.controller_store.join("other", world, expiry_s=LIFE_S)


async def test_the_requested_states_come_back_at_the_other_runtime(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        begun = await here.wishes.switch.begin(here.user, "docker")
        assert begun.runtime.switch is not None
        await until_archived(here)
        for name in STATES:
            assert (await here.show(name)).phase is Phase.ARCHIVED
        assert not here.world.volumes
        assert not here.world.containers

        await here.controller_store.leave(here.life.life)
        await join(here, DOCKER)
        result = await here.wishes.switch.complete(DOCKER, FakeArchives(here.world))
        assert result is not None
        assert (result.resumed, result.cannot_run) == (2, [])
        assert {name: (await here.show(name)).desired_state for name in STATES} == STATES
        assert (await here.wishes.switch.status()).runtime.world == DOCKER
        with pytest.raises(Refused) as refused:  # the former controller comes back
            await here.controller_store.join("test", WORLD, expiry_s=LIFE_S)
        assert refused.value.code == "already_controlled"


async def test_no_workspace_starts_during_a_move(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        await here.wishes.switch.begin(here.user, "docker")
        await until_archived(here)
        for attempt in (
            here.wishes.wake(here.user, "stands"),
            here.wishes.wish(here.user, "runs", Wish.RUNNING),
            here.wishes.wish(here.user, "runs", Wish.STANDBY),
            here.wishes.create(here.user, name="new"),
        ):
            with pytest.raises(Refused) as refused:
                await attempt
            assert refused.value.code == "switching_runtime"
        made = await here.wishes.create(here.user, name="empty", desired_state=Wish.ARCHIVED)
        assert made.desired_state is Wish.ARCHIVED


async def test_a_cancelled_move_brings_everything_back(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        await here.wishes.switch.begin(here.user, "docker")
        await here.until("runs", lambda seen: seen.operation is not Operation.NONE or seen.phase is Phase.ARCHIVED)
        await here.wishes.switch.cancel(here.user)
        for name, wish in STATES.items():
            assert (await here.until_phase(name, Phase[wish])).desired_state is wish
        assert (await here.show("runs")).wish_origin is WishOrigin.SWITCH
        with pytest.raises(Refused, match="no move"):
            await here.wishes.switch.cancel(here.user)


async def test_what_a_user_requests_meanwhile_counts_afterwards(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        await here.wishes.switch.begin(here.user, "docker")
        await here.wishes.wish(here.user, "runs", Wish.ARCHIVED)
        await here.wishes.delete(here.user, "stands")
        await until_archived(here)
        await here.wishes.switch.cancel(here.user)
        await here.until_phase("stands", Phase.DELETED)
        assert (await here.show("runs")).desired_state is Wish.ARCHIVED
        assert not here.world.containers


async def test_a_home_that_cannot_be_archived_keeps_the_other_runtime_out(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        stands = await here.show("stands")
        lost = next(home for home in here.world.volumes if home.workspace_id == stands.id)
        kept: FakeVolume = here.world.volumes.pop(lost)
        await here.until("stands", lambda seen: seen.error is not None)
        await here.wishes.switch.begin(here.user, "docker")
        await here.until_phase("runs", Phase.ARCHIVED)
        status = await here.wishes.switch.status()
        assert (status.homes_left, status.stuck_count, [one.name for one in status.stuck]) == (1, 1, ["stands"])
        await here.controller_store.leave(here.life.life)
        with pytest.raises(Refused) as refused:
            await join(here, DOCKER)
        assert refused.value.code == "homes_not_moved"
        with pytest.raises(Refused):
            await here.wishes.switch.complete(DOCKER, FakeArchives(here.world))
        here.world.volumes[lost] = kept


async def test_an_archive_that_is_missing_keeps_the_move_from_ending(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        await here.wishes.switch.begin(here.user, "docker")
        await until_archived(here)
        await here.controller_store.leave(here.life.life)
        await join(here, DOCKER)
        runs = await here.show("runs")
        assert runs.archive is not None
        kept = here.world.archives.pop(str(runs.archive.key))
        with pytest.raises(Refused, match="1 of 3 archives cannot be used here: runs"):
            await here.wishes.switch.complete(DOCKER, FakeArchives(here.world))
        assert (await here.show("runs")).desired_state is Wish.ARCHIVED
        here.world.archives[str(runs.archive.key)] = kept
        assert await here.wishes.switch.complete(DOCKER, FakeArchives(here.world)) is not None
        assert await here.wishes.switch.complete(DOCKER, FakeArchives(here.world)) is None, "it is completed once"


async def test_what_the_other_runtime_cannot_run_stays_archived(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await here.wishes.create(here.user, name="lab", template_name="jupyterlab", desired_state=Wish.STANDBY)
        await here.wishes.create(here.user, name="plain", desired_state=Wish.STANDBY)
        await here.until_phase("lab", Phase.STANDBY)
        preview = await here.wishes.switch.preview("docker")
        assert [(one.workspace, one.owner) for one in preview.cannot_run] == [("lab", "ada")]
        assert (preview.workspaces, preview.running) == (2, 0)
        await here.wishes.switch.begin(here.user, "docker")
        await until_archived(here)
        await here.controller_store.leave(here.life.life)
        await join(here, DOCKER)
        at_docker = SwitchService(here.service, here.wishes.catalogue.at_runtime("docker"), hint=here.controller.hint)
        result = await at_docker.complete(DOCKER, FakeArchives(here.world))
        assert result is not None
        assert (result.resumed, [one.workspace for one in result.cannot_run]) == (1, ["lab"])
        assert (await here.show("lab")).desired_state is Wish.ARCHIVED
        assert (await here.show("plain")).desired_state is Wish.STANDBY


async def test_wakes_and_a_move_at_the_same_moment_leave_nothing_awake(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        names = [f"one-{number}" for number in range(8)]
        for name in names:
            await here.wishes.create(here.user, name=name, desired_state=Wish.ARCHIVED)

        async def wake(name: str) -> None:
            try:
                await here.wishes.wake(here.user, name)
            except Refused as refused:
                assert refused.code == "switching_runtime"  # noqa: PT017 - either is right

        await asyncio.gather(*map(wake, names), here.wishes.switch.begin(here.user, "docker"))
        assert {(await here.show(name)).desired_state for name in names} == {Wish.ARCHIVED}


async def test_a_controller_of_another_runtime_is_refused_while_there_are_homes(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await here.wishes.create(here.user, name="stands", desired_state=Wish.STANDBY)
        await here.until_phase("stands", Phase.STANDBY)
        await here.controller_store.leave(here.life.life)
        with pytest.raises(Refused) as refused:
            await join(here, DOCKER)
        assert refused.value.code == "another_runtime"
        await here.controller_store.join("other", DOCKER, expiry_s=LIFE_S, accepted=DOCKER)
        assert (await here.wishes.switch.status()).runtime.world == DOCKER


async def test_a_move_that_was_cancelled_while_the_other_runtime_starts_is_not_completed(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await populated(here)
        await here.wishes.switch.begin(here.user, "docker")
        await until_archived(here)
        await here.controller_store.leave(here.life.life)
        await join(here, DOCKER)
        await here.wishes.switch.cancel(here.user)
        with pytest.raises(Refused) as refused:
            await here.wishes.switch.complete(DOCKER, FakeArchives(here.world))
        assert refused.value.code == "another_runtime"
        assert (await here.wishes.switch.status()).runtime.world == WORLD
