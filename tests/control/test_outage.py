"""A provider outage of ten minutes leaves no workspace with an error.

One second here stands for a hundred: every deadline, every pause between retries and the outage is a hundredth of its default.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import asyncpg
import pytest

from tests.support.builders import NOW, error, workspace
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.waiting import until
from torpor import metrics
from torpor.api.wire import workspace_out
from torpor.cli.output import render
from torpor.cli.output.plain import to_text
from torpor.domain.errors import Reason
from torpor.domain.explain import explain
from torpor.domain.hostnames import Hosts
from torpor.domain.outage import runtime_is_out
from torpor.domain.records import Workspace, WorkspaceCondition
from torpor.domain.states import HealthStatus, Operation, Outage, Phase, Stage, Wish
from torpor.testing.defaults import DEFAULTS, tuning

pytestmark = pytest.mark.anyio

SCALE = 100
OUTAGE_S = 600 / SCALE
KNOBS = tuning(
    timeouts_s={operation: timeout_s / SCALE for operation, timeout_s in DEFAULTS.tuning.timeouts_s.items()},
    retry_base_s=30 / SCALE,
    retry_cap_s=300 / SCALE,
    restart_base_s=2 / SCALE,
)
# Start and requested state for every operation.
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


async def arrive(here: ControlPlane, names: Sequence[str], wishes: Sequence[Wish | None]) -> None:
    for name, wish in zip(names, wishes, strict=True):
        phase = Phase.DELETED if wish is None else Phase(wish.value)
        await here.until(name, partial(_is_at, phase), within_s=40)


def _is_at(phase: Phase, seen: Workspace) -> bool:
    return seen.phase is phase and seen.operation is Operation.NONE


@pytest.mark.parametrize("out", ["runtime_out", "archives_out", "both"])
async def test_ten_minutes_without_a_provider_cause_no_error(database_url: str, out: str) -> None:
    async with control_plane(database_url, tuning=KNOBS) as here:
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


def shown(workspace: Workspace) -> str:
    item = json.loads(workspace_out(workspace, hosts=Hosts("http://localhost:8080", "localhost:8080")).model_dump_json())
    return to_text(render.workspace(item, workspace.created_at))


async def outages_told(database_url: str) -> list[str]:
    """The reasons of `healthy` in the events of the outbox, without repetitions."""
    owner = await asyncpg.connect(database_url)
    try:
        rows = await owner.fetch(
            "SELECT row -> 'conditions' -> 'policy.healthy' ->> 'reason' AS reason FROM outbox ORDER BY seq"
        )
    finally:
        await owner.close()
    return [reason for reason, _ in itertools.groupby(row["reason"] or "" for row in rows)]


async def test_an_outage_of_the_archive_store_is_shown_until_it_ends(database_url: str) -> None:
    async with control_plane(database_url) as here:
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
        assert waiting.outage is not None
        assert waiting.outage.last_transition_time is not None
        assert f", since {waiting.outage.last_transition_time.isoformat(timespec='seconds')}." in told.why
        calling = await here.until("w", lambda seen: seen.op_attempt > waiting.op_attempt and seen.stage is Stage.CALL)
        assert explain(calling, ()).why is not None, "also while the next attempt is being made"
        assert calling.outage is not None
        assert calling.outage.last_transition_time == waiting.outage.last_transition_time, (
            "since the begin of the outage, not since the last attempt"
        )
        assert "the archive store cannot be reached" in shown(waiting)

        here.world.archives_out = False
        arrived = await here.until_phase("w", Phase.ARCHIVED)
        assert (arrived.conditions.healthy.reason, explain(arrived, ()).why) == ("Healthy", None)


async def test_an_outage_of_the_archive_store_is_an_event_when_it_begins_and_when_it_ends(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await here.wishes.create(here.user, name="w", desired_state=Wish.STANDBY)
        await here.until_phase("w", Phase.STANDBY)
        here.world.archives_out = True
        await here.wishes.wish(here.user, "w", Wish.ARCHIVED)
        await here.until("w", lambda seen: seen.outage is not None)
        assert (await outages_told(database_url))[-1] == Outage.ARCHIVE_STORE
        began = await events_so_far(database_url)
        await here.until("w", lambda seen: seen.stage is Stage.BACKOFF and seen.op_attempt >= 5)
        assert await events_so_far(database_url) == began, "attempts cause no events"
        here.world.archives_out = False
        await here.until_phase("w", Phase.ARCHIVED)
    assert (await outages_told(database_url))[-2:] == [Outage.ARCHIVE_STORE, "Healthy"]


async def events_so_far(database_url: str) -> int:
    owner = await asyncpg.connect(database_url)
    try:
        count: int = await owner.fetchval("SELECT count(*) FROM outbox")
    finally:
        await owner.close()
    return count


def looks_so_far() -> float:
    return metrics.REGISTRY.get_sample_value("torpor_observe_seconds_count", {"provider": "fake"}) or 0.0


@pytest.mark.parametrize("is_under_way", [False, True], ids=["before it begins", "under way"])
async def test_an_outage_of_the_runtime_is_shown_with_its_start_until_it_ends(database_url: str, is_under_way: bool) -> None:
    async with control_plane(database_url) as here:
        await here.wishes.create(here.user, name="w", desired_state=Wish.STANDBY)
        await here.wishes.create(here.user, name="at-rest", desired_state=Wish.STANDBY)
        await here.until_phase("w", Phase.STANDBY)
        at_rest = await here.until_phase("at-rest", Phase.STANDBY)
        if is_under_way:
            here.world.starts_ready = False
            await here.wishes.wish(here.user, "w", Wish.RUNNING)
            await here.until("w", lambda seen: seen.stage is Stage.SEE)
        here.world.runtime_out = True
        await here.wishes.wish(here.user, "w", Wish.RUNNING)
        waiting = await here.until("w", lambda seen: seen.outage is not None)
        told = explain(waiting, ())
        assert told.why is not None
        assert "the runtime cannot be reached: the fake runtime is out, since 20" in told.why
        assert "the runtime cannot be reached" in shown(waiting)
        assert (await outages_told(database_url))[-1] == Outage.RUNTIME
        began, looks = await events_so_far(database_url), looks_so_far()
        await until(lambda: looks_so_far() > looks + 4)
        later = await here.show("w")
        assert later.version == waiting.version, "no write for each failed observation"
        assert await events_so_far(database_url) == began
        assert (await here.show("at-rest")).version == at_rest.version, "it does not wait"

        here.world.runtime_out, here.world.starts_ready = False, True
        for held in here.world.containers.values():
            held.ready = True
        arrived = await here.until_phase("w", Phase.RUNNING)
        assert (arrived.conditions.healthy.reason, explain(arrived, ()).why) == ("Healthy", None)
    assert (await outages_told(database_url))[-2:] == [Outage.RUNTIME, "Healthy"]


async def test_an_outage_of_the_runtime_does_not_make_an_error_healthy() -> None:
    row = workspace(phase=Phase.ERROR, desired_state=Wish.RUNNING, wish_version=6, error=error(Reason.TIMEOUT, wish_version=5))
    unhealthy = replace(row, conditions=replace(row.conditions, healthy=WorkspaceCondition(False, "Timeout", "late")))
    change = runtime_is_out(unhealthy, "no answer", now=NOW, epoch=1)
    assert change is not None
    assert change.after.health_status is HealthStatus.ERROR
    assert change.after.outage is not None
    standing = replace(unhealthy, error=error(Reason.TIMEOUT, wish_version=6))
    assert runtime_is_out(standing, "no answer", now=NOW, epoch=1) is None, "it waits for its user, not for the runtime"
