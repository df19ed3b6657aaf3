"""Users are warned once before a stop, and the warning is withdrawn if the stop will not come. With a real PostgreSQL and
Valkey."""

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.support.idle_stage import LEASE_S, TERM, IdleStage, idle_stage
from torpor.control.idle_watch import SHORTEST_PAUSE_PART, IdleWatch
from torpor.domain.errors import Deposed
from torpor.domain.records import Workspace
from torpor.domain.sleep_warning import warning_s
from torpor.domain.states import Wish
from torpor.service.activity import use_reader
from torpor.store.queries import SERVICE_STORE
from torpor.store.service_store import SleepWarning

pytestmark = pytest.mark.anyio

TTL_S = 1800


@pytest.fixture
async def night(database_url: str, redis_url: str) -> AsyncIterator[IdleStage]:
    async with idle_stage(database_url, redis_url) as made:
        yield made


async def remembers(night: IdleStage) -> None:
    """The bus has recorded use for a day."""
    await night.activity.memory_s()
    kept = (await night.bus.ask(("GET", "torpor:memory")))[0].decode()
    since, run = kept.split(" ", 1)
    await night.bus.ask(("SET", "torpor:memory", f"{int(since) - 86_400_000} {run}"))


async def unused(night: IdleStage, name: str = "ada", *, for_s: float = TTL_S - 200, ttl_s: int = TTL_S) -> Workspace:
    made = await night.workspace(name, idle_s=for_s)
    await night.set(made, f"standby_ttl_s = {ttl_s}")
    return await night.look(made)


def was_used(seconds_ago: float) -> str:
    return ", ".join(
        f"{time} = now() - make_interval(secs => {seconds_ago})" for time in ("last_access_at", "phase_changed_at", "wished_at")
    )


async def events(night: IdleStage, workspace: Workspace) -> list[str]:
    told = await night.owner.fetch("SELECT kind FROM outbox WHERE workspace_id = $1 ORDER BY seq", uuid.UUID(workspace.id))
    return [row["kind"] for row in told]


async def left_s(night: IdleStage, workspace: Workspace) -> float | None:
    at = (await night.look(workspace)).sleeps_at
    return None if at is None else (at - await night.service.now()).total_seconds()


async def test_a_warning_is_sent_once_and_is_an_event(night: IdleStage) -> None:
    near, far = await unused(night, "near"), await unused(night, "far", for_s=TTL_S - 310)
    await remembers(night)
    before = await events(night, near)
    await night.watch.do(TERM)
    warned = await night.look(near)
    assert 190 < (await left_s(night, near) or 0) < 201
    assert (warned.desired_state, warned.wish_version) == (Wish.RUNNING, near.wish_version)
    assert warned.last_access_at == near.last_access_at, "a warning is not use"
    assert await events(night, near) == [*before, "sleeping_soon"]
    assert (await night.look(far)).sleeps_at is None
    written = await night.owner.fetch("SELECT xmin FROM workspaces ORDER BY id")
    await night.watch.do(TERM)
    assert await night.owner.fetch("SELECT xmin FROM workspaces ORDER BY id") == written
    assert await events(night, near) == [*before, "sleeping_soon"]


async def test_use_clears_the_warning_and_the_next_one_is_sent_again(night: IdleStage) -> None:
    touched, connected, busy = [await unused(night, name) for name in ("touched", "connected", "busy")]
    await remembers(night)
    await night.watch.do(TERM)
    assert all([(await night.look(one)).sleeps_at for one in (touched, connected, busy)])
    await night.activity.touch({touched.id: TTL_S})
    await night.activity.renew({connected.id: frozenset({"a-connection"})}, lease_s=60)
    await night.activity.busy({busy.id: "the command 'make' runs in a terminal"}, lease_s=60)
    await night.watch.do(TERM)
    for one in (touched, connected, busy):
        assert (await night.look(one)).sleeps_at is None
        assert (await events(night, one))[-2:] == ["sleeping_soon", "state_changed"]
    await night.activity.touch({touched.id: 250})
    await night.set(touched, f"last_access_at = '{touched.last_access_at}'")
    await night.watch.do(TERM)
    assert 240 < (await left_s(night, touched) or 0) < 251


async def test_a_hold_clears_the_warning_at_once_and_its_end_is_warned_of(night: IdleStage) -> None:
    ada = await unused(night, for_s=TTL_S + 10_000)
    await remembers(night)
    await night.using.hold(night.user, ada, reason="a short test", seconds=250)
    await night.watch.do(TERM)
    assert 240 < (await left_s(night, ada) or 0) < 251, "only the lease keeps it awake"
    await night.using.hold(night.user, ada, reason="kept awake for 1 hour", seconds=3600)
    assert (await night.look(ada)).sleeps_at is None
    await night.watch.do(TERM)
    assert (await night.look(ada)).sleeps_at is None
    assert (await events(night, ada))[-2:] == ["sleeping_soon", "state_changed"]


CLEARING = [
    "wish_version = wish_version + 1",
    "desired_state = 'STANDBY'",
    "phase = 'STANDBY'",
    "operation = 'STOPPING', stage = 'CALL', op_id = id, op_started_at = now(), deadline_at = now()",
    "last_access_at = now()",
    "standby_ttl_s = 1000000",
    "error_info = jsonb_build_object('reason', 'Timeout', 'message', '', 'is_terminal', true, 'operation', 'NONE',"
    " 'error_count', 1, 'occurred_at', now(), 'wish_version', 1, 'context', '{}'::jsonb)",
]


async def test_a_change_that_prevents_the_stop_clears_the_warning(night: IdleStage) -> None:
    rows = [await unused(night, f"w{number}") for number in range(len(CLEARING))]
    await remembers(night)
    await night.watch.do(TERM)
    for row, change in zip(rows, CLEARING, strict=True):
        assert (await night.look(row)).sleeps_at is not None
        await night.set(row, change)
        assert (await night.look(row)).sleeps_at is None, change
        assert (await events(night, row))[-1] in ("state_changed", "error")


async def test_no_warning_is_sent_after_redis_lost_its_data(night: IdleStage) -> None:
    ada, eve = await unused(night, "ada"), await unused(night, "eve")
    await remembers(night)
    await night.watch.do(TERM)
    assert (await night.look(ada)).sleeps_at is not None
    await night.bus.ask(("FLUSHALL",))
    await night.set(eve, "sleeps_at = NULL")
    await night.watch.do(TERM)
    assert (await night.look(ada)).sleeps_at is None, "open connections are not reported yet"
    assert (await night.look(eve)).sleeps_at is None


async def test_a_request_or_a_hold_during_the_check_is_not_overwritten(night: IdleStage) -> None:
    wished, held = await unused(night, "wished"), await unused(night, "held")
    await remembers(night)
    ask = use_reader(night.activity)

    async def wishing(workspace_ids: Sequence[str]) -> Any:
        if workspace_ids:
            await night.wishes.wish(night.user, "wished", Wish.RUNNING)
            await night.using.hold(night.user, held, reason="a long build", seconds=3600)
        return await ask(workspace_ids)

    await IdleWatch(night.using, wishing, interval_s=60, lease_s=LEASE_S).do(TERM)
    assert [(await night.look(one)).sleeps_at for one in (wished, held)] == [None, None]


async def test_a_stop_clears_the_warning_and_a_late_warning_precedes_the_stop(night: IdleStage) -> None:
    ada = await unused(night, for_s=TTL_S + 100)
    await remembers(night)
    await night.watch.do(TERM)
    asleep = await night.look(ada)
    assert (asleep.desired_state, asleep.sleeps_at) == (Wish.STANDBY, None)
    assert (await events(night, ada))[-2:] == ["sleeping_soon", "state_changed"]


async def test_a_warning_that_cannot_be_written_prevents_no_stop(night: IdleStage) -> None:
    near, due = await unused(night, "near"), await unused(night, "due", for_s=TTL_S + 100)
    await night.owner.execute("ALTER TABLE workspaces ADD CONSTRAINT never CHECK (sleeps_at IS NULL)")
    await remembers(night)
    await night.watch.do(TERM)
    assert [await night.wish_of(one) for one in (near, due)] == [Wish.RUNNING, Wish.STANDBY]


async def test_a_deposed_leader_sends_no_warning(night: IdleStage) -> None:
    ada = await unused(night)
    await remembers(night)
    await night.owner.execute("UPDATE system_locks SET epoch = epoch + 1")
    with pytest.raises(Deposed):
        await night.watch.do(TERM)
    with pytest.raises(Deposed):
        await night.using.warn([SleepWarning(ada, await night.service.now())], term=TERM)
    assert (await night.look(ada)).sleeps_at is None


async def test_the_watch_runs_earlier_before_a_warning_and_while_one_is_active(night: IdleStage) -> None:
    await remembers(night)
    interval_s, shortest_s = night.watch.interval_s, night.watch.interval_s * SHORTEST_PAUSE_PART
    assert await night.watch.do(TERM) == interval_s
    ada = await unused(night, "ada", for_s=TTL_S - 330)
    assert 20 < await night.watch.do(TERM) <= 30
    await night.set(ada, was_used(TTL_S - 301))
    assert await night.watch.do(TERM) == shortest_s
    await night.set(ada, was_used(TTL_S - 200))
    assert await night.watch.do(TERM) == shortest_s, "new use must be detected soon"
    await night.set(ada, "last_access_at = now()")
    assert await night.watch.do(TERM) == interval_s


@pytest.mark.parametrize("ttl_s", [1, 2, 10, 100, 899, 900, 901, 86_400])
async def test_the_database_and_the_rule_agree_on_when_to_warn(night: IdleStage, ttl_s: int) -> None:
    assert await night.owner.fetchval("SELECT warning_s($1)", ttl_s) == pytest.approx(warning_s(ttl_s))
    ada = await unused(night, ttl_s=ttl_s)
    for early_s, is_read in ((5.0, False), (-0.1, True)):
        await night.set(
            ada,
            f"last_access_at = now() - make_interval(secs => {ttl_s - warning_s(ttl_s) - early_s}),"
            " phase_changed_at = '-infinity', wished_at = '-infinity'",
        )
        page = await night.service.due(Wish.STANDBY, after=None, limit=10)
        assert [one.workspace.id for one in page.due] == ([ada.id] if is_read else [])


async def test_the_next_due_workspace_is_found_by_the_index(night: IdleStage) -> None:
    await night.owner.execute("SET enable_seqscan = off")
    await night.owner.execute("SET enable_bitmapscan = off")
    plan = "\n".join(row[0] for row in await night.owner.fetch(f"EXPLAIN {SERVICE_STORE['next_standby_due']}"))
    assert "workspaces_standby_due" in plan
    assert "Sort" not in plan
