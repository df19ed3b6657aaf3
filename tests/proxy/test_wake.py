"""One wake serves all requests, and waiting requests do not query the database repeatedly."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gate_stage import GateStage, gate_stage
from torpor.domain.errors import Refused
from torpor.domain.limits import RunningLimits
from torpor.domain.outage import with_outage
from torpor.domain.states import Outage, Phase
from torpor.proxy import wake as module
from torpor.proxy.readiness import Readiness
from torpor.proxy.wake import WakeService, WorkspaceReadiness
from torpor.proxy.wake_progress import wake_progress
from torpor.store.rows import from_conditions

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GateStage]:
    async with gate_stage(database_url, redis_url, tmp_path, limits=RunningLimits(per_user=1, overall=9)) as made:
        yield made


def waking_of(here: GateStage) -> WakeService:
    return here.inside.house._waking


async def test_a_refused_wake_is_cached_for_a_moment(here: GateStage) -> None:
    await here.workspace("busy")
    ada, waking = await here.workspace(phase=Phase.STANDBY), waking_of(here)
    refused = await waking.wake(here.ada, ada)
    assert isinstance(refused, Refused)
    before = here.database.statements
    assert await asyncio.gather(*(waking.wake(here.ada, ada) for _ in range(100))) == [refused] * 100
    assert here.database.statements == before
    waking.ask_anew()
    again = await waking.wake(here.ada, ada)
    assert isinstance(again, Refused)
    assert again is not refused


async def test_a_lost_event_delays_a_wake_by_one_check(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    ada, waking = await here.workspace(phase=Phase.STANDBY), waking_of(here)
    await waking.wake(here.ada, ada)
    await here.until_heard()
    waiting = asyncio.ensure_future(waking.until("ada", lambda stand: stand.standing is Readiness.READY, within_s=10))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    # No event is published for changes without a trigger.
    async with here.db.transaction():
        await here.db.execute("SET LOCAL session_replication_role = replica")
        await here.becomes(ada, Phase.RUNNING)
    assert (await waiting).standing is Readiness.READY


async def test_the_event_of_an_outage_updates_the_waking_page(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 60.0)
    ada, waking = await here.workspace(phase=Phase.STANDBY), waking_of(here)
    await waking.wake(here.ada, ada)
    await here.until_heard()
    waiting = asyncio.ensure_future(waking.until("ada", _has_outage, within_s=20))
    out = with_outage(ada, Outage.RUNTIME, "the runtime cannot be reached: no answer", ada.created_at)
    await here.set(ada, f"conditions = '{json.dumps(from_conditions(out.conditions))}'")
    stand = await waiting
    told = wake_progress("ada", stand.workspace, stand.standing)
    assert told.moving
    assert told.error == "The runtime cannot be reached: no answer. Torpor retries until the service is available."


def _has_outage(stand: WorkspaceReadiness) -> bool:
    return stand.workspace is not None and stand.workspace.outage is not None


async def test_a_running_workspace_that_is_not_reachable_yet_is_waited_for(here: GateStage) -> None:
    ada, waking = await here.workspace(), waking_of(here)
    here.runtime.reached.clear()
    await here.until_heard()
    waiting = asyncio.ensure_future(waking.until("ada", lambda stand: stand.standing is Readiness.READY, within_s=10))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    here.runtime.reached.add(ada.id)
    assert (await waiting).standing is Readiness.READY


async def test_waiting_at_a_ready_workspace_does_not_poll(here: GateStage) -> None:
    await here.workspace()
    await here.until_heard()
    waking, looks = waking_of(here), 0

    def is_enough(stand: WorkspaceReadiness) -> bool:
        nonlocal looks
        looks += 1
        assert stand.standing is Readiness.READY
        return False

    await waking.until("ada", is_enough, within_s=0.5)
    assert looks <= 3, "at its beginning and at its end"


async def test_waiting_for_an_unknown_workspace_ends_at_once(here: GateStage) -> None:
    stand = await waking_of(here).until("nobody", lambda stand: False, within_s=60)
    assert (stand.workspace, stand.standing) == (None, Readiness.UNKNOWN)


async def test_waiting_ends_after_the_timeout(here: GateStage) -> None:
    await here.workspace(phase=Phase.STANDBY)
    stand = await waking_of(here).until("ada", lambda stand: False, within_s=0.1)
    assert stand.standing is Readiness.ASLEEP
