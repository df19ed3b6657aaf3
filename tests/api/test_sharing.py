"""Sharing over HTTP: each user gets exactly the granted role. On a real PostgreSQL."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.domain.errors import Refused
from torpor.service.sharing import MOST_SHARES

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        await made.sign_up("eve")
        await made.create("demo")
        yield made


async def names(here: LiveApi, by: str) -> list[str]:
    return [one["name"] for one in (await here.call("GET", "/workspaces", by=by)).json()["items"]]


async def test_a_share_is_created_listed_and_removed(here: LiveApi) -> None:
    assert (await here.call("GET", "/workspaces/demo/shares")).json() == {"items": []}
    put = await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    assert (put.status_code, put.json()) == (200, {"username": "bob", "role": "use"})
    await here.call("PUT", "/workspaces/demo/shares/eve", {"role": "manage"})
    for by in ("ada", "bob", "eve", "root"):
        assert (await here.call("GET", "/workspaces/demo/shares", by=by)).json() == {
            "items": [{"username": "bob", "role": "use"}, {"username": "eve", "role": "manage"}]
        }
        shown = await here.call("GET", "/workspaces/demo", by=by)
        assert (shown.json()["owner"], shown.json()["shares"]) == ("ada", {"bob": "use", "eve": "manage"})
        assert await names(here, by) == ["demo"]

    raised = await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "manage"})
    assert raised.json()["role"] == "manage"
    assert (await here.call("PATCH", "/workspaces/demo", {"standby_ttl": 60}, by="bob")).status_code == 200

    assert (await here.call("DELETE", "/workspaces/demo/shares/bob")).status_code == 204
    assert (await here.call("DELETE", "/workspaces/demo/shares/bob")).status_code == 404
    assert (await here.call("GET", "/workspaces/demo", by="bob")).status_code == 404
    assert await names(here, "bob") == []
    assert await names(here, "eve") == ["demo"]


async def test_a_shared_workspace_counts_for_its_owner(here: LiveApi) -> None:
    """It counts against the owner's limits, and only the owner can share it."""
    await here.db.execute("UPDATE users SET max_running = 1 WHERE username = 'ada'")
    await here.db.execute("UPDATE users SET max_running = 0 WHERE username = 'bob'")
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "manage"})
    started = await here.call("PATCH", "/workspaces/demo", {"desired_state": "RUNNING"}, by="bob")
    assert (started.status_code, started.json()["owner"]) == (200, "ada")
    await here.create("another")
    refused = await here.call("PATCH", "/workspaces/another", {"desired_state": "RUNNING"})
    assert (refused.status_code, refused.json()["limit"]) == (429, "max_running_per_user")
    assert (await here.call("GET", "/limits", by="bob")).json()["running"] == []
    for method, target, body in (
        ("PUT", "/workspaces/demo/shares/eve", {"role": "use"}),
        ("DELETE", "/workspaces/demo/shares/bob", None),
        ("DELETE", "/workspaces/demo", None),
        ("POST", "/workspaces/demo/undelete", None),
    ):
        answer = await here.call(method, target, body, by="bob")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("username", "status", "code"),
    [
        ("nobody-there", 422, "unknown_user"),
        ("ada", 422, "bad_share"),
        ("idle", 422, "unknown_user"),
        ("B%00", 422, "bad_request"),
    ],
)
async def test_sharing_with_an_invalid_user_is_refused(here: LiveApi, username: str, status: int, code: str) -> None:
    await here.sign_up("idle")
    await here.db.execute("UPDATE users SET is_active = false WHERE username = 'idle'")
    refused = await here.call("PUT", f"/workspaces/demo/shares/{username}", {"role": "use"})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert (await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "own"})).status_code == 422


async def test_shares_are_limited_and_refused_for_a_deleted_workspace(here: LiveApi) -> None:
    many = ", ".join(f'"user-{number}": "use"' for number in range(MOST_SHARES))
    await here.db.execute("UPDATE workspaces SET shares = $1::jsonb", f"{{{many}}}")
    refused = await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_share")
    await here.db.execute("UPDATE workspaces SET shares = '{}'")
    await here.call("DELETE", "/workspaces/demo")
    refused = await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    assert (refused.status_code, refused.json()["code"]) == (409, "is_deleted")


async def test_concurrent_shares_are_all_kept(here: LiveApi) -> None:
    for number in range(8):
        await here.sign_up(f"user-{number}")
    await asyncio.gather(*(here.call("PUT", f"/workspaces/demo/shares/user-{number}", {"role": "use"}) for number in range(8)))
    assert len((await here.call("GET", "/workspaces/demo/shares")).json()["items"]) == 8


async def test_a_name_means_the_own_workspace_before_a_shared_one(here: LiveApi) -> None:
    """Both may be deleted under the same name; an administrator finds the one deleted last."""
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    await here.call("DELETE", "/workspaces/demo")
    mine = await here.create("demo", "bob")
    await here.call("DELETE", "/workspaces/demo", by="bob")
    await here.db.execute("UPDATE workspaces SET deleted_at = now() + interval '1 hour' WHERE id <> $1::uuid", mine)
    assert (await here.call("GET", "/workspaces/demo", by="bob")).json()["id"] == mine
    assert (await here.call("GET", "/workspaces/demo", by="root")).json()["id"] != mine
    assert (await here.call("GET", "/workspaces/demo")).json()["owner"] == "ada"


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def hold(here: LiveApi, by: str) -> str:
    held = await here.call("POST", "/workspaces/demo/leases", {"reason": f"{by}'s build", "seconds": 60}, by=by)
    assert held.status_code == 201
    return str(held.json()["id"])


async def holders(here: LiveApi) -> list[str]:
    return sorted(one["created_by"] for one in (await here.call("GET", "/workspaces/demo/leases")).json()["items"])


async def test_a_user_with_role_use_ends_only_own_holds(here: LiveApi) -> None:
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    of_ada, of_bob = await hold(here, "ada"), await hold(here, "bob")
    refused = await here.call("DELETE", f"/workspaces/demo/leases/{of_ada}", by="bob")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (refused.json()["has"], refused.json()["needs"]) == ("use", "manage")
    missing = await here.call("DELETE", f"/workspaces/demo/leases/{uuid.uuid4()}", by="bob")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert await holders(here) == ["ada", "bob"]
    assert (await here.call("DELETE", f"/workspaces/demo/leases/{of_bob}", by="bob")).status_code == 204
    assert await holders(here) == ["ada"]
    await hold(here, "bob")
    assert (await here.call("DELETE", "/workspaces/demo/leases", by="bob")).status_code == 204
    assert await holders(here) == ["ada"]


@pytest.mark.parametrize("by", ["ada", "eve", "root"])
async def test_a_manager_ends_the_holds_of_all_users(here: LiveApi, by: str) -> None:
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    await here.call("PUT", "/workspaces/demo/shares/eve", {"role": "manage"})
    of_bob, _, _ = await hold(here, "bob"), await hold(here, "ada"), await hold(here, "bob")
    assert (await here.call("DELETE", f"/workspaces/demo/leases/{of_bob}", by=by)).status_code == 204
    assert await holders(here) == ["ada", "bob"]
    assert (await here.call("DELETE", "/workspaces/demo/leases", by=by)).status_code == 204
    assert await holders(here) == []


async def test_removing_a_share_ends_the_holds_of_that_user(here: LiveApi) -> None:
    await here.create("other")
    for name in ("demo", "other"):
        await here.call("PUT", f"/workspaces/{name}/shares/bob", {"role": "use"})
        await here.call("PUT", f"/workspaces/{name}/shares/eve", {"role": "use"})
    for by in ("ada", "bob", "bob", "eve"):
        await hold(here, by)
    await here.call("POST", "/workspaces/other/leases", {"reason": "another", "seconds": 60}, by="bob")
    await here.call("DELETE", "/workspaces/demo/shares/bob")
    assert await holders(here) == ["ada", "eve"]
    assert len((await here.call("GET", "/workspaces/other/leases")).json()["items"]) == 1


async def test_a_hold_is_refused_after_the_share_was_removed(here: LiveApi) -> None:
    """The user loses the share after the permission check."""
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    bob = here.people["bob"].caller
    found = await here.wishes.find(bob, "demo")
    await here.call("DELETE", "/workspaces/demo/shares/bob")
    with pytest.raises(Refused) as refused:
        await here.wishes.using.hold(bob, found, reason="a build", seconds=60)
    assert refused.value.code == "not_found"
    assert await holders(here) == []


async def test_a_reduced_role_counts_when_holds_are_ended(here: LiveApi) -> None:
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "manage"})
    bob = here.people["bob"].caller
    of_ada = await hold(here, "ada")
    found = await here.wishes.find(bob, "demo")
    await here.call("PUT", "/workspaces/demo/shares/bob", {"role": "use"})
    with pytest.raises(Refused) as refused:
        await here.wishes.using.end_hold(bob, found, of_ada)
    assert refused.value.code == "forbidden"
    await here.wishes.using.end_hold(bob, found)
    assert await holders(here) == ["ada"]
