"""The commands for users, tokens, sessions, shares and the audit log, against the real API."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.real import Real, real

pytestmark = pytest.mark.anyio
PASSWORD = "correct horse battery"


@pytest.fixture
async def torpor(
    database_url: str,
    redis_url: str,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Real]:
    async with real(database_url, redis_url, tmp_path, capfdbinary, monkeypatch) as made:
        yield made


async def test_signing_in_stores_a_token_and_signing_out_revokes_it(torpor: Real) -> None:
    await torpor.ok("users", "create", "eve", by="root", stdin=f"{PASSWORD}\n")
    assert (await torpor("list")).code == 6
    said = await torpor.ok("login", f"{torpor.url}/", "--username", "eve", stdin=f"{PASSWORD}\n")
    assert said.text == f"signed in to {torpor.url} as eve; `torpor logout` ends it\n"

    stored = torpor.config / "torpor" / "login.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert stored.parent.stat().st_mode & 0o777 == 0o700
    login = json.loads(stored.read_text())
    assert PASSWORD not in stored.read_text()
    assert login["token"] not in said.text + said.said

    assert (await torpor.ok("list", "--json")).json == {"items": []}
    [token] = (await torpor.ok("tokens", "--json")).json["items"]
    assert token["id"] == login["token_id"]
    assert "admin" not in token["scopes"]
    # The session that created the token has ended.
    assert (await torpor.ok("sessions", "list", "--json")).json == {"items": []}

    assert (await torpor.ok("logout", "--json")).json == {"url": torpor.url, "username": "eve", "revoked": True}
    assert not stored.exists()
    again = await torpor("login", torpor.url, "--token", "-", stdin=f"{login['token']}\n")
    assert again.code == 1
    assert not stored.exists()
    assert (await torpor("logout")).code == 2


async def test_signing_in_again_leaves_no_token_behind(torpor: Real) -> None:
    await torpor.ok("users", "create", "eve", by="root", stdin=f"{PASSWORD}\n")
    for _ in range(2):
        await torpor.ok("login", torpor.url, "--username", "eve", stdin=f"{PASSWORD}\n")
    assert len((await torpor.ok("tokens", "list", "--json")).json["items"]) == 1


async def test_a_wrong_password_is_refused_and_stores_nothing(torpor: Real) -> None:
    await torpor.ok("users", "create", "eve", by="root", stdin=f"{PASSWORD}\n")
    ended = await torpor("login", torpor.url, "--username", "eve", "--json", stdin="something else\n")
    assert ended.code == 1
    assert ended.json["code"] == "bad_credentials"
    assert not torpor.config.exists()
    assert (await torpor("login", torpor.url, "--username", "eve")).code == 2
    assert (await torpor("login", torpor.url)).code == 2


async def test_logout_does_not_revoke_a_token_that_was_given(torpor: Real) -> None:
    token = torpor.here.people["ada"].token
    await torpor.ok("login", torpor.url, "--token", "-", stdin=f"{token}\n")
    assert (await torpor.ok("limits", "--json")).json["running_mine"] == 0
    assert (await torpor.ok("logout", "--json")).json["revoked"] is False
    await torpor.ok("list", by="ada")


async def test_tokens_are_created_shown_once_and_revoked(torpor: Real) -> None:
    made = await torpor.ok("tokens", "create", "ci", "--scope", "read", "--scope", "USE", "--for", "2d", by="ada")
    token, newline = made.text.split("\n")
    assert newline == ""
    assert token.startswith("torpor_")
    assert token not in made.said
    listed = await torpor.ok("tokens", "list", by="ada")
    [line] = [line for line in listed.text.splitlines() if " ci " in line]
    assert "read use" in line
    assert "in 1 day" in line
    token_id = line.split()[0]

    await torpor.ok("login", torpor.url, "--token", token)
    await torpor.ok("list")
    refused = await torpor("create", "demo")
    assert refused.code == 1
    assert "--scope SCOPE" in refused.said

    await torpor.ok("tokens", "revoke", token_id, by="ada")
    gone = await torpor("list")
    assert gone.code == 1
    assert "sign in with `torpor login URL`" in gone.said


async def test_users_are_created_changed_and_signed_out(torpor: Real) -> None:
    # An administrator with a password must remain, or the server refuses to deactivate the last one.
    await torpor.ok("users", "change", "root", "--password", by="root", stdin=f"{PASSWORD}\n")
    made = await torpor.ok("users", "create", "eve", "--max-running", "3", "--json", by="root", stdin=f"{PASSWORD}\n")
    assert (made.json["username"], made.json["is_admin"], made.json["max_running"]) == ("eve", False, 3)
    assert PASSWORD not in made.text
    taken = await torpor("users", "create", "eve", by="root", stdin=f"{PASSWORD}\n")
    assert taken.code == 1
    bare = (await torpor.ok("users", "create", "bot", "--no-password", "--json", by="root")).json
    assert bare["has_password"] is False

    await torpor.ok("login", torpor.url, "--username", "eve", stdin=f"{PASSWORD}\n")
    await torpor.ok("list")
    changed = await torpor.ok("users", "change", "eve", "--admin", "--max-running", "default", "--json", by="root")
    assert (changed.json["is_admin"], changed.json["max_running"]) == (True, None)
    listed = (await torpor.ok("users", by="root")).text
    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("eve")] == [["eve", "admin", "yes"]]
    assert (await torpor.ok("users", "sign-out", "eve", by="root")).text.startswith("eve is signed out")
    await torpor.ok("users", "change", "eve", "--inactive", by="root")
    assert (await torpor("list")).code == 1

    assert (await torpor("users", "change", "eve", by="root")).code == 2
    assert (await torpor("users", "change", "eve", "--max-running", "many", by="root")).code == 2
    refused = await torpor("users", by="ada")
    assert refused.code == 1
    assert "ask an administrator" in refused.said


async def test_a_new_password_replaces_the_old_one(torpor: Real) -> None:
    await torpor.ok("users", "create", "eve", by="root", stdin=f"{PASSWORD}\n")
    await torpor.ok("users", "change", "eve", "--password", by="root", stdin="another of them\n")
    assert (await torpor("login", torpor.url, "-u", "eve", stdin=f"{PASSWORD}\n")).code == 1
    await torpor.ok("login", torpor.url, "-u", "eve", stdin="another of them\n")


async def test_sessions_are_listed_and_ended(torpor: Real) -> None:
    caller = torpor.here.people["ada"].caller
    await torpor.ok("users", "change", "ada", "--password", by="root", stdin=f"{PASSWORD}\n")
    # A new password revokes all tokens of the user.
    await torpor.ok("login", torpor.url, "--username", "ada", stdin=f"{PASSWORD}\n")
    for number in range(3):
        await torpor.here.accounts.sign_in("ada", PASSWORD, came_from=f"192.0.2.{number}", user_agent="Firefox")
    listed = await torpor.ok("sessions")
    assert "192.0.2.1" in listed.text
    assert "Firefox" in listed.text
    first, *rest = (await torpor.ok("sessions", "list", "--json")).json["items"]
    await torpor.ok("sessions", "end", first["id"])
    assert (await torpor("sessions", "end", first["id"])).code == 1
    assert [one.id for one in await torpor.here.accounts.sessions(caller)] == [one["id"] for one in rest]
    assert (await torpor.ok("sessions", "end", "all")).text == "2 sessions have ended\n"


async def test_a_shared_workspace_is_visible_until_the_share_ends(torpor: Real) -> None:
    await torpor.here.create("demo")
    assert (await torpor("show", "demo", by="bob")).code == 1
    assert (await torpor.ok("shares", "demo", by="ada")).text.startswith("demo is not shared")
    await torpor.ok("share", "demo", "bob", by="ada")
    refused = await torpor("stop", "demo", by="bob")
    assert refused.code == 1
    assert "(ask its owner)" in refused.said
    shared = await torpor.ok("share", "demo", "bob", "--role", "MANAGE", "--json", by="ada")
    assert shared.json == {"items": [{"username": "bob", "role": "manage"}]}
    await torpor.ok("stop", "demo", by="bob")
    assert "bob" in (await torpor.ok("shares", "demo", by="ada")).text
    assert "bob (manage)" in (await torpor.ok("show", "demo", by="ada")).text
    assert (await torpor("share", "demo", "nobody-at-all", by="ada")).code == 1
    await torpor.ok("unshare", "demo", "bob", by="ada")
    assert (await torpor("show", "demo", by="bob")).code == 1


async def test_the_audit_log_shows_users_and_actions(torpor: Real) -> None:
    for number in range(3):
        await torpor.here.create(f"w{number}")
        await torpor.ok("stop", f"w{number}", by="ada")
    await torpor.ok("share", "w0", "bob", by="ada")
    told = (await torpor.ok("audit", "--json", by="ada")).json["items"]
    assert [line["action"] for line in told] == ["workspace.share", *["workspace.wish"] * 3]
    assert {line["username"] for line in told} == {"ada"}
    few = (await torpor.ok("audit", "-n", "2", "--json", by="root")).json["items"]
    assert [line["id"] for line in few] == [line["id"] for line in told[:2]]
    about = (await torpor.ok("audit", "--workspace", "w1", "--user", "ada", by="root")).text.splitlines()
    assert len(about) == 2
    assert about[1].split()[2:6] == ["ada", "workspace.wish", "w1", "ok"]
    assert (await torpor.ok("audit", "--json", by="bob")).json == {"items": []}


async def test_limits_names_running_workspaces(torpor: Real) -> None:
    await torpor.ok("create", "demo", "--template", "terminal", by="ada")
    assert (await torpor.ok("limits", "--json", by="ada")).json["running"] == ["demo"]
    told = (await torpor.ok("limits", by="ada")).text
    assert "1 of 9" in told
    assert "demo" in told
