"""History and metrics count what happened."""

import pytest

from tests.support.control_plane import control_plane
from torpor import metrics
from torpor.domain.records import ProgramExit
from torpor.domain.states import Operation, Phase, Wish
from torpor.ports import Home

pytestmark = pytest.mark.anyio


def wakes() -> float:
    return metrics.REGISTRY.get_sample_value("torpor_wake_seconds_count") or 0.0


def woken_s() -> float:
    return metrics.REGISTRY.get_sample_value("torpor_wake_seconds_sum") or 0.0


def moved(direction: str) -> float:
    return metrics.REGISTRY.get_sample_value("torpor_archive_bytes_total", {"direction": direction}) or 0.0


async def test_the_history_and_the_metric_count_bytes_that_were_written(database_url: str) -> None:
    packed, restored = moved("packed"), moved("restored")
    async with control_plane(database_url) as here:
        workspace_id = (await here.wishes.create(here.user, name="demo")).id
        await here.until_phase("demo", Phase.RUNNING)
        here.world.volumes[Home(workspace_id, 1)].files["note"] = b"x" * 1000
        for wish in (Wish.ARCHIVED, Wish.STANDBY):
            await here.wishes.wish(here.user, "demo", wish)
            await here.until_phase("demo", Phase(wish.value))
        history = (await here.wishes.history(here.user, "demo")).items
        (archive,) = (await here.wishes.time_machine.archives(here.user, "demo")).items
    told = {one.kind: one.done_bytes for one in history}
    assert told[Operation.ARCHIVING] == archive.new_bytes
    assert archive.new_bytes >= told[Operation.RESTORING] == 1000
    assert told[Operation.STARTING] == 0
    assert (moved("packed") - packed, moved("restored") - restored) == (archive.new_bytes, 1000)


async def test_a_wake_is_measured_from_the_request_and_a_restart_does_not_count(database_url: str) -> None:
    async with control_plane(database_url) as here:
        workspace_id = (await here.wishes.create(here.user, name="demo")).id
        await here.until_phase("demo", Phase.RUNNING)
        await here.wishes.wish(here.user, "demo", Wish.STANDBY)
        await here.until_phase("demo", Phase.STANDBY)
        before, seconds = wakes(), woken_s()
        here.world.effects_s = 0.2
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        woken = await here.until_phase("demo", Phase.RUNNING)
        here.world.effects_s = 0.0
        assert wakes() == before + 1
        took_s = (woken.phase_changed_at - woken.wished_at).total_seconds()
        assert woken_s() - seconds == pytest.approx(took_s), "from the request until it is observed as ready"
        here.world.containers[workspace_id].ended = ProgramExit(1, "")
        await here.until("demo", lambda seen: seen.revision > woken.revision and seen.phase is Phase.RUNNING)
        assert wakes() == before + 1
