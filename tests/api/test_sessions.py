"""Sign in and out over HTTP; requests from another site are refused."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.requests import HTTPConnection

from tests.api.browsers import PLAIN, SECURE, Platform, platform
from tests.support.accounts_stage import ELSEWHERE, HOME, PASSWORD
from torpor.accounts import digest
from torpor.api.authentication import Authenticator, is_own_origin
from torpor.bus.login_throttle import OF_ONE_NAME
from torpor.domain.errors import Refused
from torpor.domain.hostnames import Hosts

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[Platform]:
    async with platform(database_url, redis_url) as running:
        yield running


def problem(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


async def test_a_user_signs_in_reads_and_signs_out(here: Platform) -> None:
    browser = await here.browser("ada")
    me = (await browser.get("/api/v1/me")).json()
    assert (me["username"], me["is_admin"], me["how"], me["has_password"]) == ("ada", False, "SESSION", True)
    assert me["scopes"] == ["account", "admin", "manage", "read", "use"]
    answer = await browser.post("/api/v1/logout")
    assert (answer.status_code, browser.cookies.get("torpor_session")) == (204, None)
    assert problem(await browser.get("/api/v1/me")) == (401, "unauthorized")


async def test_a_cookie_is_invalid_after_signing_out(here: Platform) -> None:
    browser = await here.browser("ada")
    kept = browser.cookies["torpor_session"]
    await browser.post("/api/v1/logout")
    thief = here.stranger(headers={"Cookie": f"torpor_session={kept}"})
    assert problem(await thief.get("/api/v1/me")) == (401, "unauthorized")


async def test_a_wrong_password_is_refused_and_too_many_get_retry_after(here: Platform) -> None:
    stranger = here.stranger(address=ELSEWHERE)
    for _ in range(OF_ONE_NAME):
        answer = await stranger.post("/api/v1/login", json={"username": "ada", "password": "wrong"})
        assert problem(answer) == (401, "bad_credentials")
    answer = await stranger.post("/api/v1/login", json={"username": "ada", "password": PASSWORD})
    assert problem(answer) == (429, "too_many_sign_ins")
    assert 0 < int(answer.headers["retry-after"]) <= 900
    await here.browser("ada", address=HOME)


async def test_the_last_forwarded_address_counts(here: Platform) -> None:
    """The client itself can write any address before the one that the front appends."""
    liar = here.stranger(headers={"X-Forwarded-For": f"{HOME}, {ELSEWHERE}"})
    await liar.post("/api/v1/login", json={"username": "ada", "password": PASSWORD})
    assert [one["came_from"] for one in (await liar.get("/api/v1/sessions")).json()["items"]] == [ELSEWHERE]


@pytest.mark.parametrize("hosts", [PLAIN, SECURE])
async def test_the_session_cookie_is_host_only_and_http_only(database_url: str, redis_url: str, hosts: Hosts) -> None:
    async with platform(database_url, redis_url, hosts=hosts) as here:
        answer = await here.stranger().post("/api/v1/login", json={"username": "ada", "password": PASSWORD})
        cookie, *said = answer.headers["set-cookie"].split("; ")
        assert cookie.partition("=")[0] == ("__Host-torpor_session" if hosts.is_secure else "torpor_session")
        expected = {"HttpOnly", "SameSite=lax", "Path=/", "Max-Age=2592000"} | ({"Secure"} if hosts.is_secure else set())
        assert set(said) == expected


async def test_a_session_is_refused_as_bearer_token_and_a_token_as_cookie(here: Platform) -> None:
    browser = await here.browser("ada")
    session = browser.cookies["torpor_session"]
    assert problem(await here.program(session).get("/api/v1/me")) == (401, "unauthorized")
    robber = here.stranger(headers={"Cookie": "torpor_session=torpor_root"})
    assert problem(await robber.get("/api/v1/me")) == (401, "unauthorized")
    assert (await here.program("torpor_root").get("/api/v1/me")).json()["how"] == "TOKEN"


async def test_the_cookie_of_a_workspace_is_refused_by_the_platform(here: Platform) -> None:
    """Even if code inside the workspace could read it."""
    caller = await here.people.session("ada")
    workspace_id = await here.people.workspace("demo", "ada")
    code = await here.people.accounts.door_code(caller, workspace_id, digest("nonce"))
    token, _ = await here.people.accounts.redeem(code, "nonce", workspace_id)
    assert problem(await here.program(token).get("/api/v1/me")) == (401, "unauthorized")
    thief = here.stranger(headers={"Cookie": f"torpor_session={token}"})
    assert problem(await thief.get("/api/v1/me")) == (401, "unauthorized")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "torpor_root", "Bearer torpor_guess", "Bearer \xff"])
async def test_an_invalid_authorization_header_is_refused(here: Platform, header: str) -> None:
    answer = await here.stranger(headers={}).get("/api/v1/me", headers={b"Authorization": header.encode("latin-1")})
    assert problem(answer) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


# ── another site ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "is_let_in"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://localhost:8080"}, True),
        ({"Origin": "http://127.0.0.1:8080"}, True),
        ({"Origin": "http://demo.localhost:8080"}, False),
        ({"Origin": "http://localhost:9090"}, False),
        ({"Origin": "https://localhost:8080"}, False),
        ({"Origin": "https://evil.example.com"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}, True),
        # The Host header is chosen by the client.
        ({"Origin": "http://evil.example.com", "Host": "evil.example.com"}, False),
    ],
)
async def test_a_cookie_authorizes_changes_only_from_own_pages(here: Platform, said: dict[str, str], is_let_in: bool) -> None:
    browser = await here.browser("ada")
    answer = await browser.post("/api/v1/tokens", json={"label": "robot", "scopes": ["read"]}, headers=said)
    assert answer.status_code == 201 if is_let_in else problem(answer) == (403, "cross_site")
    # The other site cannot read the answer; if the browser reports another site, the call is not even made.
    looked = await browser.get("/api/v1/me", headers=said)
    assert looked.status_code == (403 if said.get("Sec-Fetch-Site") in ("same-site", "cross-site") else 200)
    assert "access-control-allow-origin" not in looked.headers
    # Another site cannot sign a user in to another account either.
    login = {"username": "bob", "password": PASSWORD}
    assert (await here.stranger().post("/api/v1/login", json=login, headers=said)).status_code == (204 if is_let_in else 403)


async def test_a_token_is_accepted_from_any_origin(here: Platform) -> None:
    headers = {"Origin": "https://evil.example.com"}
    answer = await here.program("torpor_root").post("/api/v1/tokens", json={"label": "x", "scopes": ["read"]}, headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("origin", "hosts", "expected"),
    [
        ("https://torpor.example.com", SECURE, True),
        ("https://torpor.example.com:443", SECURE, True),
        ("https://torpor.example.com:80", SECURE, False),
        ("https://TORPOR.example.com", SECURE, True),
        ("https://demo.work.example.com", SECURE, False),
        ("https://torpor.example.com.evil.com", SECURE, False),
        ("https://torpor.example.com@evil.com", SECURE, False),
        ("https://torpor.example.com/", SECURE, False),
        ("https://localhost", SECURE, False),
        ("http://torpor.example.com", SECURE, False),
        ("http://[::1]:8080", PLAIN, True),
        ("http://[::1", PLAIN, False),
        ("http://localhost:99999", PLAIN, False),
        ("null", PLAIN, False),
        ("", PLAIN, False),
    ],
)
def test_own_origins_are_recognised(origin: str, hosts: Hosts, expected: bool) -> None:
    assert is_own_origin(origin, hosts) is expected


# ── sessions and passwords ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_user_lists_sessions_and_ends_another_one(here: Platform) -> None:
    phone = await here.browser("ada", address=ELSEWHERE)
    desk = await here.browser("ada", headers={"User-Agent": "the desk"})
    items = (await desk.get("/api/v1/sessions")).json()["items"]
    assert [(one["came_from"], one["is_current"]) for one in items] == [(HOME, True), (ELSEWHERE, False)]
    assert items[0]["user_agent"] == "the desk"
    assert (await desk.delete(f"/api/v1/sessions/{items[1]['id']}")).status_code == 204
    assert problem(await phone.get("/api/v1/me")) == (401, "unauthorized")
    assert problem(await desk.delete(f"/api/v1/sessions/{items[1]['id']}")) == (404, "not_found")
    assert problem(await (await here.browser("bob")).delete(f"/api/v1/sessions/{items[0]['id']}")) == (404, "not_found")
    assert (await desk.get("/api/v1/me")).status_code == 200


async def test_a_user_changes_their_password(here: Platform) -> None:
    other, mine = await here.browser("ada"), await here.browser("ada")
    wrong = await mine.post("/api/v1/me/password", json={"old": "wrong", "new": "another password"})
    assert problem(wrong) == (403, "wrong_password")
    assert (await mine.post("/api/v1/me/password", json={"old": PASSWORD, "new": "short"})).json()["code"] == "bad_password"
    answer = await mine.post("/api/v1/me/password", json={"old": PASSWORD, "new": "another password"})
    assert answer.status_code == 204
    assert problem(await other.get("/api/v1/me")) == (401, "unauthorized")
    assert (await mine.get("/api/v1/me")).status_code == 200


async def test_a_user_changes_their_password_and_ends_their_tokens(here: Platform) -> None:
    mine = await here.browser("ada")
    robot = here.program((await mine.post("/api/v1/tokens", json={"label": "robot", "scopes": ["read"]})).json()["token"])
    wanted = {"old": PASSWORD, "new": "another password"}
    assert (await mine.post("/api/v1/me/password", json=wanted)).status_code == 204
    assert (await robot.get("/api/v1/me")).status_code == 200
    wanted = {"old": "another password", "new": "a third password"}
    assert (await mine.post("/api/v1/me/password", json={**wanted, "end_tokens": True})).status_code == 204
    assert problem(await robot.get("/api/v1/me")) == (401, "unauthorized")
    assert (await mine.get("/api/v1/me")).status_code == 200


async def test_the_ways_to_sign_in_are_public(here: Platform) -> None:
    assert (await here.stranger().get("/api/v1/sign-in")).json() == {"password": True, "oidc": None}


@pytest.mark.parametrize(
    ("said", "is_let_in"),
    [
        ({"origin": "http://localhost:8080"}, True),
        ({"origin": "http://demo.localhost:8080"}, False),
        ({"origin": "https://evil.example.com"}, False),
        ({"origin": "null"}, False),
        # Browsers always send the Origin.
        ({}, False),
        ({"sec-fetch-site": "same-origin"}, False),
    ],
)
async def test_a_cookie_authorizes_a_websocket_only_from_own_pages(
    here: Platform, said: dict[str, str], is_let_in: bool
) -> None:
    token = await here.people.sign_in("ada")
    headers = {**said, "cookie": f"torpor_session={token}"}
    socket = HTTPConnection(
        {"type": "websocket", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    )
    door = Authenticator(here.people.accounts, PLAIN)
    if is_let_in:
        assert (await door.recognise(socket)).user.username == "ada"
    else:
        with pytest.raises(Refused) as refused:
            await door.recognise(socket)
        assert refused.value.code == "cross_site"
