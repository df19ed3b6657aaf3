"""Sockets survive the restart of all processes but their proxy, and only real use keeps a workspace awake."""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.cluster import Cluster, Node, ask, cluster
from tests.support.http_browser import BrowserResponse, HttpBrowser
from tests.support.product import free_port
from tests.support.waiting import until
from torpor.accounts import AuthMethod, new_token
from torpor.store.database import Database, Role
from torpor.store.user_store import NewCredential, UserStore

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.anyio]

STANDBY_TTL_S = 3
GOING_AWAY, NOT_ALLOWED = 1001, 1008


@dataclass
class Installation:
    """One process of each role; clients connect to the proxy."""

    cluster: Cluster
    settings: dict[str, str]
    api: Node
    controller: Node
    proxy: Node

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Through the proxy."""
        status, said = await asyncio.to_thread(ask, self.proxy.port, method, f"/api/v1{path}", body, self.cluster.token)
        assert status < 400, (status, said)
        return said

    async def phase(self, name: str) -> str:
        said: str = (await self.call("GET", f"/workspaces/{name}"))["phase"]
        return said

    async def until(self, name: str, phase: str) -> None:
        async def is_there() -> bool:
            return await self.phase(name) == phase

        await until(is_there, within_s=40, every_s=0.1)

    async def running(self, name: str, **more: object) -> None:
        await self.call("POST", "/workspaces", {"name": name, **more})
        await self.until(name, "RUNNING")

    async def socket(self, name: str, **headers: str) -> ClientConnection:
        port = self.proxy.port
        return await connect(
            f"ws://{name}.localhost:{port}/", host="127.0.0.1", port=port, ping_interval=None, additional_headers=headers
        )

    async def browser(self) -> HttpBrowser:
        """A browser that is signed in on the platform."""
        token = new_token()
        database = await Database.open(self.cluster.postgres.dsn, Role.SERVICE)
        try:
            admin = await UserStore(database).by_name("admin")
            assert admin is not None
            digest = hashlib.sha256(token.encode()).digest()
            async with UserStore(database).writing() as writing:
                await writing.create_credential(
                    NewCredential(admin.user.id, AuthMethod.SESSION, "session", digest, lives_s=3600)
                )
        finally:
            await database.close()
        return HttpBrowser(self.proxy.port, {"localhost": {"torpor_session": token}})


@contextlib.asynccontextmanager
async def installed(folder: Path, **settings: str) -> AsyncIterator[Installation]:
    async with cluster(folder) as here:
        port, api = free_port(), free_port()
        common = {"public_url": f"http://localhost:{port}", "ttl_interval": "0.5", "connection_lease": "3", **settings}
        nodes = await asyncio.gather(
            here.serve("api", **common, port=str(api)),
            here.serve("controller", **common),
            here.serve("proxy", **common, port=str(port), api_url=f"http://127.0.0.1:{api}"),
        )
        yield Installation(here, common, *nodes)


async def echoes(connection: ClientConnection) -> None:
    said = secrets.token_hex(4)
    async with asyncio.timeout(10):
        await connection.send(said)
        assert await connection.recv() == said


async def echoes_on(connection: ClientConnection, *, within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while True:
            await echoes(connection)
            await asyncio.sleep(0.1)


async def test_a_websocket_survives_api_and_controller_and_ends_with_its_credential(tmp_path: Path) -> None:
    async with installed(tmp_path, drain_grace="2") as here:
        await here.running("ada")
        token = here.cluster.token
        by_token = await here.socket("ada", Authorization=f"Bearer {token}")
        browser = await here.browser()
        page = f"http://ada.localhost:{here.proxy.port}/"
        assert (await asyncio.to_thread(browser.go, page)).status == 200
        door = browser.cookie("ada.localhost")
        by_door = await here.socket("ada", Cookie=door, Origin=page.rstrip("/"))
        await asyncio.gather(echoes(by_token), echoes(by_door))

        await asyncio.gather(here.api.kill(), here.controller.kill())
        await asyncio.gather(echoes(by_token), echoes(by_door))
        # Known callers still have access while the platform is down.
        assert (await asyncio.to_thread(browser.fetch, page)).status == 200
        assert (await asyncio.to_thread(ask, here.proxy.port, "GET", "/health"))[0] == 200
        with pytest.raises(ValueError, match="Expecting value"):
            await asyncio.to_thread(ask, here.proxy.port, "GET", "/api/v1/me", None, token)
        await asyncio.gather(
            here.cluster.serve("api", **here.settings, port=str(here.api.port)),
            here.cluster.serve("controller", **here.settings),
        )
        await asyncio.gather(echoes(by_token), echoes(by_door))
        assert (await here.call("GET", "/me"))["username"] == "admin"

        # The sign-out goes to another process than the one that holds the socket.
        origin = f"http://localhost:{here.proxy.port}"
        out = await asyncio.to_thread(lambda: browser.fetch(f"{origin}/api/v1/logout", "POST", Origin=origin))
        assert out.status == 204
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(5):
                await by_door.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == NOT_ALLOWED
        await echoes(by_token)
        assert (await asyncio.to_thread(browser.fetch, page)).status == 401

        # The proxy stops: no new connections; open ones have the grace period and get a close frame.
        here.proxy.process.terminate()
        await refuses_newcomers(here)
        await echoes(by_token)
        with pytest.raises(ConnectionClosed) as closed:
            await echoes_on(by_token)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == GOING_AWAY
        assert await here.proxy._ended() == 0, here.proxy.said()


async def refuses_newcomers(here: Installation) -> None:
    async def are_refused() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", here.proxy.port)
        except ConnectionError:  # refused, or reset in the closed accept queue
            return True
        writer.close()
        return False

    await until(are_refused)


@pytest.mark.long
async def test_pings_and_reconnects_are_not_use_and_typing_is(tmp_path: Path) -> None:
    async with installed(tmp_path) as here:
        await asyncio.gather(*(here.running(name, standby_ttl=STANDBY_TTL_S) for name in ("typed", "pinged")))
        browser = await here.browser()
        pages = {name: f"http://{name}.localhost:{here.proxy.port}/" for name in ("typed", "pinged")}
        for page in pages.values():
            await go(browser, page)

        async def tab(name: str) -> ClientConnection:
            return await here.socket(name, Cookie=browser.cookie(f"{name}.localhost"), Origin=pages[name].rstrip("/"))

        typed, pinged = await tab("typed"), await tab("pinged")
        refused: list[int] = []

        async def type_on() -> None:
            while True:
                await echoes(typed)
                await asyncio.sleep(0.5)

        async def ping_on() -> None:
            """As a forgotten tab: it pings, and reconnects when it is cut off."""
            connection = pinged
            while True:
                try:
                    await (await connection.ping())
                except ConnectionClosed:
                    try:
                        connection = await tab("pinged")
                    except InvalidStatus as answered:
                        refused.append(answered.response.status_code)
                await asyncio.sleep(0.1)

        people = [asyncio.create_task(type_on()), asyncio.create_task(ping_on())]
        try:
            await here.until("pinged", "STANDBY")
            quiet_until = time.monotonic() + 2 * STANDBY_TTL_S
            while time.monotonic() < quiet_until:
                assert [await here.phase(name) for name in ("typed", "pinged")] == ["RUNNING", "STANDBY"]
                assert (await asyncio.to_thread(browser.fetch, pages["pinged"])).status == 503
                await asyncio.sleep(0.3)
            assert set(refused) == {503}
            assert len(refused) > 10
            assert not any(one.done() for one in people)

            woken = await go(browser, pages["pinged"])
            assert woken.status in (200, 503)
            await here.until("pinged", "RUNNING")
        finally:
            for one in people:
                one.cancel()
            await asyncio.gather(*people, return_exceptions=True)
            await asyncio.gather(typed.close(), pinged.close())


async def go(browser: HttpBrowser, page: str) -> BrowserResponse:
    return await asyncio.to_thread(browser.go, page)
