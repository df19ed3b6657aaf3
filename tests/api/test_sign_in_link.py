"""The one-time sign-in link in a browser."""

from collections.abc import AsyncIterator

import pytest

from tests.api.browsers import Platform, platform
from torpor.api.sessions import SIGN_IN_LINK

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[Platform]:
    async with platform(database_url, redis_url) as running:
        yield running


async def test_the_link_opens_the_dashboard_signed_in_and_only_once(here: Platform) -> None:
    code = await here.people.accounts.sign_in_code((await here.people.accounts.user("root")).user)
    browser, other = here.stranger(), here.stranger()
    opened = await browser.get(f"{SIGN_IN_LINK}?code={code}")
    assert (opened.status_code, opened.headers["location"], opened.headers["cache-control"]) == (303, "/", "no-store")
    assert "httponly" in opened.headers["set-cookie"].lower()
    assert (await browser.get("/api/v1/me")).json()["username"] == "root"
    again = await other.get(f"{SIGN_IN_LINK}?code={code}")
    assert again.status_code == 401
    assert "was used already or has expired" in again.text
    assert "set-cookie" not in again.headers
    assert (await other.get("/api/v1/me")).status_code == 401


@pytest.mark.parametrize("query", ["", "?code=", "?code=torpor_wrong", "?code=%00%ff", "?code=" + "x" * 5000])
async def test_a_wrong_link_is_refused_with_a_page(here: Platform, query: str) -> None:
    answer = await here.stranger().get(f"{SIGN_IN_LINK}{query}")
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
