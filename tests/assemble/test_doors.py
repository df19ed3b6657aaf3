"""Does a request find its workspace, even one that is just being put to sleep?"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.control.night import TERM, Night, made_night
from torpor.assemble.doors import Doors
from torpor.domain.states import Operation, Phase, Wish, WishOrigin
from torpor.ports import Address
from torpor.proxy.route import Asleep, Running, Unknown
from torpor.runtimes.fake import FakeRuntime, FakeWorld
from torpor.settings import Settings

pytestmark = pytest.mark.anyio

STOPPING = "operation = 'STOPPING', stage = 'CALL', op_id = id, op_started_at = now(), deadline_at = now()"


class Everywhere(FakeRuntime):
    """Everything can be reached."""

    def address(self, workspace_id: str) -> Address | None:
        return Address(unix_path="/nowhere")


@pytest.fixture
async def night(database_url: str, redis_url: str) -> AsyncIterator[Night]:
    async with made_night(database_url, redis_url) as made:
        yield made


@pytest.fixture
async def doors(night: Night, tmp_path: Path) -> AsyncIterator[Doors]:
    made = Doors(Settings.model_validate({"data": tmp_path}), Address(unix_path="/nowhere"))
    assert await made._find("ada") == Unknown("ada")
    async with made.open(night.service, Everywhere(FakeWorld()), night.activity, night.using):
        yield made


async def test_the_living_bearer_of_a_name_is_found(night: Night, doors: Doors) -> None:
    assert await doors._find("ada") == Unknown("ada")
    first = await night.workspace()
    place = await doors._find("ada")
    assert isinstance(place, Running)
    assert place.workspace_id == first.id
    await night.wishes.delete(night.user, "ada")
    assert await doors._find("ada") == Unknown("ada")
    second = await night.workspace(phase=Phase.STANDBY)
    assert second.id != first.id
    assert isinstance(await doors._find("ada"), Asleep)


async def test_who_comes_just_as_it_is_put_to_sleep_keeps_it_awake(night: Night, doors: Doors) -> None:
    ada = await night.workspace()
    await night.remembers()
    await night.watch.do(TERM)
    asleep = await night.look(ada)
    assert (asleep.desired_state, asleep.wish_origin) == (Wish.STANDBY, WishOrigin.IDLE)
    night.hints.clear()
    assert isinstance(await doors._find("ada"), Running)
    awake = await night.look(ada)
    assert (awake.desired_state, awake.wish_origin) == (Wish.RUNNING, WishOrigin.WAKE)
    assert awake.wish_version == asleep.wish_version + 1, "whoever was about to stop it finds another wish"
    assert night.hints == [ada.id]
    await night.watch.do(TERM)
    assert await night.wish_of(ada) is Wish.RUNNING
    await doors._find("ada")
    assert (await night.look(ada)).wish_version == awake.wish_version


@pytest.mark.parametrize(
    "change",
    [
        f"desired_state = 'STANDBY', wish_origin = 'IDLE', {STOPPING}",
        "desired_state = 'STANDBY', wish_origin = 'PERSON'",
        "desired_state = 'ARCHIVED', wish_origin = 'IDLE'",
        "desired_state = 'STANDBY', wish_origin = 'IDLE', phase = 'STANDBY'",
    ],
)
async def test_a_request_undoes_no_other_wish_and_no_stop_that_has_begun(night: Night, doors: Doors, change: str) -> None:
    ada = await night.workspace()
    await night.set(ada, change)
    before = await night.look(ada)
    await doors._find("ada")
    assert await night.look(ada) == before
    assert night.hints == []


async def test_one_that_begins_to_stop_while_somebody_comes_is_left_to_it(night: Night) -> None:
    ada = await night.workspace()
    await night.set(ada, "desired_state = 'STANDBY', wish_origin = 'IDLE'")
    found = await night.look(ada)
    await night.set(ada, STOPPING)
    now = await night.using.stay(found)
    assert (now.desired_state, now.operation) == (Wish.STANDBY, Operation.STOPPING)
