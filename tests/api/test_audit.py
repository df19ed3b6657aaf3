"""The audit log: each action has one entry, refused actions have none, and users see only their entries."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.domain.audit import AuditAction
from torpor.ports import Container, Home, Limits, Program
from torpor.testing.fake_runtime import FakeContainer

pytestmark = pytest.mark.anyio

ERROR = (
    "phase = 'ERROR', error_info = jsonb_build_object('reason', 'ActionFailed', 'message', 'it broke', 'is_terminal', true,"
    " 'operation', 'NONE', 'error_count', 1, 'occurred_at', now(), 'wish_version', 100, 'context', '{}'::jsonb)"
)


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def audited(here: LiveApi, by: str = "root", **asked: Any) -> list[Any]:
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    answer = await here.call("GET", f"/audit?{query}", by=by)
    assert answer.status_code == 200, answer.text
    items: list[Any] = answer.json()["items"]
    return items


async def test_every_action_on_a_workspace_is_audited_once(here: LiveApi) -> None:
    made = (await here.call("POST", "/workspaces", {"name": "demo", "desired_state": "STANDBY"})).json()
    demo = made["id"]
    await here.call("PATCH", "/workspaces/demo", {"name": "other", "standby_ttl": 60, "desired_state": "RUNNING"})
    lease = (await here.call("POST", "/workspaces/other/leases", {"reason": "a build", "seconds": 60})).json()
    await here.call("DELETE", f"/workspaces/other/leases/{lease['id']}")
    await here.call("PUT", "/workspaces/other/shares/bob", {"role": "use"})
    await here.call("PUT", "/workspaces/other/shares/bob", {"role": "use"})
    await here.call("DELETE", "/workspaces/other/shares/bob")
    await here.db.execute(f"UPDATE workspaces SET {ERROR}")
    await here.call("POST", "/workspaces/other/recover", by="root")
    await here.db.execute("UPDATE workspaces SET phase = 'RUNNING', error_info = NULL, container_present = true")
    here.world.containers[demo] = FakeContainer(Container(Home(demo, 1), 1, Program("command", ("true",)), Limits(1, 1)), 1)
    await here.call("POST", "/workspaces/other/exec", {"command": ["psql", "--password=hunter2"]})
    await here.wishes.wish(here.people["ada"].caller, "other", "STANDBY")
    await here.wishes.wake(here.people["ada"].caller, "other")
    await here.wishes.wake(here.people["ada"].caller, "other")
    await here.call("DELETE", "/workspaces/other?purge=false")
    await here.call("POST", "/workspaces/other/undelete")

    lines = list(reversed(await audited(here, workspace=demo)))
    assert [(line["action"], line["username"], line["detail"]) for line in lines] == [
        (AuditAction.WORKSPACE_CREATE, "ada", {"template": made["template"], "desired_state": "STANDBY"}),
        (AuditAction.WORKSPACE_CHANGE, "ada", {"name": "other", "standby_ttl": 60}),
        (AuditAction.WORKSPACE_WISH, "ada", {"desired_state": "RUNNING"}),
        (AuditAction.WORKSPACE_HOLD, "ada", {"reason": "a build", "seconds": 60}),
        (AuditAction.WORKSPACE_UNHOLD, "ada", {"ended": 1}),
        (AuditAction.WORKSPACE_SHARE, "ada", {"username": "bob", "role": "use"}),
        (AuditAction.WORKSPACE_UNSHARE, "ada", {"username": "bob"}),
        (
            AuditAction.WORKSPACE_RECOVER,
            "root",
            {"reason": "ActionFailed", "archive_key": None, "empty": False, "accept": False},
        ),
        (AuditAction.WORKSPACE_EXEC, "ada", {"program": "psql"}),
        (AuditAction.WORKSPACE_WISH, "ada", {"desired_state": "STANDBY"}),
        (AuditAction.WORKSPACE_WAKE, "ada", {}),
        (AuditAction.WORKSPACE_DELETE, "ada", {"purge": False}),
        (AuditAction.WORKSPACE_UNDELETE, "ada", {}),
    ]
    assert {(line["workspace_id"], line["how"], line["outcome"]) for line in lines} == {(demo, "TOKEN", "ok")}
    assert [line["workspace"] for line in lines] == ["demo"] * 3 + ["other"] * 10


async def test_actions_of_an_operator_are_audited(here: LiveApi) -> None:
    await here.db.execute("INSERT INTO latches (provider, since, expected, missing) VALUES ('fake', now(), 9, 9)")
    assert (await here.call("POST", "/latches/fake/release", by="root")).status_code == 204
    assert (await here.call("POST", "/gc", by="root")).status_code == 202
    assert [(line["action"], line["detail"]) for line in await audited(here)] == [
        (AuditAction.GC_REQUEST, {}),
        (AuditAction.LATCH_RELEASE, {"provider": "fake"}),
    ]


async def test_refused_actions_are_not_audited(here: LiveApi) -> None:
    await here.create("demo")
    await here.create("taken")
    for method, target, body, by in (
        ("PATCH", "/workspaces/demo", {"name": "taken", "desired_state": "RUNNING"}, "ada"),
        ("PATCH", "/workspaces/demo", {}, "ada"),
        ("DELETE", "/workspaces/demo", None, "bob"),
        ("POST", "/workspaces/demo/exec", {"command": ["true"]}, "ada"),
        ("POST", "/workspaces/demo/recover", None, "ada"),
        ("DELETE", f"/workspaces/demo/leases/{uuid.uuid4()}", None, "ada"),
        ("POST", "/latches/none/release", None, "root"),
    ):
        await here.call(method, target, body, by=by)
    assert await audited(here) == []


async def test_the_audit_log_has_address_and_token_label(here: LiveApi) -> None:
    await here.call(
        "POST", "/workspaces", {"name": "demo", "desired_state": "STANDBY"}, headers={"X-Forwarded-For": "192.0.2.7"}
    )
    (line,) = await audited(here)
    assert (line["came_from"], line["token_label"]) == ("192.0.2.7", "test")


async def test_users_see_their_own_actions_and_those_on_their_workspaces(here: LiveApi) -> None:
    """Own actions, and actions on own workspaces with the user but without the address."""
    said = {"X-Forwarded-For": "192.0.2.7"}
    await here.create("adas")
    await here.create("bobs", "bob")
    await here.call("PUT", "/workspaces/adas/shares/bob", {"role": "manage"}, headers=said)
    await here.call("PATCH", "/workspaces/adas", {"standby_ttl": 60}, by="bob", headers=said)
    await here.call("PATCH", "/workspaces/bobs", {"standby_ttl": 60}, by="bob", headers=said)
    await here.call("PATCH", "/workspaces/bobs", {"standby_ttl": 70}, by="root", headers=said)

    def brief(lines: list[Any]) -> list[tuple[str, str, str]]:
        return [(line["username"], line["workspace"], line["came_from"]) for line in lines]

    at = "192.0.2.7"
    everything = [("root", "bobs", at), ("bob", "bobs", at), ("bob", "adas", at), ("ada", "adas", at)]
    assert brief(await audited(here)) == everything
    assert brief(await audited(here, "ada")) == [("bob", "adas", ""), ("ada", "adas", at)]
    assert brief(await audited(here, "bob")) == [("root", "bobs", ""), ("bob", "bobs", at), ("bob", "adas", at)]
    assert brief(await audited(here, username="bob")) == everything[1:3]
    assert brief(await audited(here, username="bob", workspace="adas")) == everything[2:3]
    assert brief(await audited(here, "ada", workspace="bobs")) == []
    assert await audited(here, username="nobody") == []


async def test_pages_of_the_audit_log_have_every_entry_once(here: LiveApi) -> None:
    await here.create("demo")
    for number in range(7):
        await here.call("PATCH", "/workspaces/demo", {"standby_ttl": 60 + number})
    seen, cursor = [], ""
    while True:
        page = (await here.call("GET", f"/audit?limit=3{cursor}")).json()
        assert len(page["items"]) <= 3
        seen += [line["detail"]["standby_ttl"] for line in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == list(range(66, 59, -1))


async def test_an_invalid_cursor_is_refused(here: LiveApi) -> None:
    await here.create("demo")
    none = [
        "x",
        "WzFd%00",
        "W10=",
        "WyJhIl0=",
        "Wy0xXQ==",
        "e30=",
        "WzEsMiwzLDRd",
        "Wzk5OTk5OTk5OTk5OTk5OTk5OTk5OV0=",
        "%C3%87",
    ]
    for target in ("/audit", "/workspaces", "/workspaces/demo/operations"):
        for cursor in none:
            refused = await here.call("GET", f"{target}?cursor={cursor}")
            assert (refused.status_code, refused.json()["code"]) == (422, "bad_cursor"), (target, cursor)


async def test_pages_of_operations_have_every_attempt_once(here: LiveApi) -> None:
    workspace_id = uuid.UUID(await here.create("demo"))
    for number in range(5):
        for attempt in (1, 2):
            await here.db.execute(
                "INSERT INTO operations (workspace_id, op_id, attempt, kind, generation, epoch, started_at, ended_at, outcome)"
                " VALUES ($1, $2, $3, 'STARTING', 1, 1, now() + make_interval(secs => $4), now(), 'FAILED')",
                workspace_id, uuid.UUID(int=number + 1), attempt, number // 2,
            )  # fmt: skip
    everything = (await here.call("GET", "/workspaces/demo/operations")).json()
    assert everything["next_cursor"] is None
    seen, cursor = [], ""
    while True:
        page = (await here.call("GET", f"/workspaces/demo/operations?limit=3{cursor}")).json()
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == everything["items"]
    assert len(seen) == 10
