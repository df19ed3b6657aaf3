"""The name of a deleted or renamed workspace stays reserved for its owner for a day. Over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from tests.support.live_api import LiveApi, live_api
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

BODY = {"name": "demo", "desired_state": "STANDBY"}
DAY_S = 86_400


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False, name_reserved_s=DAY_S) as made:
        yield made


async def create(here: LiveApi, by: str = "ada", name: str = "demo") -> tuple[int, str]:
    return said(await here.call("POST", "/workspaces", {**BODY, "name": name}, by=by))


def said(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


async def days_pass(here: LiveApi, days: float) -> None:
    await here.db.execute("UPDATE freed_names SET freed_at = freed_at - $1::interval", timedelta(days=days))


async def test_after_a_deletion_the_name_is_reserved_for_a_day(here: LiveApi) -> None:
    assert await create(here) == (201, "")
    deleted = await here.call("DELETE", "/workspaces/demo")
    assert deleted.status_code < 300
    for other in ("bob", "root"):
        refused = await here.call("POST", "/workspaces", BODY, by=other)
        assert said(refused) == (409, "name_reserved")
        free_at = datetime.fromisoformat(refused.json()["until"])
        assert timedelta(hours=23) < free_at - datetime.now(UTC) <= timedelta(days=1, minutes=1)
        assert f"{free_at:%Y-%m-%d %H:%M} UTC" in refused.json()["detail"]
        assert "choose another name" in refused.json()["detail"]
        assert "ada" not in refused.text
    assert await here.db.fetchval("SELECT count(*) FROM workspaces") == 1, "nothing is left of what was refused"
    await days_pass(here, 0.9)
    assert await create(here, "bob") == (409, "name_reserved")
    await days_pass(here, 0.2)
    assert await create(here, "bob") == (201, "")
    assert await create(here) == (409, "name_taken")


async def test_the_owner_can_reuse_the_name_at_once(here: LiveApi) -> None:
    await create(here)
    await here.call("DELETE", "/workspaces/demo")
    assert await create(here) == (201, "")
    # The time counts from the last release of the name; deleting the same workspace again does not count.
    await days_pass(here, 0.9)
    await here.call("DELETE", "/workspaces/demo")
    assert await create(here, "bob") == (409, "name_reserved")
    await days_pass(here, 0.9)
    await here.call("DELETE", "/workspaces/demo")
    await days_pass(here, 0.2)
    assert await create(here, "bob") == (201, "")


async def test_the_old_name_of_a_renamed_workspace_is_reserved(here: LiveApi) -> None:
    await create(here)
    await create(here, "bob", "bobs")
    assert (await here.call("PATCH", "/workspaces/demo", {"name": "other"})).status_code == 200
    assert await create(here, "bob") == (409, "name_reserved")
    assert said(await here.call("PATCH", "/workspaces/bobs", {"name": "demo"}, by="bob")) == (409, "name_reserved")
    assert (await here.call("PATCH", "/workspaces/other", {"standby_ttl": 400, "name": "other"})).status_code == 200
    assert (await here.call("PATCH", "/workspaces/other", {"name": "demo"})).status_code == 200
    await days_pass(here, 2)
    assert await create(here, "bob", "other") == (201, "")


async def test_undelete_is_refused_while_the_name_is_reserved(here: LiveApi) -> None:
    await create(here)
    await here.call("DELETE", "/workspaces/demo")
    assert (await here.call("POST", "/workspaces/demo/undelete")).status_code == 200
    await here.call("DELETE", "/workspaces/demo")
    await days_pass(here, 2)
    await create(here, "bob")
    await here.call("DELETE", "/workspaces/demo", by="bob")
    assert said(await here.call("POST", "/workspaces/demo/undelete")) == (409, "name_reserved")
    await days_pass(here, 2)
    assert (await here.call("POST", "/workspaces/demo/undelete")).status_code == 200


async def test_a_creation_during_the_deletion_finds_the_name_reserved(here: LiveApi) -> None:
    """It waits for the deletion to commit, so a check before that would have found no reservation."""
    await create(here)
    async with here.db.transaction():
        await here.db.execute("UPDATE workspaces SET desired_state = 'DELETED', deleted_at = now() WHERE name = 'demo'")
        creating = asyncio.create_task(create(here, "bob"))

        async def is_waiting() -> bool:
            return bool(await here.db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

        await until(is_waiting)
    assert await creating == (409, "name_reserved")


async def test_of_concurrent_creations_only_that_of_the_owner_succeeds(here: LiveApi) -> None:
    await create(here)
    await here.call("DELETE", "/workspaces/demo")
    asked = [(by, create(here, by)) for by in ("bob", "ada", "root", "bob", "ada", "root")]
    answers = await asyncio.gather(*(answer for _, answer in asked))
    created = [by for (by, _), (status, _) in zip(asked, answers, strict=True) if status == 201]
    assert created == ["ada"]
    assert {code for status, code in answers if status != 201} <= {"name_reserved", "name_taken"}
