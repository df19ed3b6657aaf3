"""The whole app with clients: browsers that keep cookies, and programs that send API tokens."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.api.unasked import NO_COLLECTING, NO_EVENTS, NO_USAGE
from tests.support.accounts_stage import HOME, PASSWORD, AccountsStage, accounts_stage
from torpor.accounts.provider import Provider
from torpor.api.app import Health, make_app
from torpor.archives.reader import ArchiveReader
from torpor.domain.hostnames import Hosts
from torpor.domain.limits import RunningLimits
from torpor.runtimes.local_access import LocalAccess
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.store.service_store import ServiceStore
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeRuntime, FakeWorld

PLAIN = Hosts("http://localhost:8080", "localhost")
SECURE = Hosts("https://torpor.example.com", "work.example.com")


@dataclass(frozen=True)
class Platform:
    people: AccountsStage
    hosts: Hosts
    stranger: Callable[..., httpx2.AsyncClient]
    """A new browser without cookies."""

    async def browser(self, username: str, **how: Any) -> httpx2.AsyncClient:
        """A browser that is signed in, on a page of the platform."""
        browser = self.stranger(**how)
        answer = await browser.post("/api/v1/login", json={"username": username, "password": PASSWORD})
        assert answer.status_code == 204, answer.text
        return browser

    def program(self, token: str) -> httpx2.AsyncClient:
        return self.stranger(headers={"Authorization": f"Bearer {token}"})


@contextlib.asynccontextmanager
async def platform(
    database_url: str, redis_url: str, *, hosts: Hosts = PLAIN, provider: Provider | None = None
) -> AsyncIterator[Platform]:
    async with contextlib.AsyncExitStack() as stack:
        known = await stack.enter_async_context(accounts_stage(database_url, redis_url))
        wishes = Wishes(
            ServiceStore(known.database),
            limits=RunningLimits(per_user=9, overall=9),
            ttls=DEFAULTS.ttls,
            new_id=lambda: str(uuid.uuid4()),
            hint=lambda _: None,
            using=UseService(
                ServiceStore(known.database),
                new_id=lambda: str(uuid.uuid4()),
                hint=lambda _: None,
                lease_s=DEFAULTS.connection_lease,
            ),
        )

        async def well() -> dict[str, Any]:
            return {"ready": True}

        app = make_app(
            wishes,
            known.accounts,
            LocalAccess(FakeRuntime(FakeWorld())),
            Health(well, well),
            hosts=hosts,
            events=NO_EVENTS,
            gc=NO_COLLECTING,
            usage=NO_USAGE,
            reading=ArchiveReader("file:///nowhere"),
            provider=provider,
        )

        def stranger(*, headers: dict[str, str] | None = None, address: str = HOME) -> httpx2.AsyncClient:
            client = httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app),
                base_url=hosts.base_url,
                headers={"X-Forwarded-For": address, **(headers or {})},
            )
            stack.push_async_callback(client.aclose)
            return client

        for username in ("ada", "bob"):
            await known.sign_up(username)
        yield Platform(known, hosts, stranger)
