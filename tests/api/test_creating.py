"""Creation over HTTP: a repeated request returns the same workspace, and the creator's limits count."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.live_api import LiveApi, live_api

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
BODY = {"name": "demo", "desired_state": "STANDBY"}


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def test_the_same_key_returns_the_same_workspace(here: LiveApi) -> None:
    first = await here.call("POST", "/workspaces", BODY, headers=KEY)
    again = await here.call("POST", "/workspaces", BODY, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] == first.json()["id"]
    # Also after a rename, and with the fields in another order.
    await here.call("PATCH", "/workspaces/demo", {"name": "other"})
    later = await here.call("POST", "/workspaces", dict(reversed(BODY.items())), headers=KEY)
    assert (later.status_code, later.json()["id"], later.json()["name"]) == (201, first.json()["id"], "other")
    assert await here.db.fetchval("SELECT count(*) FROM audit WHERE action = 'workspace.create'") == 1


async def test_a_key_is_for_one_creation_of_one_user(here: LiveApi) -> None:
    await here.call("POST", "/workspaces", BODY, headers=KEY)
    for other in ({"name": "other"}, {**BODY, "standby_ttl": 300}, {"name": "demo"}):
        reused = await here.call("POST", "/workspaces", other, headers=KEY)
        assert (reused.status_code, reused.json()["code"]) == (422, "key_reused")
    theirs = await here.call("POST", "/workspaces", {**BODY, "name": "bobs"}, by="bob", headers=KEY)
    assert (theirs.status_code, theirs.json()["owner"]) == (201, "bob")
    assert (await here.call("POST", "/workspaces", BODY)).json()["code"] == "name_taken", (
        "nothing was said of it being the same"
    )


async def test_a_refused_creation_can_be_repeated_with_its_key(here: LiveApi) -> None:
    await here.db.execute("UPDATE users SET max_running = 0 WHERE username = 'ada'")
    refused = await here.call("POST", "/workspaces", {"name": "demo"}, headers=KEY)
    assert (refused.status_code, refused.json()["allowed"]) == (429, 0)
    assert int(refused.headers["retry-after"]) > 0
    await here.db.execute("UPDATE users SET max_running = 1 WHERE username = 'ada'")
    assert (await here.call("POST", "/workspaces", {"name": "demo"}, headers=KEY)).status_code == 201


async def test_concurrent_requests_with_one_key_create_one_workspace(here: LiveApi) -> None:
    answers = await asyncio.gather(*(here.call("POST", "/workspaces", BODY, headers=KEY) for _ in range(12)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await here.db.fetchval("SELECT count(*) FROM workspaces") == 1


async def test_keys_expire_after_a_day(here: LiveApi) -> None:
    await here.call("POST", "/workspaces", BODY, headers=KEY)
    await here.db.execute("UPDATE creations SET at = now() - interval '25 hours'")
    await here.call("POST", "/workspaces", {**BODY, "name": "other"}, headers={"Idempotency-Key": "another"})
    assert [row["key"] for row in await here.db.fetch("SELECT key FROM creations")] == ["another"]


@pytest.mark.parametrize("key", ["", "x" * 201, "two words"])
async def test_an_invalid_key_is_refused(here: LiveApi, key: str) -> None:
    refused = await here.call("POST", "/workspaces", BODY, headers={"Idempotency-Key": key})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_request")


async def test_the_limits_list_exactly_the_workspaces_that_count(here: LiveApi) -> None:
    """Workspaces that should run and those that still run are listed: exactly those that `admit` counts."""
    for name in ("wished", "present", "starting", "asleep"):
        await here.create(name)
    await here.create("theirs", "bob")
    await here.db.execute("UPDATE workspaces SET desired_state = 'RUNNING' WHERE name IN ('wished', 'theirs')")
    await here.db.execute("UPDATE workspaces SET container_present = true WHERE name = 'present'")
    await here.db.execute(
        "UPDATE workspaces SET operation = 'STARTING', stage = 'CALL', op_id = id, op_started_at = now(), deadline_at = now()"
        " WHERE name = 'starting'"
    )
    assert (await here.call("GET", "/limits")).json() == {
        "max_running_per_user": 9,
        "default_max_running_per_user": 9,
        "max_running_global": 9,
        "running_mine": 3,
        "running": ["present", "starting", "wished"],
    }
    await here.db.execute("UPDATE users SET max_running = 3 WHERE username = 'ada'")
    told = (await here.call("GET", "/limits")).json()
    assert (told["max_running_per_user"], told["default_max_running_per_user"]) == (3, 9)
    refused = await here.call("PATCH", "/workspaces/asleep", {"desired_state": "RUNNING"})
    assert (refused.status_code, refused.json()["allowed"]) == (429, 3)
    await here.db.execute("UPDATE users SET max_running = 4 WHERE username = 'ada'")
    assert (await here.call("PATCH", "/workspaces/asleep", {"desired_state": "RUNNING"})).status_code == 200
