"""Below the reserve the API refuses to start and restore, and the loop waits."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.control_plane import FAST, ControlPlane, control_plane
from torpor.domain.disk import Disk
from torpor.domain.errors import Refused
from torpor.domain.states import Phase, Wish

pytestmark = pytest.mark.anyio

MIB = 1 << 20
LOW, ENOUGH = Disk("/homes", 99 * MIB), Disk("/homes", 200 * MIB)


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(database_url, tuning=replace(FAST, disk_reserve_bytes=100 * MIB)) as running:
        running.world.disk = ENOUGH
        yield running


async def test_a_full_disk_refuses_only_starts_and_restores(here: ControlPlane) -> None:
    await here.wishes.create(here.user, name="runs")
    await here.wishes.create(here.user, name="sleeps", desired_state=Wish.STANDBY)
    await here.until_phase("runs", Phase.RUNNING)
    await here.until_phase("sleeps", Phase.STANDBY)
    here.world.disk = LOW
    for refused in (
        here.wishes.create(here.user, name="new"),
        here.wishes.wish(here.user, "sleeps", Wish.RUNNING),
        here.wishes.wake(here.user, "sleeps"),
    ):
        with pytest.raises(Refused, match=r"/homes.* has about 96.0 MiB free, and disk_reserve keeps 100 MiB free") as caught:
            await refused
        assert caught.value.code == "disk_low"
    assert (await here.show("sleeps")).desired_state is Wish.STANDBY
    await here.wishes.wish(here.user, "runs", Wish.RUNNING)
    await here.wishes.create(here.user, name="archived", desired_state=Wish.ARCHIVED)
    await here.wishes.wish(here.user, "sleeps", Wish.ARCHIVED)
    await here.until_phase("sleeps", Phase.ARCHIVED)
    with pytest.raises(Refused, match="disk_reserve"):
        await here.wishes.wish(here.user, "sleeps", Wish.STANDBY)
    await here.wishes.delete(here.user, "runs")
    await here.until_phase("runs", Phase.DELETED)


async def test_a_program_that_ended_on_a_full_disk_is_restarted_when_there_is_space(here: ControlPlane) -> None:
    made = await here.wishes.create(here.user, name="runs")
    await here.until_phase("runs", Phase.RUNNING)
    here.world.disk = LOW
    here.world.containers.clear()
    waiting = await here.until("runs", lambda seen: seen.space_awaited is not None)
    assert (waiting.phase, waiting.error) == (Phase.STANDBY, None)
    assert "about 96.0 MiB free" in str((await here.wishes.explained(here.user, "runs"))[1].why)
    assert made.id not in here.world.containers
    here.world.disk = ENOUGH
    await here.until_phase("runs", Phase.RUNNING)


async def test_a_restore_needs_the_size_of_its_home_above_the_reserve(here: ControlPlane) -> None:
    made = await here.wishes.create(here.user, name="large")
    await here.until_phase("large", Phase.RUNNING)
    (home,) = (one for one in here.world.volumes if one.workspace_id == made.id)
    here.world.volumes[home].files["file"] = bytes(3 * MIB)
    await here.wishes.wish(here.user, "large", Wish.ARCHIVED)
    await here.until_phase("large", Phase.ARCHIVED)
    here.world.disk = Disk("/homes", 102 * MIB)
    with pytest.raises(Refused, match=r"the home needs 3.0 MiB"):
        await here.wishes.wish(here.user, "large", Wish.RUNNING)
    here.world.disk = ENOUGH
    await here.wishes.wish(here.user, "large", Wish.RUNNING)
    await here.until_phase("large", Phase.RUNNING)


async def test_an_earlier_request_waits_for_space_before_the_restore(here: ControlPlane) -> None:
    made = await here.wishes.create(here.user, name="large", desired_state=Wish.ARCHIVED)
    await here.until_phase("large", Phase.ARCHIVED)
    async with here.service.writing() as writing:  # as if requested just before the disk filled up
        await writing.set_wish(made.id, Wish.RUNNING)
        here.world.disk = LOW
    await here.until("large", lambda seen: seen.space_awaited is not None)
    assert not here.world.volumes
    here.world.disk = ENOUGH
    await here.until_phase("large", Phase.RUNNING)
