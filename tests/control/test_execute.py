"""Is nothing archived where no archive store is?"""

import pytest

from tests.domain.builders import workspace
from torpor.control.execute import Hands
from torpor.domain.effects import Effect, Pack, PackEmpty
from torpor.domain.records import ArchiveKey, Marker, Proved, ProviderOut
from torpor.ports import Fence, Home, Limits, Program
from torpor.runtimes.fake import FakeArchives, FakeRuntime, FakeVolume, FakeWorld

pytestmark = pytest.mark.anyio

ROW = workspace()
KEY = ArchiveKey(ROW.id, "op")
FENCE = Fence("op", 1)


@pytest.mark.parametrize("effect", [Pack(KEY, 1, 0), PackEmpty(KEY, 1, 0)])
async def test_nothing_is_archived_into_another_store_than_the_one_we_know(effect: Effect) -> None:
    world = FakeWorld()
    world.volumes[Home(ROW.id, 1)] = FakeVolume({"note": b"hello"}, Marker(ROW.id, 1, ""))
    archives = FakeArchives(world)
    hands = Hands(FakeRuntime(world), archives, lambda _: Program("t", ("true",)), Limits(1 << 20, 8))
    ours = await archives.world()
    for store in (None, "another"):
        world.archive_store = store
        report = await hands.carry_out(ROW, effect, FENCE, lambda *_: None)
        assert isinstance(report, ProviderOut), report
        assert not world.archives
    world.archive_store = ours
    assert isinstance(await hands.carry_out(ROW, effect, FENCE, lambda *_: None), Proved)
