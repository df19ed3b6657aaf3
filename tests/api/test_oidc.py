"""Sign-in with a real provider, and attempts to forge one."""

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from tests.api.browsers import SECURE, Platform, platform
from tests.support.accounts_stage import ELSEWHERE
from tests.support.openid_providers import provider_at, real_provider

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with real_provider(
        {"sub": "1815", "preferred_username": "Ada", "email": "ada@example.com"},
        {"sub": "1906", "preferred_username": "grace", "email": "grace@example.com", "email_verified": True},
        {"sub": "nameless"},
    ) as running:
        yield running


@pytest.fixture
async def here(database_url: str, redis_url: str, issuer: str) -> AsyncIterator[Platform]:
    provider = provider_at(issuer, admins=frozenset({"grace@example.com"}))
    async with platform(database_url, redis_url, provider=provider) as running:
        yield running


async def agree(url: str, subject: str | None) -> str:
    """The user signs in at the provider, or refuses. Returns the address to which the provider sends the browser back."""
    async with httpx2.AsyncClient() as there:
        said = {"sub": subject} if subject is not None else {"action": "deny"}
        answer = await there.post(url, data=said)
        assert answer.status_code in (302, 303), answer.text
        return str(answer.headers["location"])


async def begin(browser: httpx2.AsyncClient, *, then: str = "/") -> str:
    answer = await browser.get("/oidc/begin", params={"next": then})
    assert answer.status_code == 303
    return str(answer.headers["location"])


async def sign_in(here: Platform, subject: str) -> httpx2.AsyncClient:
    browser = here.stranger()
    answer = await browser.get(await agree(await begin(browser), subject))
    assert answer.status_code == 303, answer.text
    return browser


def is_refused(answer: httpx2.Response) -> bool:
    """The answer is an HTML page, and there is no session."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "session=" not in answer.headers.get("set-cookie", "")
    return answer.status_code == 401


async def test_a_sign_in_by_a_provider_succeeds_and_returns_to_the_page(here: Platform) -> None:
    browser = here.stranger(address=ELSEWHERE)
    assert (await browser.get("/api/v1/sign-in")).json()["oidc"] == {"name": "the office"}
    answer = await browser.get(await agree(await begin(browser, then="/workspaces/demo?tab=log"), "1815"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/workspaces/demo?tab=log")
    me = (await browser.get("/api/v1/me")).json()
    # Another user named ada exists already.
    assert (me["username"], me["how"], me["is_admin"], me["has_password"]) == ("ada-2", "SESSION", False, False)
    assert "torpor_oidc" not in browser.cookies
    assert [one["came_from"] for one in (await browser.get("/api/v1/sessions")).json()["items"]] == [ELSEWHERE]
    again = await sign_in(here, "1815")
    assert (await again.get("/api/v1/me")).json()["id"] == me["id"]


async def test_administrators_are_recognised_by_verified_claims(here: Platform) -> None:
    assert (await (await sign_in(here, "1906")).get("/api/v1/me")).json()["is_admin"]


async def test_a_user_without_a_name_gets_one(here: Platform) -> None:
    assert (await (await sign_in(here, "nameless")).get("/api/v1/me")).json()["username"] == "nameless"


async def test_the_authorization_request_has_state_nonce_and_challenge(here: Platform) -> None:
    browser = here.stranger()
    asked = parse_qs(urlsplit(await begin(browser)).query)
    state, nonce, verifier, _ = json.loads(base64.urlsafe_b64decode(browser.cookies["torpor_oidc"]))
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    assert (asked["response_type"], asked["code_challenge"], asked["code_challenge_method"]) == (
        ["code"],
        [challenge],
        ["S256"],
    )
    assert (asked["state"], asked["nonce"]) == ([state], [nonce])
    assert asked["redirect_uri"] == ["http://localhost:8080/oidc/back"]
    assert "openid" in asked["scope"][0].split()
    assert len({state, nonce, verifier}) == 3
    assert all(len(one) >= 43 for one in (state, nonce, verifier))
    assert verifier not in str(asked)


async def test_the_cookie_of_a_sign_in_is_protected(database_url: str, redis_url: str, issuer: str) -> None:
    async with platform(database_url, redis_url, hosts=SECURE, provider=provider_at(issuer)) as here:
        answer = await here.stranger().get("/oidc/begin")
        cookie, *said = answer.headers["set-cookie"].split("; ")
        assert cookie.partition("=")[0] == "__Host-torpor_oidc"
        assert set(said) == {"HttpOnly", "SameSite=lax", "Path=/", "Max-Age=600", "Secure"}


async def test_a_response_for_another_browser_is_refused(here: Platform) -> None:
    """Otherwise an attacker could make the user work in the attacker's account."""
    thief, victim = here.stranger(), here.stranger()
    back = await agree(await begin(thief), "1815")
    assert is_refused(await victim.get(back))
    await begin(victim)
    assert is_refused(await victim.get(back))


async def test_a_wrong_state_is_refused(here: Platform) -> None:
    browser = here.stranger()
    back = await agree(await begin(browser), "1815")
    assert is_refused(await browser.get(re.sub(r"state=[^&]*", "state=guess", back)))
    # The browser has only one attempt.
    assert is_refused(await browser.get(back))


async def test_a_wrong_nonce_is_refused(here: Platform) -> None:
    browser = here.stranger()
    back = await agree(await begin(browser), "1815")
    kept = json.loads(base64.urlsafe_b64decode(browser.cookies["torpor_oidc"]))
    kept[1] = "another nonce"
    other = here.stranger(headers={"Cookie": f"torpor_oidc={base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()}"})
    assert is_refused(await other.get(back))


async def test_a_response_works_once(here: Platform) -> None:
    browser = here.stranger()
    back = await agree(await begin(browser), "1815")
    kept = browser.cookies["torpor_oidc"]
    assert (await browser.get(back)).status_code == 303
    assert is_refused(await here.stranger().get(back))
    # Also with the old cookie: the provider accepts its code once.
    assert is_refused(await here.stranger(headers={"Cookie": f"torpor_oidc={kept}"}).get(back))


async def test_an_unknown_code_is_refused(here: Platform) -> None:
    browser = here.stranger()
    state = parse_qs(urlsplit(await begin(browser)).query)["state"][0]
    assert is_refused(await browser.get("/oidc/back", params={"code": "guess", "state": state}))


async def test_a_user_who_declines_is_not_signed_in(here: Platform) -> None:
    browser = here.stranger()
    url = await begin(browser)
    back = await agree(url, None)
    assert "error=access_denied" in back
    state = parse_qs(urlsplit(url).query)["state"][0]
    assert is_refused(await browser.get("/oidc/back", params={"error": "access_denied", "state": state}))


@pytest.mark.parametrize(
    "kept", ["", "!", "bm90IGpzb24=", "W10=", "WzEsMiwzLDRd", "WyJhIiwiYiIsImMiLCIvL2V2aWwuZXhhbXBsZS5jb20iXQ=="]
)
async def test_an_invalid_cookie_is_refused(here: Platform, kept: str) -> None:
    browser = here.stranger(headers={"Cookie": f"torpor_oidc={kept}"})
    assert is_refused(await browser.get("/oidc/back", params={"code": "x", "state": "a"}))


@pytest.mark.parametrize("depth", [2_999, 30_000])
async def test_a_deeply_nested_cookie_is_refused(here: Platform, depth: int) -> None:
    kept = base64.urlsafe_b64encode(b"[" * depth).decode()
    browser = here.stranger(headers={"Cookie": f"torpor_oidc={kept}"})
    assert is_refused(await browser.get("/oidc/back", params={"code": "x", "state": "a"}))


async def test_a_return_path_too_long_for_a_cookie_is_dropped(here: Platform) -> None:
    browser = here.stranger()
    answer = await browser.get(await agree(await begin(browser, then=f"/{'x' * 5000}"), "1815"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_refused_sign_in_is_audited(here: Platform) -> None:
    browser = here.stranger(address=ELSEWHERE)
    state = parse_qs(urlsplit(await begin(browser)).query)["state"][0]
    assert is_refused(await browser.get("/oidc/back", params={"code": "guess", "state": state}))
    (refused,) = await here.people.audited("session.refused")
    assert (refused["username"], refused["how"], refused["came_from"]) == ("", "NOBODY", ELSEWHERE)
    assert (refused["outcome"], refused["detail"]) == ("sign_in_refused", {"by": "oidc"})


@pytest.mark.parametrize("then", ["//evil.example.com", "https://evil.example.com", "/\\evil.example.com", "evil", ""])
async def test_a_return_path_to_another_origin_is_ignored(here: Platform, then: str) -> None:
    browser = here.stranger()
    answer = await browser.get(await agree(await begin(browser, then=then), "1815"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_an_unreachable_provider_is_reported(database_url: str, redis_url: str) -> None:
    with contextlib.ExitStack() as running:
        provider = provider_at(running.enter_context(real_provider()))
        async with platform(database_url, redis_url, provider=provider) as here:
            browser = here.stranger()
            back = await agree(await begin(browser), "1815")
            running.close()
            answer = await browser.get(back)
            assert (answer.status_code, "does not respond" in answer.text) == (503, True)
            # The provider's metadata is cached for a time and then read again.
            provider._clock = lambda: float("inf")
            answer = await browser.get("/oidc/begin")
            assert (answer.status_code, "does not respond" in answer.text) == (503, True)
            # Users with a password can still sign in.
            await here.browser("ada")


async def test_the_error_of_the_provider_is_not_in_the_page(here: Platform) -> None:
    browser = here.stranger()
    state = parse_qs(urlsplit(await begin(browser)).query)["state"][0]
    answer = await browser.get(f"/oidc/back?{urlencode({'error': '<script>alert(1)</script>', 'state': state})}")
    assert is_refused(answer)
    assert "<script>" not in answer.text
