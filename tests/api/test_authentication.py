"""A session cookie is accepted only from the platform's own pages."""

from collections.abc import AsyncIterator

import pytest

from tests.api.browsers import Platform, platform

pytestmark = pytest.mark.anyio

FROM_ELSEWHERE = ["same-site", "cross-site", "nonsense"]


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[Platform]:
    async with platform(database_url, redis_url) as made:
        yield made


@pytest.mark.parametrize("site", FROM_ELSEWHERE)
@pytest.mark.parametrize("path", ["/api/v1/me", "/api/v1/workspaces", "/api/v1/audit"])
async def test_a_request_from_another_site_is_refused(here: Platform, site: str, path: str) -> None:
    """The other site cannot read the answer, but its time and size would reveal something."""
    browser = await here.browser("ada")
    answer = await browser.get(path, headers={"Sec-Fetch-Site": site})
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")


@pytest.mark.parametrize("said", [{}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}])
async def test_requests_from_own_pages_and_the_address_bar_are_accepted(here: Platform, said: dict[str, str]) -> None:
    assert (await (await here.browser("ada")).get("/api/v1/me", headers=said)).json()["username"] == "ada"


@pytest.mark.parametrize("site", FROM_ELSEWHERE)
async def test_a_link_from_another_site_opens_pages_and_workspace_sign_in(here: Platform, site: str) -> None:
    browser = await here.browser("ada")
    there = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await browser.get("/", headers=there)).status_code == 200
    # The session is read: a browser without one is sent to sign in.
    assert (await browser.get("/door?workspace=demo", headers=there)).status_code == 422


async def test_the_site_header_does_not_matter_with_an_api_token(here: Platform) -> None:
    """Browsers do not send an API token by themselves."""
    answer = await here.program("torpor_root").get("/api/v1/me", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.json()["username"] == "root"
