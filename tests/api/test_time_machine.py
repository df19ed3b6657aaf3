"""Restore and fork over HTTP: what is refused, what is repeated, and what an archive list says."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.live_api import LiveApi, live_api

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
ARCHIVE = """
INSERT INTO archives (key, workspace_id, op_id, generation, revision, manifest_root, size_bytes, home_bytes, proven_at)
VALUES ($1, $2, $3, 1, 1, 'root', 1000, 2000, now() - make_interval(hours => $4))
"""


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def with_archives(here: LiveApi, name: str = "demo", *, hours: tuple[int, ...] = (1, 2)) -> list[str]:
    """The keys of its archives, the latest first; the row refers to the latest."""
    workspace = uuid.UUID(await here.create(name))
    keys = []
    for ago in hours:
        op_id = uuid.uuid4()
        keys.append(f"{workspace}/{op_id}")
        await here.db.execute(ARCHIVE, keys[-1], workspace, op_id, ago)
    await here.db.execute(
        "UPDATE workspaces SET archive_key = $2, archive_generation = 1, archive_revision = 1, archive_root = 'root',"
        " generation = 2, revision = 1, phase = 'STANDBY', volume_present = true, template = 'terminal' WHERE id = $1",
        workspace,
        keys[0],
    )
    return keys


async def code(here: LiveApi, method: str, target: str, body: Any = None, **how: Any) -> tuple[int, str]:
    answer = await here.call(method, target, body, **how)
    return answer.status_code, answer.json().get("code", "")


async def test_the_list_says_which_archive_is_current_and_whether_the_home_has_changes(here: LiveApi) -> None:
    keys = await with_archives(here)
    listed = (await here.call("GET", "/workspaces/demo/archives")).json()
    assert [(one["key"], one["is_current"]) for one in listed["items"]] == [(keys[0], True), (keys[1], False)]
    assert {(one["new_bytes"], one["is_damaged"]) for one in listed["items"]} == {(1000, False)}
    assert listed["has_changes"] is False
    await here.db.execute("UPDATE workspaces SET revision = 2")
    assert (await here.call("GET", "/workspaces/demo/archives")).json()["has_changes"] is True


async def test_a_restore_is_accepted_shown_and_cancelled(here: LiveApi) -> None:
    keys = await with_archives(here)
    asked = await here.call("POST", "/workspaces/demo/restore", {"archive_key": keys[1]})
    assert (asked.status_code, asked.json()["restore"]["archive_key"]) == (202, keys[1])
    assert asked.json()["desired_state"] == "STANDBY"
    explained = (await here.call("GET", "/workspaces/demo/explain")).json()
    assert "torpor restore demo --cancel" in [way["command"] for way in explained["ways_out"]]
    assert await code(here, "POST", "/workspaces/demo/restore", {"archive_key": keys[0]}) == (409, "restore_in_progress")
    cancelled = await here.call("DELETE", "/workspaces/demo/restore")
    assert (cancelled.status_code, cancelled.json()["restore"]) == (202, None)
    assert await code(here, "DELETE", "/workspaces/demo/restore") == (409, "no_restore")
    actions = [row["action"] for row in await here.db.fetch("SELECT action FROM audit ORDER BY id")]
    assert actions[-2:] == ["workspace.restore", "workspace.cancel_restore"]


async def test_a_restore_of_another_archive_is_refused(here: LiveApi) -> None:
    keys = await with_archives(here)
    other = await with_archives(here, "other")
    for wrong in ("nonsense", other[0], f"{keys[0].split('/', maxsplit=1)[0]}/{uuid.uuid4()}"):
        assert await code(here, "POST", "/workspaces/demo/restore", {"archive_key": wrong}) == (422, "no_such_archive")
        assert await code(here, "POST", "/workspaces/demo/fork", {"name": "new", "archive_key": wrong}) == (
            422,
            "no_such_archive",
        )
    await here.db.execute("UPDATE archives SET orphan_since = now() WHERE key = $1", keys[1])
    assert await code(here, "POST", "/workspaces/demo/restore", {"archive_key": keys[1]}) == (409, "archive_collected")
    await damage(here, keys[0])
    assert await code(here, "POST", "/workspaces/demo/restore", {"archive_key": keys[0]}) == (409, "archive_damaged")
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "new"}) == (409, "no_archive")
    assert [one["is_damaged"] for one in (await here.call("GET", "/workspaces/demo/archives")).json()["items"]] == [True]


async def damage(here: LiveApi, key: str) -> None:
    workspace = uuid.UUID(key.split("/", maxsplit=1)[0])
    await here.db.execute(
        "INSERT INTO packs (workspace_id, name, size_bytes, proven_at, store_version) VALUES ($1, 'pack', 1, now(), 'v')",
        workspace,
    )
    await here.db.execute("UPDATE archives SET format = 2 WHERE key = $1", key)
    await here.db.execute("INSERT INTO archive_packs (archive_key, workspace_id, name) VALUES ($1, $2, 'pack')", key, workspace)
    await here.db.execute("UPDATE packs SET damaged_at = now()")


async def test_a_deleted_or_lost_workspace_is_not_restored(here: LiveApi) -> None:
    keys = await with_archives(here)
    lost = (
        """{"reason": "DataLost", "message": "gone", "is_terminal": true, "operation": "NONE", "error_count": 1,"""
        """ "occurred_at": "2026-01-01T00:00:00+00:00", "wish_version": 1, "context": {}}"""
    )
    await here.db.execute(f"UPDATE workspaces SET phase = 'ERROR', error_info = '{lost}'")
    assert await code(here, "POST", "/workspaces/demo/restore", {"archive_key": keys[1]}) == (409, "in_error")
    await here.call("POST", "/workspaces/demo/recover", {"empty": True})
    await here.db.execute("UPDATE workspaces SET phase = 'PENDING', error_info = NULL, volume_present = false")
    assert (await here.call("POST", "/workspaces/demo/restore", {"archive_key": keys[1]})).status_code == 202
    await here.call("DELETE", "/workspaces/demo")
    assert (await here.call("GET", "/workspaces/demo")).json()["restore"] is None
    assert await code(here, "POST", "/workspaces/demo/restore", {"archive_key": keys[1]}) == (409, "is_deleted")
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "new"}) == (409, "is_deleted")


async def test_a_fork_belongs_to_its_creator_and_has_no_secrets(here: LiveApi) -> None:
    keys = await with_archives(here)
    await here.call("PUT", "/workspaces/demo/secrets/API_KEY", {"value": "very secret"})
    await here.call("PATCH", "/workspaces/demo", {"standby_ttl": 77, "environment": {"A": "1"}})
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "copy"}, by="bob") == (404, "not_found")
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "copy"}, by="bob") == (403, "forbidden")
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "manage"})
    body = {"name": "copy", "desired_state": "ARCHIVED"}
    forked = await here.call("POST", "/workspaces/demo/fork", body, by="bob")
    assert (forked.status_code, forked.json()["owner"], forked.json()["forked_from"]) == (201, "bob", keys[0])
    assert (forked.json()["standby_ttl"], forked.json()["shares"]) == (77, {})
    assert [("API_KEY" in warning, "very secret" in warning) for warning in forked.json()["warnings"]] == [(True, False)]
    assert (await here.call("GET", "/workspaces/copy/secrets", by="bob")).json()["items"] == []
    assert (await here.call("GET", "/workspaces/copy/environment", by="bob")).json()["environment"] == {"A": "1"}
    assert await code(here, "GET", "/workspaces/copy") == (404, "not_found")


async def test_a_fork_of_an_older_archive_or_of_a_home_with_changes_says_so(here: LiveApi) -> None:
    keys = await with_archives(here)
    warnings = (await here.call("POST", "/workspaces/demo/fork", {"name": "a", "desired_state": "ARCHIVED"})).json()["warnings"]
    assert warnings == []
    older = {"name": "b", "desired_state": "ARCHIVED", "archive_key": keys[1]}
    assert "may have changes" in (await here.call("POST", "/workspaces/demo/fork", older)).json()["warnings"][0]
    await here.db.execute("UPDATE workspaces SET revision = 2 WHERE name = 'demo'")
    changed = {"name": "c", "desired_state": "ARCHIVED"}
    assert "may have changes" in (await here.call("POST", "/workspaces/demo/fork", changed)).json()["warnings"][0]


async def test_a_repeated_fork_returns_the_first_also_after_its_source_is_gone(here: LiveApi) -> None:
    await with_archives(here)
    body = {"name": "copy", "desired_state": "ARCHIVED"}
    first = await here.call("POST", "/workspaces/demo/fork", body, headers=KEY)
    await here.call("PATCH", "/workspaces/demo", {"name": "renamed", "standby_ttl": 99, "environment": {"B": "2"}})
    await here.call("DELETE", "/workspaces/renamed?purge=true")
    again = await here.call("POST", "/workspaces/demo/fork", body, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] == first.json()["id"]
    assert await code(here, "POST", "/workspaces/demo/fork", {**body, "name": "b"}, headers=KEY) == (422, "key_reused")
    assert await code(here, "POST", "/workspaces", body, headers=KEY) == (422, "key_reused")


async def test_a_fork_has_the_limits_and_names_of_a_creation(here: LiveApi) -> None:
    await with_archives(here)
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "demo"}) == (409, "name_taken")
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "No"}) == (422, "bad_name")
    await here.db.execute("UPDATE users SET max_running = 0 WHERE username = 'ada'")
    assert await code(here, "POST", "/workspaces/demo/fork", {"name": "copy"}) == (429, "limit_reached")
    assert (await here.call("POST", "/workspaces/demo/fork", {"name": "copy", "desired_state": "ARCHIVED"})).status_code == 201
