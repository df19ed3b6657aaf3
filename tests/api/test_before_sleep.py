"""The command before an automatic stop is stored, shown, changed and refused over HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.support.live_api import LiveApi, live_api

pytestmark = pytest.mark.anyio

BODY = {"name": "demo", "desired_state": "STANDBY"}
STASH = ["git", "stash"]


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def test_without_before_sleep_the_command_of_the_template_applies(here: LiveApi) -> None:
    made = (await here.call("POST", "/workspaces", BODY)).json()
    assert (made["before_sleep"], made["runs_before_sleep"]) == (None, False)


async def test_before_sleep_is_created_changed_switched_off_and_reset(here: LiveApi) -> None:
    made = await here.call("POST", "/workspaces", {**BODY, "before_sleep": STASH})
    assert (made.status_code, made.json()["before_sleep"]) == (201, STASH)
    for given in (["sync"], [], None, ["{home}", "$HOME", ""]):
        changed = await here.call("PATCH", "/workspaces/demo", {"before_sleep": given})
        assert (changed.status_code, changed.json()["before_sleep"]) == (200, given)
        assert (await here.call("GET", "/workspaces/demo")).json()["before_sleep"] == given


async def test_a_change_of_other_fields_keeps_before_sleep(here: LiveApi) -> None:
    await here.call("POST", "/workspaces", {**BODY, "before_sleep": STASH})
    changed = await here.call("PATCH", "/workspaces/demo", {"standby_ttl": 77})
    assert (changed.json()["standby_ttl"], changed.json()["before_sleep"]) == (77, STASH)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([""], "bad_before_sleep"),
        (["x" * 4097], "bad_before_sleep"),
        (["x"] * 101, "bad_before_sleep"),
        (["git\0"], "bad_request"),
        ("git stash", "bad_request"),
        ([7], "bad_request"),
    ],
)
async def test_an_invalid_command_is_refused_and_nothing_changes(here: LiveApi, given: object, code: str) -> None:
    await here.call("POST", "/workspaces", {**BODY, "before_sleep": STASH})
    created = await here.call("POST", "/workspaces", {**BODY, "name": "other", "before_sleep": given})
    assert (created.status_code, created.json()["code"]) == (422, code)
    changed = await here.call("PATCH", "/workspaces/demo", {"before_sleep": given, "standby_ttl": 77})
    assert (changed.status_code, changed.json()["code"]) == (422, code)
    if code == "bad_before_sleep":
        assert "before_sleep" in changed.json()["detail"]
    kept = (await here.call("GET", "/workspaces/demo")).json()
    assert (kept["before_sleep"], kept["standby_ttl"]) == (STASH, 300)


async def test_an_idempotency_key_is_for_one_command(here: LiveApi) -> None:
    key = {"Idempotency-Key": "one"}
    first = await here.call("POST", "/workspaces", {**BODY, "before_sleep": STASH}, headers=key)
    again = await here.call("POST", "/workspaces", {**BODY, "before_sleep": STASH}, headers=key)
    assert again.json()["id"] == first.json()["id"]
    for other in (BODY, {**BODY, "before_sleep": []}):
        assert (await here.call("POST", "/workspaces", other, headers=key)).json()["code"] == "key_reused"


async def test_the_audit_log_names_the_program_and_not_its_arguments(here: LiveApi) -> None:
    await here.call("POST", "/workspaces", BODY)
    await here.call("PATCH", "/workspaces/demo", {"before_sleep": ["curl", "--user", "ada:secret"]})
    said = await here.db.fetchval("SELECT detail::text FROM audit WHERE action = 'workspace.change'")
    assert "curl" in said
    assert "secret" not in said
