"""Events are published in order, only by the leader, and the bus never delays them."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog

from tests.support.waiting import until
from torpor import metrics
from torpor.api.wire import workspace_json
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.feed import RedisFeed
from torpor.bus.redis import Bus
from torpor.control import events as events_module
from torpor.control.duties import run_duty
from torpor.control.events import BATCH, EventPublisher
from torpor.domain.errors import Deposed
from torpor.domain.hostnames import Hosts
from torpor.domain.records import Workspace
from torpor.store import events as store_module
from torpor.store.database import Database, Role
from torpor.store.events import Outbox

pytestmark = pytest.mark.anyio

TERM = 3
HOUR_S = 3600.0
INSERT = """
INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s)
VALUES ($1, $2, $3, 'command', 'STANDBY', 300, 86400)
"""


class Here:
    def __init__(self, connection: Any, publisher: EventPublisher, now: list[float]) -> None:
        self.db = connection
        self.publisher = publisher
        self.owner = uuid.uuid4()
        self.now = now
        self.installation = ""

    async def create(self, name: str) -> str:
        workspace_id = uuid.uuid4()
        await self.db.execute(INSERT, workspace_id, name, self.owner)
        return str(workspace_id)

    async def numbered(self) -> int:
        count: int = await self.db.fetchval("SELECT count(*) FROM outbox WHERE event_id IS NOT NULL")
        return count


@contextlib.asynccontextmanager
async def publishing(database_url: str, redis_url: str) -> AsyncIterator[Here]:
    connection = await asyncpg.connect(database_url)
    database = await Database.open(database_url, Role.CONTROLLER)
    bus = await Bus.open(redis_url)
    now = [0.0]
    encode = partial(workspace_json, hosts=Hosts("http://localhost:8080", "localhost"))
    publisher = EventPublisher(Outbox(database), RedisFeed(bus), encode=encode, retention_s=HOUR_S, clock=lambda: now[0])
    here = Here(connection, publisher, now)
    here.installation = str(await connection.fetchval("SELECT id FROM installation"))
    await connection.execute("INSERT INTO users (id, username) VALUES ($1, 'ada')", here.owner)
    await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)
    try:
        yield here
    finally:
        await bus.close()
        await database.close()
        await connection.close()


@contextlib.asynccontextmanager
async def heard(redis_url: str, pattern: str) -> AsyncIterator[list[tuple[str, dict[str, Any]]]]:
    """All messages on these channels."""
    messages: list[tuple[str, dict[str, Any]]] = []
    bus = await Bus.open(redis_url)
    async with bus.subscribed(pattern) as subscription:

        async def hear() -> None:
            while True:
                channel, message = await subscription.next()
                messages.append((channel, json.loads(message)))

        hearing = asyncio.create_task(hear())
        yield messages
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    await bus.close()


async def until_heard(messages: list[Any], count: int) -> None:
    await until(lambda: len(messages) >= count, within_s=20)


async def test_each_change_is_published_to_its_workspace_and_its_owner(database_url: str, redis_url: str) -> None:
    async with (
        publishing(database_url, redis_url) as here,
        heard(redis_url, "workspace:*") as of_workspaces,
        heard(redis_url, "user:*") as of_users,
    ):
        one, two = await here.create("one"), await here.create("two")
        await here.db.execute("UPDATE workspaces SET phase = 'ARCHIVED' WHERE name = 'one'")
        before = metrics.REGISTRY.get_sample_value("torpor_events_published_total") or 0
        await here.publisher.do(TERM)
        await until_heard(of_workspaces, 3)
        await until_heard(of_users, 3)
        assert metrics.REGISTRY.get_sample_value("torpor_events_published_total") == before + 3
    assert [channel for channel, _ in of_workspaces] == [f"workspace:{one}", f"workspace:{two}", f"workspace:{one}"]
    assert {channel for channel, _ in of_users} == {f"user:{here.owner}"}
    messages = [message for _, message in of_workspaces]
    assert [message for _, message in of_users] == messages
    assert [message["id"] - message["after"] for message in messages] == [1, 1, 1]
    assert [message["after"] for message in messages[1:]] == [message["id"] for message in messages[:2]]
    assert [message["workspace"]["phase"] for message in messages] == ["PENDING", "PENDING", "ARCHIVED"]
    assert messages[0].keys() == {"id", "after", "event", "at", "owner_id", "workspace", "seq", "unshared", "installation"}
    assert {message["installation"] for message in messages} == {here.installation}


async def test_more_events_than_one_batch_are_all_published(database_url: str, redis_url: str) -> None:
    async with publishing(database_url, redis_url) as here, heard(redis_url, "workspace:*") as messages:
        await here.create("one")
        async with here.db.transaction():
            for _ in range(BATCH + 20):
                await here.db.execute("UPDATE workspaces SET wish_version = wish_version + 1")
        await here.publisher.do(TERM)
        await until_heard(messages, BATCH + 21)
    ids = [message["id"] for _, message in messages]
    assert ids == list(range(ids[0], ids[0] + BATCH + 21))
    assert [message["workspace"]["wish_version"] for _, message in messages] == list(range(1, BATCH + 22))


async def test_a_deposed_leader_publishes_nothing(database_url: str, redis_url: str) -> None:
    async with publishing(database_url, redis_url) as here, heard(redis_url, "*") as messages:
        await here.create("one")
        await here.db.execute("UPDATE system_locks SET epoch = epoch + 1")
        with pytest.raises(Deposed):
            await run_duty(here.publisher, TERM)
        assert await here.numbered() == 0
        await here.publisher.do(TERM + 1)
        await until_heard(messages, 2)
    assert len(messages) == 2, "one event on two channels, from the leader"


async def test_the_publisher_runs_when_a_workspace_changes(database_url: str, redis_url: str) -> None:
    async with publishing(database_url, redis_url) as here, heard(redis_url, "workspace:*") as messages:
        here.publisher.interval_s = HOUR_S
        await here.db.add_listener("workspace_changes", lambda *_: here.publisher.wake.set())
        tending = asyncio.create_task(run_duty(here.publisher, TERM))
        for number in range(5):
            await here.create(f"w-{number}")
            await until_heard(messages, number + 1)
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)


async def test_events_are_numbered_without_the_bus(database_url: str, tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path) as valkey, publishing(database_url, valkey.url) as here:
        await valkey.stop()
        await here.create("one")
        async with here.db.transaction():
            for _ in range(2 * BATCH):
                await here.db.execute("UPDATE workspaces SET wish_version = wish_version + 1")
        await here.publisher.do(TERM)
        assert await here.numbered() == 2 * BATCH + 1
        await valkey.start()
        async with heard(valkey.url, "workspace:*") as messages:
            await here.create("two")
            await here.publisher.do(TERM)
            await until_heard(messages, 1)
        assert messages[0][1]["after"] == 2 * BATCH + 2, "so that subscribers detect the gap"


async def test_old_events_are_pruned_from_time_to_time(database_url: str, redis_url: str) -> None:
    async with publishing(database_url, redis_url) as here:
        await here.create("one")
        async with here.db.transaction():
            for _ in range(BATCH + 20):
                await here.db.execute("UPDATE workspaces SET wish_version = wish_version + 1")
        await here.publisher.do(TERM)
        await here.db.execute("UPDATE outbox SET at = at - interval '2 hours'")
        await here.publisher.do(TERM)
        assert await here.numbered() == BATCH + 21, "not with every turn"
        here.now[0] += HOUR_S
        here.publisher.wake.clear()
        await here.publisher.do(TERM)
        assert await here.numbered() == 21, "one batch in a turn: new events do not wait for all of them"
        assert here.publisher.wake.is_set(), "the next turn follows at once"
        await here.create("new")
        await here.publisher.do(TERM)
        assert await here.numbered() == 1
        assert await here.db.fetchval("SELECT pruned_id = last_id - 1 FROM event_counter")
        here.publisher.wake.clear()
        await here.publisher.do(TERM)
        assert not here.publisher.wake.is_set(), "there is no further batch"


@pytest.mark.parametrize("fault", ["stored", "told"])
async def test_an_unreadable_event_does_not_delay_the_others(database_url: str, redis_url: str, fault: str) -> None:
    async with publishing(database_url, redis_url) as here, heard(redis_url, "workspace:*") as messages:
        encode = here.publisher._encode

        def broken(workspace: Workspace) -> Mapping[str, Any]:
            if fault == "told" and workspace.name == "broken":
                raise ZeroDivisionError
            return encode(workspace)

        here.publisher._encode = broken
        for name in ("one", "broken", "two"):
            await here.create(name)
        if fault == "stored":
            # As if a later version changed the type of a column.
            await here.db.execute("UPDATE outbox SET row = row || '{\"version\": \"x\"}' WHERE row ->> 'name' = 'broken'")
        await here.publisher.do(TERM)
        await until_heard(messages, 2)
        assert await here.numbered() == 3
    (one, two) = (message for _, message in messages)
    assert [one["workspace"]["name"], two["workspace"]["name"]] == ["one", "two"]
    assert two["after"] == one["id"] + 1, "subscribers see that there was one more"


async def test_long_events_are_sent_in_parts(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "AT_ONCE_BYTES", 3000)
    async with publishing(database_url, redis_url) as here, heard(redis_url, "workspace:*") as messages:
        parts: list[int] = []
        publish = here.publisher._feed.publish

        async def counted(part: Sequence[tuple[str, bytes]]) -> None:
            parts.append(len(part))
            await publish(part)

        monkeypatch.setattr(here.publisher._feed, "publish", counted)
        for number in range(10):
            await here.create(f"w-{number}")
        await here.publisher.do(TERM)
        await until_heard(messages, 10)
    assert [message["workspace"]["name"] for _, message in messages] == [f"w-{number}" for number in range(10)]
    assert len(parts) > 2
    assert sum(parts) == 20


async def test_many_unnumbered_events_are_logged(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MANY_UNNUMBERED", BATCH)
    async with publishing(database_url, redis_url) as here:
        await here.create("one")
        for more, is_warned in ((BATCH - 2, False), (2 * BATCH + 1, True)):
            async with here.db.transaction():
                for _ in range(more):
                    await here.db.execute("UPDATE workspaces SET wish_version = wish_version + 1")
            with structlog.testing.capture_logs() as logged:
                await here.publisher.do(TERM)
            assert ("events_unnumbered" in [line["event"] for line in logged]) is is_warned
