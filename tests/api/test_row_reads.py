"""One request reads the row of its workspace as few times as correctness allows."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.domain.access import Share
from torpor.domain.states import Wish

pytestmark = pytest.mark.anyio

READ = re.compile(r"^SELECT workspaces\.\*", re.MULTILINE)
WRITE = re.compile(r"^(UPDATE|INSERT INTO) workspaces", re.MULTILINE)


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        await made.create("demo")
        yield made


class Statements:
    """The statements that the service sends on its first connection, which serves all of a test's sequential calls."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    async def watch(self, here: LiveApi) -> None:
        async with here.service._pool.acquire() as connection:
            connection.add_query_logger(self._log)

    def _log(self, record: Any) -> None:
        self._sent.append(record.query)

    def count(self) -> tuple[int, int]:
        """How often a workspace's row was read, and written, since the last call."""
        sent, self._sent = self._sent, []
        reads, writes = ([one for one in sent if pattern.search(one)] for pattern in (READ, WRITE))
        return len(reads), len(writes)


async def test_a_request_does_not_read_its_row_again(here: LiveApi) -> None:
    ada = here.people["ada"].caller
    statements = Statements()
    await statements.watch(here)

    async def counted(work: Any) -> tuple[int, int]:
        statements.count()
        await work
        return statements.count()

    wishes = here.wishes
    assert await counted(wishes.create(ada, name="new", desired_state=Wish.STANDBY)) == (0, 1)
    # Once without a lock for the disk check, which asks the engine, and once with the lock.
    assert await counted(wishes.wish(ada, "demo", Wish.RUNNING)) == (2, 1)
    assert await counted(wishes.wake(ada, "demo")) == (2, 1), "it runs already: only its last use is written"
    assert await counted(wishes.wish(ada, "demo", Wish.ARCHIVED)) == (1, 1)
    assert await counted(wishes.wake(ada, "demo")) == (2, 1)
    assert await counted(wishes.change(ada, "demo", standby_ttl_s=60)) == (1, 1)
    assert await counted(wishes.change(ada, "demo")) == (1, 0)
    assert await counted(wishes.sharing.share(ada, "demo", "bob", Share.USE)) == (1, 1)
    assert await counted(wishes.delete(ada, "demo")) == (1, 1)
    assert await counted(wishes.undelete(ada, "demo")) == (1, 1)


async def test_the_answer_is_the_row_that_was_written(here: LiveApi) -> None:
    ada = here.people["ada"].caller
    made = await here.wishes.create(ada, name="new", desired_state=Wish.STANDBY)
    assert made == await here.wishes.find(ada, made.id)
    for change in (
        {"desired_state": Wish.RUNNING},
        {"standby_ttl_s": 60, "name": "other"},
        {"desired_state": Wish.ARCHIVED, "archive_ttl_s": 90},
        {},
    ):
        changed = await here.wishes.change(ada, made.id, **change)
        assert changed == await here.wishes.find(ada, made.id), change
    for deleted in (await here.wishes.delete(ada, made.id), await here.wishes.undelete(ada, made.id)):
        assert deleted.id == made.id
    assert deleted == await here.wishes.find(ada, made.id)


@pytest.mark.parametrize("target", ["demo", "id"])
async def test_a_row_that_a_caller_may_not_see_is_not_locked(here: LiveApi, target: str) -> None:
    named = target if target != "id" else (await here.wishes.find(here.people["ada"].caller, "demo")).id
    async with here.db.transaction():
        await here.db.execute("SELECT FROM workspaces WHERE name = 'demo' FOR UPDATE")
        refused = await here.call("DELETE", f"/workspaces/{named}", by="bob")
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
