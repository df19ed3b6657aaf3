"""Every answer has the security headers."""

from typing import Any

import httpx2
import pytest

from tests.api.browsers import PLAIN, SECURE, platform
from tests.api.unasked import NO_COLLECTING, NO_EVENTS, NO_USAGE
from torpor.api.app import Health, make_app
from torpor.domain.hostnames import Hosts
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.testing.defaults import DEFAULTS

pytestmark = pytest.mark.anyio
# A page, JSON, a refusal, a missing page, a redirect, plain text, and a refusal by the framework itself.
PATHS = [
    "/",
    "/docs",
    "/openapi.json",
    "/health",
    "/api/v1/me",
    "/api/v1/nothing",
    "/nothing",
    "/door?workspace=demo",
    "/metrics",
]


@pytest.mark.parametrize("hosts", [PLAIN, SECURE])
async def test_every_response_has_the_security_headers(database_url: str, redis_url: str, hosts: Hosts) -> None:
    async with platform(database_url, redis_url, hosts=hosts) as here:
        stranger = here.stranger()
        answers = [await stranger.get(path) for path in PATHS]
        answers.append(await stranger.post("/api/v1/login", content=b"{"))
        answers.append(await stranger.request("DELETE", "/api/v1/me"))
        for answer in answers:
            check(answer, hosts)


@pytest.mark.parametrize("hosts", [PLAIN, SECURE])
async def test_an_internal_error_has_the_security_headers(hosts: Hosts) -> None:
    async def broken() -> dict[str, Any]:
        raise LookupError("what nobody has thought of")

    nothing: Any = None
    wishes = Wishes(
        nothing,
        limits=nothing,
        ttls=DEFAULTS.ttls,
        new_id=str,
        hint=print,
        using=UseService(nothing, new_id=str, hint=print, lease_s=DEFAULTS.connection_lease),
    )
    app = make_app(
        wishes,
        nothing,
        nothing,
        Health(broken, broken),
        hosts=hosts,
        events=NO_EVENTS,
        gc=NO_COLLECTING,
        usage=NO_USAGE,
        reading=NO_USAGE,
    )
    # As under a server: the error is raised again after the answer, so that it is logged.
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=hosts.base_url) as client:
        answers = [
            await client.get("/health/ready"),
            await client.post("/api/v1/login", json={"username": "a", "password": "b"}),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (500, "internal")
            check(answer, hosts)


def check(answer: httpx2.Response, hosts: Hosts) -> None:
    headers, where = answer.headers, f"{answer.request.method} {answer.request.url} {answer.status_code}"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy or "default-src 'self'" in policy, where
    assert "frame-ancestors 'none'" in policy, where
    assert "'unsafe-eval'" not in policy, where
    assert "script-src 'unsafe-inline'" not in policy, where
    assert headers["x-content-type-options"] == "nosniff", where
    assert headers["x-frame-options"] == "DENY", where
    assert headers["referrer-policy"] in ("same-origin", "no-referrer"), where
    assert headers["cross-origin-opener-policy"] == "same-origin", where
    assert "camera=()" in headers["permissions-policy"], where
    assert ("strict-transport-security" in headers) is hosts.is_secure, where
    if answer.request.url.path.startswith("/api/"):
        assert headers["cache-control"] == "no-store", where
    # Each header once: browsers enforce two policies together, which may be stricter than intended.
    assert len(headers.get_list("content-security-policy")) == 1, where
