"""The variables of a workspace are stored, shown, changed and refused over HTTP, and no event contains them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.live_api import LiveApi, live_api

pytestmark = pytest.mark.anyio

BODY = {"name": "demo", "desired_state": "STANDBY"}
KEY = {"Idempotency-Key": "k"}
VALUE = "blue-{port}-$HOME-é\n"


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def environment(here: LiveApi) -> object:
    return (await here.call("GET", "/workspaces/demo/environment")).json()["environment"]


async def test_it_is_created_and_changed_variable_by_variable(here: LiveApi) -> None:
    made = await here.call("POST", "/workspaces", {**BODY, "environment": {"A": VALUE, "B": ""}})
    assert made.status_code == 201
    assert VALUE not in made.text, "the workspace itself, and so each event, does not have them"
    assert await environment(here) == {"A": VALUE, "B": ""}
    changed = await here.call("PATCH", "/workspaces/demo", {"environment": {"B": None, "C": "3"}})
    assert changed.status_code == 200
    assert await environment(here) == {"A": VALUE, "C": "3"}
    await here.call("PATCH", "/workspaces/demo", {"standby_ttl": 77})
    assert await environment(here) == {"A": VALUE, "C": "3"}


@pytest.mark.parametrize(
    ("given", "code", "part"),
    [
        ({"1A": "x"}, "bad_environment", "'1A' is not the name"),
        ({"PORT": "80"}, "bad_environment", "PORT is reserved"),
        ({"PATH": "/bin"}, "bad_environment", "~/.local/bin"),
        ({"A": "x" * 40_000}, "bad_environment", "workspace_environment_kb"),
        ({"A": "x\0"}, "bad_request", "NUL"),
        ({"A": 7}, "bad_request", ""),
        (["A=7"], "bad_request", ""),
    ],
)
async def test_what_cannot_be_a_variable_is_refused_and_nothing_changes(
    here: LiveApi, given: object, code: str, part: str
) -> None:
    await here.call("POST", "/workspaces", {**BODY, "environment": {"A": "1"}})
    created = await here.call("POST", "/workspaces", {**BODY, "name": "other", "environment": given})
    assert (created.status_code, created.json()["code"]) == (422, code)
    changed = await here.call("PATCH", "/workspaces/demo", {"environment": given, "standby_ttl": 77})
    assert (changed.status_code, changed.json()["code"]) == (422, code)
    assert part in changed.text
    assert await environment(here) == {"A": "1"}


async def test_neither_events_nor_the_audit_log_have_the_values(here: LiveApi, database_url: str) -> None:
    await here.call("POST", "/workspaces", {**BODY, "environment": {"A": VALUE}})
    await here.call("PATCH", "/workspaces/demo", {"environment": {"B": VALUE}, "desired_state": "ARCHIVED"})
    connection = await asyncpg.connect(database_url)
    try:
        stored = str(await connection.fetch("SELECT * FROM outbox")) + str(await connection.fetch("SELECT * FROM audit"))
    finally:
        await connection.close()
    assert "blue" not in stored
    details = [entry["detail"] for entry in (await here.call("GET", "/audit?limit=10")).json()["items"]]
    assert [one["environment"] for one in details if "environment" in one] == [["B"], ["A"]]


async def test_a_repeated_creation_must_have_the_same_variables(here: LiveApi) -> None:
    body = {**BODY, "environment": {"A": "1", "B": "2"}}
    first = await here.call("POST", "/workspaces", body, headers=KEY)
    again = await here.call("POST", "/workspaces", {**BODY, "environment": {"B": "2", "A": "1"}}, headers=KEY)
    assert again.json()["id"] == first.json()["id"]
    other = await here.call("POST", "/workspaces", {**BODY, "environment": {"A": "2"}}, headers=KEY)
    assert other.json()["code"] == "key_reused"
