"""Secrets are set and removed over HTTP by those who may, and no answer contains a value."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

VALUE = "hunter2-{port}"
SECRETS = "/workspaces/demo/secrets"


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        await made.call("POST", "/workspaces", {"name": "demo", "desired_state": "STANDBY"})
        yield made


async def names(here: LiveApi) -> list[str]:
    return [one["name"] for one in (await here.call("GET", SECRETS)).json()["items"]]


async def everything(database_url: str) -> str:
    """All rows of all tables as text."""
    connection = await asyncpg.connect(database_url)
    try:
        tables = await connection.fetch("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        rows = [await connection.fetch(f'SELECT t::text FROM "{one["table_name"]}" AS t') for one in tables]
    finally:
        await connection.close()
    return "\n".join(row[0] for some in rows for row in some)


async def test_a_secret_is_set_replaced_listed_and_removed(here: LiveApi, database_url: str) -> None:
    made = await here.call("PUT", f"{SECRETS}/TOKEN", {"value": VALUE})
    assert (made.status_code, made.json().keys()) == (200, {"name", "set_at"})
    again = await here.call("PUT", f"{SECRETS}/TOKEN", {"value": f"{VALUE}2"})
    assert again.json()["set_at"] > made.json()["set_at"]
    await here.call("PUT", f"{SECRETS}/OTHER", {"value": VALUE})
    listed = await here.call("GET", SECRETS)
    assert [one.keys() for one in listed.json()["items"]] == [{"name", "set_at"}] * 2
    assert await names(here) == ["OTHER", "TOKEN"]
    assert (await here.call("DELETE", f"{SECRETS}/OTHER")).status_code == 204
    assert (await here.call("DELETE", f"{SECRETS}/OTHER")).json()["code"] == "not_found"
    assert await names(here) == ["TOKEN"]
    shown = [await here.call("GET", f"/workspaces/demo{below}") for below in ("", "/explain", "/environment", "/secrets")]
    audit = await here.call("GET", "/audit?limit=20")
    assert "hunter2" not in "".join(one.text for one in (made, again, listed, audit, *shown))
    assert "hunter2" not in await everything(database_url)
    actions = [(one["action"], one["detail"]) for one in audit.json()["items"] if one["action"].startswith("secret.")]
    assert actions[:2] == [("secret.remove", {"secret": "OTHER"}), ("secret.set", {"secret": "OTHER"})]
    assert len(actions) == 4


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("PORT", VALUE, "bad_secret"),
        ("1A", VALUE, "bad_secret"),
        ("A%20B", VALUE, "bad_secret"),
        ("TOKEN", "", "bad_secret"),
        ("TOKEN", f"{VALUE}\0", "bad_request"),
        ("TOKEN", VALUE * 4000, "bad_environment"),
        ("TOKEN", 7, "bad_request"),
        ("TOKEN", [VALUE], "bad_request"),
    ],
)
async def test_what_cannot_be_a_secret_is_refused_without_the_value(here: LiveApi, name: str, value: object, code: str) -> None:
    refused = await here.call("PUT", f"{SECRETS}/{name}", {"value": value})
    assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert "hunter2" not in refused.text
    assert await names(here) == []


async def test_variables_and_secrets_share_one_limit(here: LiveApi) -> None:
    assert (await here.call("PUT", f"{SECRETS}/TOKEN", {"value": "x" * 20_000})).status_code == 200
    refused = await here.call("PATCH", "/workspaces/demo", {"environment": {"A": "x" * 20_000}})
    assert refused.json()["code"] == "bad_environment"
    assert (await here.call("PUT", f"{SECRETS}/TOKEN", {"value": "x" * 30_000})).status_code == 200, "it is replaced"


async def test_only_the_owner_and_managers_may(here: LiveApi) -> None:
    calls = [("GET", SECRETS, None), ("PUT", f"{SECRETS}/TOKEN", {"value": VALUE}), ("DELETE", f"{SECRETS}/TOKEN", None)]
    for role, code in ((None, "not_found"), ("use", "forbidden")):
        if role is not None:
            await here.call("PUT", "/workspaces/demo/shares/bob", {"role": role})
        for method, target, body in calls:
            assert (await here.call(method, target, body, by="bob")).json()["code"] == code
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "manage"})
    assert [(await here.call(*one, by="bob")).status_code for one in calls] == [200, 200, 204]


async def test_a_purge_removes_them_and_a_deletion_keeps_them(here: LiveApi, database_url: str) -> None:
    await here.call("PUT", f"{SECRETS}/TOKEN", {"value": VALUE})
    await here.call("DELETE", "/workspaces/demo")
    assert await names(here) == ["TOKEN"]
    assert (await here.call("PUT", f"{SECRETS}/OTHER", {"value": VALUE})).json()["code"] == "is_deleted"
    await here.call("DELETE", "/workspaces/demo?purge=true")
    assert await names(here) == []


async def test_the_service_cannot_read_a_value_in_the_database(here: LiveApi, database_url: str) -> None:
    await here.call("PUT", f"{SECRETS}/TOKEN", {"value": VALUE})
    database = await Database.open(database_url, Role.SERVICE)
    try:
        for statement in ("SELECT sealed FROM secrets", "UPDATE secrets SET name = 'X'", "DELETE FROM secrets RETURNING *"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await database.execute(statement)
    finally:
        await database.close()


async def test_the_description_of_the_api_has_a_write_only_value(here: LiveApi) -> None:
    response = await here.call("GET", "/../../openapi.json")
    schema = response.json()["components"]["schemas"]
    assert schema["SetSecret"]["properties"]["value"]["writeOnly"] is True
    assert schema["SetSecret"]["properties"]["value"]["format"] == "password"
    assert schema["SecretOut"]["properties"].keys() == {"name", "set_at"}
