"""A signed-in browser gets a code for one workspace's host, which only this browser can use."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.api.browsers import SECURE, Platform, platform
from torpor.accounts import AuthMethod, Caller, digest
from torpor.domain.records import Workspace
from torpor.service.wishes import Wishes

pytestmark = pytest.mark.anyio
NONCE = "what the browser keeps"


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[Platform]:
    async with platform(database_url, redis_url) as running:
        await running.people.workspace("demo", "ada")
        yield running


def door(workspace: str = "demo", *, nonce: str = digest(NONCE).hex(), **more: object) -> str:
    return f"/door?{urlencode({'workspace': workspace, 'nonce': nonce, **more})}"


async def test_a_signed_in_browser_is_redirected_with_a_valid_code(here: Platform) -> None:
    answer = await (await here.browser("ada")).get(door(back="/a/path?with=this"))
    assert answer.status_code == 303
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    where = urlsplit(answer.headers["location"])
    assert f"{where.scheme}://{where.netloc}{where.path}" == "http://demo.localhost:8080/.torpor/enter"
    said = parse_qs(where.query)
    assert said["back"] == ["/a/path?with=this"]
    workspace_id = str(await here.people.db.fetchval("SELECT id FROM workspaces WHERE name = 'demo'"))
    _, caller = await here.people.accounts.redeem(said["code"][0], NONCE, workspace_id)
    assert (caller.user.username, caller.how, caller.workspace_id) == ("ada", AuthMethod.DOOR, workspace_id)


async def test_each_port_has_its_own_host(here: Platform) -> None:
    answer = await (await here.browser("ada")).get(door(port=3000))
    assert answer.headers["location"].startswith("http://3000--demo.localhost:8080/.torpor/enter?")


async def test_workspaces_can_have_their_own_domain(database_url: str, redis_url: str) -> None:
    async with platform(database_url, redis_url, hosts=SECURE) as here:
        await here.people.workspace("demo", "ada")
        answer = await (await here.browser("ada")).get(door())
        assert answer.headers["location"].startswith("https://demo.work.example.com/.torpor/enter?")


async def test_a_browser_without_a_session_is_sent_to_sign_in_and_returns(here: Platform) -> None:
    asked = door(back="/x")
    answer = await here.stranger().get(asked)
    assert answer.status_code == 303
    where = urlsplit(answer.headers["location"])
    assert (where.scheme, where.netloc, where.path) == ("", "", "/")
    assert parse_qs(where.query) == {"next": [asked]}
    assert await here.people.db.fetchval("SELECT count(*) FROM door_codes") == 0


async def test_a_session_that_ends_meanwhile_leads_to_the_sign_in(here: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await here.browser("ada")
    find = Wishes.find

    async def found_too_late(wishes: Wishes, caller: Caller, *asked: Any, **more: Any) -> Workspace:
        found = await find(wishes, caller, *asked, **more)
        await here.people.accounts.sign_out(caller)
        return found

    monkeypatch.setattr(Wishes, "find", found_too_late)
    answer = await browser.get(door())
    assert answer.status_code == 303
    assert parse_qs(urlsplit(answer.headers["location"]).query) == {"next": [door()]}


async def test_an_api_token_gets_no_code(here: Platform) -> None:
    assert (await here.program("torpor_root").get(door())).headers["location"].startswith("/?next=")


@pytest.mark.parametrize("workspace", ["demo", "nothing", "", "..", "a/b"])
async def test_a_workspace_without_access_is_not_found(here: Platform, workspace: str) -> None:
    answer = await (await here.browser("bob")).get(door(workspace))
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert await here.people.db.fetchval("SELECT count(*) FROM door_codes") == 0


async def test_a_user_with_a_share_gets_a_code(here: Platform) -> None:
    await here.people.db.execute("UPDATE workspaces SET shares = $1", {"bob": "use"})
    assert (await (await here.browser("bob")).get(door())).status_code == 303


@pytest.mark.parametrize(
    "asked",
    [
        door(back="//evil.example.com"),
        door(back="https://evil.example.com"),
        door(back="/\\evil.example.com"),
        door(back="/x\r\nSet-Cookie: a=b"),
        door(nonce=""),
        door(nonce="short"),
        door(nonce="Z" * 64),
    ],
)
async def test_a_return_path_to_another_origin_is_refused(here: Platform, asked: str) -> None:
    answer = await (await here.browser("ada")).get(asked)
    assert answer.status_code == 422
    assert "location" not in answer.headers
    assert "<script" not in answer.text


async def test_input_is_not_in_the_error_page(here: Platform) -> None:
    answer = await (await here.browser("ada")).get(door("<script>alert(1)</script>"))
    assert answer.status_code == 404
    assert "<script>" not in answer.text
