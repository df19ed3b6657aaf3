"""Does a provider that is out for ten minutes leave anybody in ERROR?

One second here is a hundred there: every deadline and every pause between retries is a hundredth of what it is by default, and
so is the outage.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial

import asyncpg
import pytest

from tests.control.plant import Plant, plant
from torpor.api.wire import workspace_out
from torpor.cli import render
from torpor.cli.plain import to_text
from torpor.domain.explain import explain
from torpor.domain.hosts import Hosts
from torpor.domain.knobs import TIMEOUTS_S, Knobs
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Phase, Stage, Wish

pytestmark = pytest.mark.anyio

SCALE = 100
OUTAGE_S = 600 / SCALE
KNOBS = Knobs(
    timeouts_s={operation: timeout_s / SCALE for operation, timeout_s in TIMEOUTS_S.items()},
    retry_base_s=30 / SCALE,
    retry_cap_s=300 / SCALE,
    restart_base_s=2 / SCALE,
)
# From where, to where: every operation there is.
JOURNEYS = [
    (None, Wish.RUNNING),
    (None, Wish.ARCHIVED),
    (Wish.STANDBY, Wish.RUNNING),
    (Wish.STANDBY, Wish.ARCHIVED),
    (Wish.RUNNING, Wish.STANDBY),
    (Wish.RUNNING, Wish.ARCHIVED),
    (Wish.ARCHIVED, Wish.RUNNING),
    (Wish.ARCHIVED, Wish.STANDBY),
    (Wish.RUNNING, None),
    (Wish.RUNNING, Wish.RUNNING),
]


async def arrive(here: Plant, names: Sequence[str], wishes: Sequence[Wish | None]) -> None:
    for name, wish in zip(names, wishes, strict=True):
        phase = Phase.DELETED if wish is None else Phase(wish.value)
        await here.until(name, partial(_is_at, phase), within_s=40)


def _is_at(phase: Phase, seen: Workspace) -> bool:
    return seen.phase is phase and seen.operation is Operation.NONE


@pytest.mark.parametrize("out", ["runtime_out", "archives_out", "both"])
async def test_ten_minutes_without_a_provider_leave_nobody_in_error(database_url: str, out: str) -> None:
    async with plant(database_url, knobs=KNOBS) as here:
        names = [f"w-{number}" for number in range(len(JOURNEYS))]
        made = [(name, start) for name, (start, _) in zip(names, JOURNEYS, strict=True) if start is not None]
        ids = {}
        for name, first in made:
            ids[name] = (await here.wishes.create(here.user, name=name, desired_state=first)).id
        await arrive(here, [name for name, _ in made], [start for _, start in made])

        for provider in ("runtime_out", "archives_out") if out == "both" else (out,):
            setattr(here.world, provider, True)
        for name, (start, end) in zip(names, JOURNEYS, strict=True):
            if start is None:
                assert end is not None
                ids[name] = (await here.wishes.create(here.user, name=name, desired_state=end)).id
            elif end is None:
                await here.wishes.delete(here.user, name)
            else:
                await here.wishes.wish(here.user, name, end)
        await asyncio.sleep(OUTAGE_S)
        here.world.runtime_out = here.world.archives_out = False
        await arrive(here, [ids[name] for name in names], [end for _, end in JOURNEYS])

    owner = await asyncpg.connect(database_url)
    errors = await owner.fetch("SELECT row ->> 'name' AS name, row -> 'error_info' AS why FROM outbox WHERE kind = 'error'")
    await owner.close()
    assert [dict(error) for error in errors] == [], "not even for a moment"


async def test_an_archive_store_that_is_out_is_named_with_every_attempt_until_it_answers(database_url: str) -> None:
    async with plant(database_url) as here:
        await here.wishes.create(here.user, name="w", desired_state=Wish.STANDBY)
        await here.until_phase("w", Phase.STANDBY)
        here.world.archives_out = True
        await here.wishes.wish(here.user, "w", Wish.ARCHIVED)
        waiting = await here.until("w", lambda seen: seen.stage is Stage.BACKOFF and seen.op_attempt >= 4)
        told = explain(waiting, ())
        assert told.waiting_for is not None
        assert told.waiting_for.what == f"the next attempt after {waiting.op_attempt} failed"
        assert told.why is not None
        assert "the archive store cannot be reached: the fake archive store is out" in told.why
        assert f"({waiting.op_attempt} attempts so far)" in told.why
        calling = await here.until("w", lambda seen: seen.op_attempt > waiting.op_attempt and seen.stage is Stage.CALL)
        assert explain(calling, ()).why is not None, "also while the next attempt is being made"
        item = json.loads(workspace_out(waiting, hosts=Hosts("http://localhost:8080", "localhost:8080")).model_dump_json())
        shown = to_text(render.workspace(item, waiting.created_at))
        assert "the archive store cannot be reached" in shown

        here.world.archives_out = False
        arrived = await here.until_phase("w", Phase.ARCHIVED)
        assert (arrived.conditions.healthy.reason, explain(arrived, ()).why) == ("Healthy", None)
