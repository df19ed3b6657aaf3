"""Exactly the workspaces that are not in use are stopped. With a real PostgreSQL and a real Valkey."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.idle_stage import LEASE_S, PATIENCE_S, TERM, TTL_S, IdleStage, idle_stage
from torpor import metrics
from torpor.bus.activity import RedisActivity
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.control.idle_watch import CONFIRM_AFTER_PART, MOST_FAILURES, IdleWatch, touch_on_running
from torpor.domain.errors import Deposed, Unavailable
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.service.activity import PATIENCE_PART, RETRY_PART, TouchQueue, use_reader
from torpor.store.queries import SERVICE_STORE
from torpor.testing.defaults import DEFAULTS

pytestmark = pytest.mark.anyio

CONNECTION = "a-connection"
# Like a statement that takes too long.
CANCELLING = """
CREATE FUNCTION cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.id::text = '{id}' AND NEW.desired_state = 'STANDBY' THEN
        RAISE EXCEPTION 'cancelled' USING ERRCODE = 'query_canceled';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER cancel BEFORE UPDATE ON workspaces FOR EACH ROW EXECUTE FUNCTION cancel();
"""


@pytest.fixture
async def night(database_url: str, redis_url: str) -> AsyncIterator[IdleStage]:
    async with idle_stage(database_url, redis_url) as made:
        yield made


def expired(transition: str) -> float:
    return metrics.REGISTRY.get_sample_value("torpor_ttl_expirations_total", {"transition": transition}) or 0


# ── going down ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unused_workspace_is_stopped_and_the_reason_is_recorded(night: IdleStage) -> None:
    ada, before = await night.workspace(), expired("standby")
    await night.remembers()
    await night.watch.do(TERM)
    asleep = await night.look(ada)
    assert (asleep.desired_state, asleep.wish_origin) == (Wish.STANDBY, WishOrigin.IDLE)
    assert asleep.wish_version == ada.wish_version + 1
    assert asleep.wished_at > ada.wished_at
    assert asleep.last_access_at == ada.last_access_at, "an automatic stop is not use"
    assert night.hints == [ada.id]
    assert expired("standby") == before + 1
    await night.watch.do(TERM)
    assert (await night.look(ada)).wish_version == asleep.wish_version


async def test_a_home_is_archived_without_the_bus(database_url: str, tmp_path: Path) -> None:
    async with idle_stage(database_url, f"unix://{tmp_path}/nowhere") as night:
        old = await night.workspace("old", phase=Phase.STANDBY, idle_s=100_000)
        fresh = await night.workspace("fresh", phase=Phase.STANDBY, idle_s=10)
        runs = await night.workspace("runs", phase=Phase.RUNNING, idle_s=100_000)
        before = expired("archive")
        with pytest.raises(Unavailable):
            await night.watch.do(TERM)
        assert [await night.wish_of(one) for one in (old, fresh, runs)] == [Wish.ARCHIVED, Wish.STANDBY, Wish.RUNNING]
        assert (await night.look(old)).wish_origin is WishOrigin.IDLE
        assert expired("archive") == before + 1


async def test_more_than_one_page_is_checked(night: IdleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.control.idle_watch.PAGE", 2)
    idle = [await night.workspace(f"idle-{number}") for number in range(5)]
    used = [await night.workspace(f"used-{number}") for number in range(5)]
    await night.remembers()
    await night.activity.touch({one.id: 60 for one in used})
    await night.watch.do(TERM)
    assert {await night.wish_of(one) for one in idle} == {Wish.STANDBY}
    assert {await night.wish_of(one) for one in used} == {Wish.RUNNING}


@pytest.mark.parametrize("at_once", [1, 2, 500])
async def test_an_unreadable_row_does_not_prevent_other_stops(
    night: IdleStage, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("torpor.control.idle_watch.PAGE", at_once)
    foreign = [await night.workspace(f"foreign-{number}", idle_s=7200) for number in range(2)]
    idle = [await night.workspace(f"idle-{number}") for number in range(3)]
    for one in foreign:
        await night.set(one, "conditions = '{}'")
    await night.remembers()
    await night.watch.do(TERM)
    assert {await night.wish_of(one) for one in idle} == {Wish.STANDBY}
    for one in foreign:
        await night.set(one, "conditions = NULL")
        assert await night.wish_of(one) is Wish.RUNNING


async def test_a_lowered_ttl_counts_for_a_timer_that_is_running(night: IdleStage) -> None:
    ada = await night.workspace()
    await night.remembers()
    await night.activity.touch({ada.id: 8 * 3600})
    telling = asyncio.create_task(night.touches.run())
    try:
        await night.watch.do(TERM)
        assert await night.wish_of(ada) is Wish.RUNNING, "it may have been used just now"
        await night.until_asleep(ada)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


# ── staying awake ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_live_connection_prevents_the_stop_and_a_dead_one_expires(night: IdleStage) -> None:
    ada = await night.workspace()
    await night.remembers()
    for _ in range(10):
        await night.activity.renew({ada.id: frozenset({CONNECTION})}, lease_s=2)
        # As if it was recorded long ago: only the lease shows the use.
        await night.set(ada, f"last_access_at = '{ada.last_access_at}'")
        await night.watch.do(TERM)
        assert await night.wish_of(ada) is Wish.RUNNING
        await asyncio.sleep(0.05)
    await night.until_asleep(ada)


async def test_the_use_of_a_workspace_is_recorded_once(night: IdleStage) -> None:
    ada, eve = await night.workspace("ada"), await night.workspace("eve")
    await night.remembers()
    await night.activity.renew({ada.id: frozenset({CONNECTION})}, lease_s=60)
    await night.set(eve, "standby_ttl_s = 100")
    await night.activity.touch({eve.id: 60})
    await night.watch.do(TERM)
    now = await night.owner.fetchval("SELECT clock_timestamp()")
    seen = [await night.look(one) for one in (ada, eve)]
    assert (now - seen[0].last_access_at).total_seconds() < 5
    assert 39 < (now - seen[1].last_access_at).total_seconds() < 45, "its timer was started a while ago"
    assert [one.desired_state for one in seen] == [Wish.RUNNING, Wish.RUNNING]
    written = await night.owner.fetch("SELECT xmin FROM workspaces ORDER BY id")
    await night.watch.do(TERM)
    assert await night.owner.fetch("SELECT xmin FROM workspaces ORDER BY id") == written


async def test_no_workspace_is_stopped_after_redis_lost_its_data(night: IdleStage) -> None:
    ada = await night.workspace()
    await night.remembers()
    await night.bus.ask(("FLUSHALL",))
    await night.watch.do(TERM)
    assert await night.wish_of(ada) is Wish.RUNNING
    await night.remembers()
    await night.watch.do(TERM)
    assert await night.wish_of(ada) is Wish.STANDBY


async def test_no_workspace_is_stopped_if_redis_loses_its_data_between_two_checks(night: IdleStage) -> None:
    ada = await night.workspace()
    await night.remembers()
    ask, looks = use_reader(night.activity), 0

    async def forgetting(workspace_ids: Sequence[str]) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            await night.bus.ask(("FLUSHALL",))
        return await ask(workspace_ids)

    await IdleWatch(night.using, forgetting, interval_s=60, lease_s=LEASE_S).do(TERM)
    assert looks == 2
    assert await night.wish_of(ada) is Wish.RUNNING


async def test_no_workspace_is_stopped_while_redis_is_down_or_after_its_restart(database_url: str, tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "bus")
    url = await server.start()
    try:
        async with idle_stage(database_url, url) as night:
            ada = await night.workspace()
            await night.remembers()
            await server.stop()
            with pytest.raises(Unavailable):
                await night.watch.do(TERM)
            assert await night.wish_of(ada) is Wish.RUNNING
            await server.start()
            await night.watch.do(TERM)
            assert await night.wish_of(ada) is Wish.RUNNING, "open connections are not reported yet"
            await night.remembers()
            await night.until_asleep(ada)
    finally:
        await server.stop()


async def test_a_work_lease_prevents_the_stop_until_it_ends(night: IdleStage) -> None:
    ada = await night.workspace()
    await night.remembers()
    held = await night.using.hold(night.user, ada, reason="a long build", seconds=3600)
    await night.watch.do(TERM)
    assert await night.wish_of(ada) is Wish.RUNNING
    assert not await night.using.let_sleep(
        ada.id, term=TERM, to=Wish.STANDBY, ask=use_reader(night.activity), lease_s=LEASE_S
    ), "one that came between the two looks counts as well"
    await night.using.end_hold(night.user, ada, held.id)
    await night.watch.do(TERM)
    assert await night.wish_of(ada) is Wish.STANDBY


CHANGES = [
    "operation = 'STOPPING', stage = 'CALL', op_id = id, op_started_at = now(), deadline_at = now()",
    "desired_state = 'ARCHIVED'",
    "phase = 'STANDBY'",
    "phase_changed_at = now() + interval '1 minute'",
    "wished_at = now() + interval '1 minute'",
    "last_access_at = now() + interval '1 minute'",
    "standby_ttl_s = 1000000",
    "error_info = jsonb_build_object('reason', 'Timeout', 'message', '', 'is_terminal', true, 'operation', 'NONE',"
    " 'error_count', 1, 'occurred_at', now(), 'wish_version', 1, 'context', '{}'::jsonb)",
]


async def test_a_workspace_that_changed_since_the_check_is_not_stopped(night: IdleStage) -> None:
    rows = [await night.workspace(f"w{number}") for number in range(len(CHANGES))]
    untouched = await night.workspace("untouched")
    await night.remembers()
    for row, change in zip(rows, CHANGES, strict=True):
        await night.set(row, change)
    before = [await night.look(row) for row in rows]
    ask = use_reader(night.activity)
    for row in rows:
        assert not await night.using.let_sleep(row.id, term=TERM, to=Wish.STANDBY, ask=ask, lease_s=LEASE_S)
    await night.watch.do(TERM)
    assert [await night.look(row) for row in rows] == before
    assert await night.wish_of(untouched) is Wish.STANDBY


async def test_a_workspace_that_cannot_be_stopped_does_not_prevent_other_stops(night: IdleStage) -> None:
    bad, good = await night.workspace("bad"), await night.workspace("good")
    await night.owner.execute(
        f"ALTER TABLE workspaces ADD CONSTRAINT never CHECK (id <> '{bad.id}' OR desired_state = 'RUNNING')"
    )
    await night.remembers()
    await night.watch.do(TERM)
    assert [await night.wish_of(one) for one in (bad, good)] == [Wish.RUNNING, Wish.STANDBY]


async def test_a_failed_write_of_one_row_does_not_prevent_other_stops(night: IdleStage) -> None:
    bad, good = await night.workspace("bad", idle_s=7200), await night.workspace("good")
    await night.owner.execute(CANCELLING.format(id=bad.id))
    await night.remembers()
    await night.watch.do(TERM)
    assert [await night.wish_of(one) for one in (bad, good)] == [Wish.RUNNING, Wish.STANDBY]


async def test_failed_writes_of_all_rows_end_the_turn(night: IdleStage) -> None:
    rows = [await night.workspace(f"w{number}") for number in range(MOST_FAILURES + 2)]
    await night.owner.execute(CANCELLING.format(id="' || NEW.id || '"))
    await night.remembers()
    with pytest.raises(Unavailable):
        await night.watch.do(TERM)
    assert {await night.wish_of(row) for row in rows} == {Wish.RUNNING}


async def test_a_locked_row_is_skipped(night: IdleStage) -> None:
    busy, idle = await night.workspace("busy", idle_s=7200), await night.workspace("idle")
    await night.remembers()
    async with night.owner.transaction():
        await night.set(busy, "name = 'busier'")
        async with asyncio.timeout(PATIENCE_S):
            await night.watch.do(TERM)
        assert await night.wish_of(idle) is Wish.STANDBY
    await night.watch.do(TERM)
    assert await night.wish_of(busy) is Wish.STANDBY


# ── races ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wish_comes", ["before", "at any time", "under its hands"])
async def test_a_request_wins_against_a_concurrent_automatic_stop(night: IdleStage, wish_comes: str) -> None:
    """In either order, the accepted wish wins."""
    ada = await night.workspace()
    await night.remembers()
    ask, long_ago, slept = use_reader(night.activity), ada.last_access_at, 0
    for _ in range(10):
        await night.bus.ask(("DEL", f"idle_timer:{ada.id}"))
        await night.set(ada, f"desired_state = 'RUNNING', wished_at = '{long_ago}', last_access_at = '{long_ago}'")
        may_wish = asyncio.Event()
        if wish_comes != "under its hands":
            may_wish.set()

        async def wish(may_wish: asyncio.Event = may_wish) -> None:
            await may_wish.wait()
            await night.wishes.wish(night.user, "ada", Wish.RUNNING)

        async def asked(workspace_ids: Sequence[str], may_wish: asyncio.Event = may_wish) -> Any:
            may_wish.set()
            return await ask(workspace_ids)

        wishing = asyncio.create_task(wish())
        if wish_comes == "before":
            await wishing
        slept += await night.using.let_sleep(ada.id, term=TERM, to=Wish.STANDBY, ask=asked, lease_s=LEASE_S)
        await wishing
        seen = await night.look(ada)
        assert (seen.desired_state, seen.wish_origin) == (Wish.RUNNING, WishOrigin.PERSON)
    assert slept in {"before": [0], "under its hands": [10], "at any time": range(11)}[wish_comes]


@pytest.mark.parametrize("knock_comes", ["before", "at any time", "under its hands"])
async def test_a_wake_wins_against_a_concurrent_automatic_stop(night: IdleStage, knock_comes: str) -> None:
    """After a wake was accepted, the workspace stays awake."""
    ada = await night.workspace()
    await night.remembers()
    ask, long_ago = use_reader(night.activity), ada.last_access_at
    for _ in range(10):
        await night.set(ada, f"desired_state = 'RUNNING', wished_at = '{long_ago}', last_access_at = '{long_ago}'")
        may_knock = asyncio.Event()
        if knock_comes != "under its hands":
            may_knock.set()

        async def knock(may_knock: asyncio.Event = may_knock) -> None:
            await may_knock.wait()
            assert (await night.wishes.wake(night.user, "ada")).desired_state is Wish.RUNNING

        async def asked(workspace_ids: Sequence[str], may_knock: asyncio.Event = may_knock) -> Any:
            may_knock.set()
            await asyncio.sleep(0.02)  # enough time to read the row, but not to lock it
            return await ask(workspace_ids)

        knocking = asyncio.create_task(knock())
        if knock_comes == "before":
            await knocking
        await night.using.let_sleep(ada.id, term=TERM, to=Wish.STANDBY, ask=asked, lease_s=LEASE_S)
        await knocking
        assert await night.wish_of(ada) is Wish.RUNNING


async def test_a_connection_during_the_last_check_prevents_the_stop(night: IdleStage) -> None:
    ada = await night.workspace()
    await night.remembers()
    ask = use_reader(night.activity)

    async def connecting(workspace_ids: Sequence[str]) -> Any:
        await night.activity.renew({ada.id: frozenset({CONNECTION})}, lease_s=60)
        return await ask(workspace_ids)

    assert not await night.using.let_sleep(ada.id, term=TERM, to=Wish.STANDBY, ask=connecting, lease_s=LEASE_S)
    assert await night.wish_of(ada) is Wish.RUNNING


async def test_a_deposed_leader_writes_nothing(night: IdleStage) -> None:
    ada = await night.workspace("ada")
    sleeper = await night.workspace("sleeper", phase=Phase.STANDBY, idle_s=100_000)
    await night.remembers()
    before = [await night.look(one) for one in (ada, sleeper)]
    await night.owner.execute("UPDATE system_locks SET epoch = epoch + 1")
    with pytest.raises(Deposed):
        await night.watch.do(TERM)
    await night.set(sleeper, "archive_ttl_s = 1000000")
    with pytest.raises(Deposed):
        await night.watch.do(TERM)
    await night.activity.renew({ada.id: frozenset({CONNECTION})}, lease_s=60)
    with pytest.raises(Deposed):
        await night.watch.do(TERM)
    await night.set(sleeper, f"archive_ttl_s = {sleeper.archive_ttl_s}")
    assert [await night.look(one) for one in (ada, sleeper)] == before
    assert night.hints == []


# ── touching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_reaching_running_and_requesting_it_start_the_idle_timer(night: IdleStage) -> None:
    ada = await night.workspace()
    asleep = await night.workspace("asleep", phase=Phase.STANDBY)
    assert await night.touches.tell()
    await night.bus.ask(("FLUSHALL",))
    on_phase = touch_on_running(lambda workspace_id, idle_s: touched.append((workspace_id, idle_s)))
    touched: list[tuple[str, float]] = []
    on_phase(ada)
    on_phase(asleep)
    assert touched == [(ada.id, TTL_S)]
    await asyncio.sleep(0.15)  # A touch that moves the timer by less than a tenth sends no message.
    await night.wishes.wish(night.user, "ada", Wish.RUNNING)
    assert await night.touches.tell()
    assert (await night.activity.uses([ada.id]))[ada.id].idle_timer_s is not None


async def test_a_touch_waits_for_the_bus_and_sends_the_remaining_time(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "bus")
    url = await server.start()
    bus = await Bus.open(url)
    try:
        clock = [100.0]
        touches = TouchQueue(RedisActivity(bus), lease_s=DEFAULTS.connection_lease, now=lambda: clock[0])
        await server.stop()
        touches.touch("w", 60)
        touches.touch("over", 5)
        assert not await touches.tell()
        clock[0] += 20
        touches.touch("v", 60)
        await server.start()
        assert await touches.tell()
        uses = await RedisActivity(bus).uses(["w", "v", "over"])
        assert 39 < (uses["w"].idle_timer_s or 0) <= 40
        assert 59 < (uses["v"].idle_timer_s or 0) <= 60
        assert uses["over"].idle_timer_s is None
    finally:
        await bus.close()
        await server.stop()


async def test_touches_that_change_little_are_not_sent() -> None:
    sent: list[dict[str, float]] = []
    clock = [0.0]

    class Heard(RedisActivity):
        def __init__(self) -> None:
            pass

        async def touch(self, idle_s: Any) -> None:
            sent.append(dict(idle_s))

    touches = TouchQueue(Heard(), lease_s=DEFAULTS.connection_lease, now=lambda: clock[0])
    for at in (0, 0, 1, 4.9, 5, 9, 10):
        clock[0] = at
        touches.touch("w", 300)
        await touches.tell()
    assert len(sent) == 3
    for at in (20, 20.1, 20.3):
        clock[0] = at
        touches.touch("short", 2)
        await touches.tell()
    assert len(sent) == 5


async def test_a_touch_with_a_ttl_that_was_lowered_is_sent() -> None:
    sent: list[dict[str, float]] = []
    clock = [0.0]

    class Heard(RedisActivity):
        def __init__(self) -> None:
            pass

        async def touch(self, idle_s: Any) -> None:
            sent.append(dict(idle_s))

    touches = TouchQueue(Heard(), lease_s=DEFAULTS.connection_lease, now=lambda: clock[0])
    for ttl_s in (28_800, 60, 60, 28_800):
        touches.touch("w", ttl_s)
        await touches.tell()
    assert sent == [{"w": 28_800}, {"w": 60}, {"w": 28_800}]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_no_touch_is_lost_after_an_error(error: type[BaseException]) -> None:
    sent: list[dict[str, float]] = []

    class Broken(RedisActivity):
        def __init__(self) -> None:
            self.error: type[BaseException] | None = error

        async def touch(self, idle_s: Any) -> None:
            if self.error is not None:
                raise self.error
            sent.append(dict(idle_s))

    activity = Broken()
    touches = TouchQueue(activity, lease_s=DEFAULTS.connection_lease, now=lambda: 0.0)
    touches.touch("w", 60)
    with pytest.raises(error):
        await touches.tell()
    activity.error = None
    assert await touches.tell()
    assert sent == [{"w": 60}]


def test_there_is_time_for_a_retry_between_the_two_checks() -> None:
    assert CONFIRM_AFTER_PART > PATIENCE_PART + RETRY_PART


async def test_only_a_live_controller_records_use_at_a_stop(night: IdleStage) -> None:
    ada = await night.workspace()
    joined = (
        "INSERT INTO controllers (node_id, world, expires_at)"
        " VALUES (gen_random_uuid(), 'w', now() + make_interval(secs => $1)) RETURNING epoch"
    )
    dead, living = await night.owner.fetchval(joined, -1), await night.owner.fetchval(joined, 60)
    for life in (dead, living + 1):
        await night.using.stopped([ada.id], life=life)
        assert (await night.look(ada)).last_access_at == ada.last_access_at
    await night.using.stopped([ada.id], life=living)
    assert (await night.look(ada)).last_access_at > ada.last_access_at


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("statement", ["standby_due", "archive_due"])
async def test_only_due_workspaces_are_read_by_the_index(night: IdleStage, statement: str) -> None:
    await night.owner.execute("SET enable_seqscan = off")
    await night.owner.execute("SET enable_bitmapscan = off")
    plan = await night.owner.fetch(f"EXPLAIN {SERVICE_STORE[statement]}", None, uuid.UUID(int=0), 500)
    text = "\n".join(row[0] for row in plan)
    line = next(line for line in text.splitlines() if f"workspaces_{statement}" in line)
    assert "Index" in line, text
    assert "Index Cond" in text.split(line)[1].splitlines()[1], text
