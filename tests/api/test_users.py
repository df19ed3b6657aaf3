"""Administrators manage users over HTTP; other callers are refused."""

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


async def test_a_user_is_created_changed_and_deactivated(here: Platform) -> None:
    root = await here.browser("root")
    made = await root.post("/api/v1/users", json={"username": "cleo", "password": PASSWORD, "max_running": 5})
    assert (made.status_code, made.json()["max_running"], made.json()["is_admin"]) == (201, 5, False)
    cleo = await here.browser("cleo")
    changed = await root.patch("/api/v1/users/cleo", json={"is_admin": True})
    assert (changed.json()["is_admin"], changed.json()["max_running"]) == (True, 5)
    assert (await cleo.get("/api/v1/me")).json()["is_admin"]
    changed = await root.patch(f"/api/v1/users/{made.json()['id']}", json={"max_running": None})
    assert changed.json()["max_running"] is None
    changed = await root.patch("/api/v1/users/cleo", json={"is_active": False})
    assert (changed.json()["is_active"], changed.json()["is_admin"]) == (False, True)
    assert problem(await cleo.get("/api/v1/me")) == (401, "unauthorized")


async def test_a_user_is_signed_out_everywhere(here: Platform) -> None:
    root, ada, bob = await here.browser("root"), await here.browser("ada"), await here.browser("bob")
    assert (await root.post("/api/v1/users/ada/sign-out")).status_code == 204
    assert problem(await ada.get("/api/v1/me")) == (401, "unauthorized")
    assert (await bob.get("/api/v1/me")).status_code == 200
    await here.browser("ada")


async def test_users_are_listed_in_pages_without_secrets(here: Platform) -> None:
    root = await here.browser("root")
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = (await root.get("/api/v1/users", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        assert "argon2" not in str(page)
        names += [one["username"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == ["ada", "bob", "root"]


@pytest.mark.parametrize("cursor", ["", "?", "\u00e9", "AA==", "a", "ZGVtbwo="])
async def test_an_invalid_cursor_is_refused(here: Platform, cursor: str) -> None:
    answer = await (await here.browser("root")).get("/api/v1/users", params={"cursor": cursor})
    assert problem(answer) == (422, "bad_cursor")


async def test_the_last_administrator_stays(here: Platform) -> None:
    root = await here.browser("root")
    for change in ({"is_admin": False}, {"is_active": False}):
        assert problem(await root.patch("/api/v1/users/root", json=change)) == (409, "last_administrator")


async def test_invalid_users_and_changes_are_refused(here: Platform) -> None:
    root = await here.browser("root")
    assert problem(await root.post("/api/v1/users", json={"username": "ada"})) == (409, "name_taken")
    assert problem(await root.post("/api/v1/users", json={"username": "A D A"})) == (422, "bad_username")
    assert problem(await root.post("/api/v1/users", json={"username": "cleo", "password": "x"})) == (422, "bad_password")
    assert problem(await root.patch("/api/v1/users/ada", json={"password": "x"})) == (422, "bad_password")
    assert problem(await root.patch("/api/v1/users/ada", json={"is_admin": None})) == (422, "bad_request")
    assert problem(await root.get("/api/v1/users/eve")) == (404, "not_found")


async def test_only_administrators_manage_users(here: Platform) -> None:
    ada = await here.browser("ada")
    for call in (
        ada.get("/api/v1/users"),
        ada.get("/api/v1/users/ada"),
        ada.patch("/api/v1/users/ada", json={"is_admin": True}),
    ):
        assert problem(await call) == (403, "forbidden")
    assert not (await ada.get("/api/v1/me")).json()["is_admin"]


@pytest.mark.parametrize("nobody", ["%00", "a%00b", "%ED%A0%80", "%FF", "x" * 3000])
async def test_an_invalid_username_is_not_found(here: Platform, nobody: str) -> None:
    root = await here.browser("root")
    assert problem(await root.get(f"/api/v1/users/{nobody}")) == (404, "not_found")
    assert problem(await root.patch(f"/api/v1/users/{nobody}", json={"max_running": 1})) == (404, "not_found")
    assert problem(await root.post(f"/api/v1/users/{nobody}/sign-out")) == (404, "not_found")


async def test_signing_out_everywhere_revokes_tokens(here: Platform) -> None:
    root, ada = await here.browser("root"), await here.browser("ada")
    robot = here.program((await ada.post("/api/v1/tokens", json={"label": "robot", "scopes": ["read"]})).json()["token"])
    assert (await robot.get("/api/v1/me")).status_code == 200
    assert (await root.post("/api/v1/users/ada/sign-out")).status_code == 204
    assert problem(await robot.get("/api/v1/me")) == (401, "unauthorized")
