"""Create and revoke API tokens over HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.api.browsers import Platform, platform
from tests.api.test_sessions import problem
from tests.support.accounts_stage import PASSWORD

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[Platform]:
    async with platform(database_url, redis_url) as running:
        yield running


async def test_a_token_is_shown_once_and_works_until_it_is_revoked(here: Platform) -> None:
    browser = await here.browser("ada")
    made = await browser.post("/api/v1/tokens", json={"label": "robot", "scopes": ["read"], "expires_in": 60})
    assert made.status_code == 201
    secret = made.json()["token"]
    program = here.program(secret)
    me = (await program.get("/api/v1/me")).json()
    assert (me["username"], me["how"], me["scopes"], me["credential_id"]) == ("ada", "TOKEN", ["read"], made.json()["id"])
    listed = (await browser.get("/api/v1/tokens")).json()["items"]
    assert [(one["label"], one["scopes"]) for one in listed] == [("robot", ["read"])]
    assert listed[0]["last_used_at"] is not None
    assert secret not in str(listed)
    assert (await browser.delete(f"/api/v1/tokens/{listed[0]['id']}")).status_code == 204
    assert problem(await program.get("/api/v1/me")) == (401, "unauthorized")
    assert problem(await browser.delete(f"/api/v1/tokens/{listed[0]['id']}")) == (404, "not_found")


async def test_a_token_without_the_scope_cannot_create_tokens(here: Platform) -> None:
    browser = await here.browser("ada")
    made = await browser.post("/api/v1/tokens", json={"label": "robot", "scopes": ["read", "use", "manage"]})
    program = here.program(made.json()["token"])
    answer = await program.post("/api/v1/tokens", json={"label": "more", "scopes": ["read"]})
    assert problem(answer) == (403, "scope_missing")


async def test_users_cannot_see_or_revoke_tokens_of_others(here: Platform) -> None:
    ada, bob = await here.browser("ada"), await here.browser("bob")
    made = (await ada.post("/api/v1/tokens", json={"label": "robot", "scopes": ["read"]})).json()
    assert (await bob.get("/api/v1/tokens")).json()["items"] == []
    assert problem(await bob.delete(f"/api/v1/tokens/{made['id']}")) == (404, "not_found")
    assert (await here.program(made["token"]).get("/api/v1/me")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"label": "robot"},
        {"label": "robot", "scopes": []},
        {"label": "robot", "scopes": ["everything"]},
        {"label": "", "scopes": ["read"]},
        {"label": "\u0000", "scopes": ["read"]},
        {"label": "robot", "scopes": ["read"], "expires_in": 0},
        {"label": "robot", "scopes": ["read"], "expires_in": 10**30},
        {"label": "robot", "scopes": ["read"], "more": 1},
    ],
)
async def test_an_invalid_token_request_is_refused(here: Platform, body: dict[str, object]) -> None:
    answer = await (await here.browser("ada")).post("/api/v1/tokens", json=body)
    assert problem(answer)[0] == 422


async def test_a_token_cannot_set_a_password(here: Platform) -> None:
    browser = await here.browser("ada")
    made = await browser.post("/api/v1/tokens", json={"label": "robot", "scopes": ["account"]})
    robot = here.program(made.json()["token"])
    answer = await robot.post("/api/v1/me/password", json={"old": PASSWORD, "new": "another password"})
    assert problem(answer) == (403, "forbidden")
    await here.browser("ada")


async def test_a_created_token_expires_no_later_than_its_creator(here: Platform) -> None:
    browser = await here.browser("ada")
    wanted = {"label": "robot", "scopes": ["account", "read"]}
    made = (await browser.post("/api/v1/tokens", json={**wanted, "expires_in": 60})).json()
    child = (await here.program(made["token"]).post("/api/v1/tokens", json=wanted)).json()
    assert child["expires_at"] == made["expires_at"]


async def test_a_token_of_an_administrator_sees_all_only_with_the_admin_scope(here: Platform) -> None:
    await here.people.workspace("demo", "ada")
    root = await here.browser("root")
    for scopes, is_seen in ((["read"], False), (["read", "admin"], True)):
        made = await root.post("/api/v1/tokens", json={"label": "robot", "scopes": scopes})
        robot = here.program(made.json()["token"])
        assert (await robot.get("/api/v1/workspaces/demo")).status_code == (200 if is_seen else 404)
        listed = (await robot.get("/api/v1/workspaces")).json()["items"]
        assert [one["name"] for one in listed] == (["demo"] if is_seen else [])
