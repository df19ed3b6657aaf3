"""Terminals over WebSockets: input, output, refusals, and the end when a right ends. Over a real server and real sockets."""

import asyncio
import contextlib
import json
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Data

from tests.api.unasked import NO_COLLECTING, NO_USAGE
from tests.contracts.runtime_contract import FENCE, LIMITS, program, ready_volume, unheard
from tests.contracts.test_runtime_contract import on_this_machine
from tests.support.live_api import HOSTS, PATIENCE_S, TERM, LiveApi, live_api, serving
from tests.support.waiting import until
from torpor.accounts import AuthMethod, UserChange
from torpor.api.app import Health, make_app
from torpor.api.events import EventSources
from torpor.archives.reader import ArchiveReader
from torpor.domain.access import EVERY_SCOPE, Scope, Share
from torpor.ports import Container, Home, Runtime, Shell
from torpor.runtimes.local_access import LocalAccess
from torpor.testing.defaults import process_options
from torpor.testing.fake_runtime import FakeContainer, FakeRuntime

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


async def running(here: LiveApi, name: str = "nb", *, workspace_id: str | None = None) -> str:
    """A workspace of the user ada with a container."""
    made = await here.create(name)
    is_there = "phase = 'RUNNING', desired_state = 'RUNNING', volume_present = true, container_present = true"
    wanted = workspace_id or made
    await here.db.execute(f"UPDATE workspaces SET id = $2, {is_there} WHERE id = $1", uuid.UUID(made), uuid.UUID(wanted))
    here.world.containers[wanted] = FakeContainer(Container(Home(wanted, 1), 1, program("serve"), LIMITS), 1)
    return wanted


def knock(
    here: LiveApi, target: str, *, by: str | None = "ada", path: Path | None = None, **how: Any
) -> contextlib.AbstractAsyncContextManager[ClientConnection]:
    headers = how.pop("headers", {"Authorization": f"Bearer {here.people[by].token}"} if by else {})
    uri = f"ws://localhost:8080/api/v1/workspaces/{target}"
    return unix_connect(str(path or here.path), uri, additional_headers=headers, compression=None, **how)


async def until_shown(terminal: ClientConnection, wanted: bytes) -> bytes:
    shown = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in shown:
            said = await terminal.recv()
            assert isinstance(said, bytes), said
            shown += said
    return shown


async def until_closed(terminal: ClientConnection) -> tuple[list[Data], int, str]:
    """The rest of the output, and the close frame."""
    said = []
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                said.append(await terminal.recv())
    assert terminal.close_code is not None
    return said, terminal.close_code, terminal.close_reason or ""


async def refusal(knocking: contextlib.AbstractAsyncContextManager[ClientConnection]) -> tuple[int, str]:
    """The answer in place of the upgrade."""
    with pytest.raises(InvalidStatus) as refused:
        async with knocking:
            pass
    response = refused.value.response
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.headers["cache-control"], response.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert response.body is not None
    problem = json.loads(response.body)
    assert problem["status"] == response.status_code
    return response.status_code, problem["code"]


# ── input and output ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_input_is_echoed_and_the_exit_code_is_sent(here: LiveApi) -> None:
    await running(here)
    async with knock(here, "nb/shell?columns=97&rows=31") as terminal:
        await terminal.send(b"stty size\r")
        assert b"stty size" in await until_shown(terminal, b"31 97")
        await terminal.send('{"resize": [120, 40]}')
        await terminal.send(b"stty size\r")
        await until_shown(terminal, b"40 120")
        await terminal.send(b"exit 7\r")
        said, code, _ = await until_closed(terminal)
    assert said[-1] == '{"exit": 7}'
    assert code == 1000


@contextlib.asynccontextmanager
async def elsewhere(here: LiveApi, runtime: Runtime) -> AsyncIterator[Path]:
    """The same users and workspaces, with another runtime."""

    async def nothing() -> dict[str, Any]:
        return {}

    app = make_app(
        here.wishes,
        here.accounts,
        LocalAccess(runtime),
        Health(nothing, nothing),
        hosts=HOSTS,
        events=EventSources(here.events_store, here.feed, 30),
        gc=NO_COLLECTING,
        usage=NO_USAGE,
        reading=ArchiveReader("file:///nowhere"),
    )
    with tempfile.TemporaryDirectory(prefix="torpor-") as folder:
        path = Path(folder) / "api.sock"
        async with serving(app, path):
            yield path


async def test_a_shell_has_a_real_terminal(here: LiveApi) -> None:
    async for machine in on_this_machine(process_options(grace_s=2.0)):
        home = await ready_volume(machine)
        await machine.runtime.ensure_running(machine.silent(home), FENCE, unheard)
        await running(here, workspace_id=home.workspace_id)
        async with (
            elsewhere(here, machine.runtime) as path,
            knock(here, "nb/shell?columns=97&rows=31", path=path) as terminal,
        ):
            await terminal.send(b"stty size; test -t 0 && echo $TERM | tr a-z A-Z\r")
            assert b"31 97" in await until_shown(terminal, b"XTERM-256COLOR")
            await terminal.send('{"resize": [33, 11]}')
            await terminal.send(b"stty size\r")
            await until_shown(terminal, b"11 33")
            await terminal.send(b"seq 200000; exit 5\r")
            said, code, _ = await until_closed(terminal)
    shown = b"".join(one for one in said if isinstance(one, bytes))
    assert b"199999\r\n200000\r\n" in shown
    assert (said[-1], code) == ('{"exit": 5}', 1000)


async def test_typing_counts_as_use_and_an_open_shell_does_not(here: LiveApi) -> None:
    touched: list[str] = []
    here.wishes.using.touch = lambda workspace_id, _idle_s: touched.append(workspace_id)
    workspace_id = await running(here)
    async with knock(here, "nb/shell") as terminal:
        await terminal.send('{"resize": [120, 40]}')
        await (await terminal.ping())
        await until_shown(terminal, b"$ ")
        assert touched == []
        await terminal.send(b"x")
        await until_shown(terminal, b"x")
        assert touched == [workspace_id]


WARNED = """
UPDATE workspaces SET sleeps_at = now() + make_interval(secs => $2),
    last_access_at = '-infinity', phase_changed_at = '-infinity', wished_at = '-infinity'
WHERE id = $1 RETURNING sleeps_at
"""


async def test_a_warning_is_sent_to_open_shells_and_is_not_use(here: LiveApi) -> None:
    touched: list[str] = []
    here.wishes.using.touch = lambda workspace_id, _idle_s: touched.append(workspace_id)
    workspace_id = await running(here)
    async with knock(here, "nb/shell") as terminal, knock(here, "nb/shell") as other:
        for one in (terminal, other):
            await until_shown(one, b"$ ")
        sleeps_at = await here.db.fetchval(WARNED, uuid.UUID(workspace_id), 100)
        await here.publisher.do(TERM)
        async with asyncio.timeout(PATIENCE_S):
            for one in (terminal, other):
                assert json.loads(await one.recv()) == {"sleeping_soon": sleeps_at.isoformat()}
        # A change by a moment is not reported again; a change by a minute is.
        await here.db.fetchval(WARNED, uuid.UUID(workspace_id), 101)
        later = await here.db.fetchval(WARNED, uuid.UUID(workspace_id), 160)
        await here.publisher.do(TERM)
        async with asyncio.timeout(PATIENCE_S):
            assert json.loads(await terminal.recv()) == {"sleeping_soon": later.isoformat()}
        assert touched == []
    async with knock(here, "nb/shell") as late:
        async with asyncio.timeout(PATIENCE_S):
            said = [await late.recv(), await late.recv()]
        assert json.dumps({"sleeping_soon": later.isoformat()}) in said, "who comes later is told as well"


async def test_the_user_of_a_shell_is_audited(here: LiveApi) -> None:
    await running(here)
    async with knock(here, "nb/shell"):
        said = await here.db.fetch("SELECT action, username, workspace FROM audit WHERE action = 'workspace.shell'")
    assert [tuple(one) for one in said] == [("workspace.shell", "ada", "nb")]


async def test_an_invalid_message_closes_the_connection(here: LiveApi) -> None:
    await running(here)
    for nonsense in ("{", "[1, 2]", '{"resize": [0, 1]}', '{"resize": "big"}', '{"dance": true}', "[" * 5000):
        async with knock(here, "nb/shell") as terminal:
            await terminal.send(nonsense)
            assert (await until_closed(terminal))[1] == 1008, nonsense


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_refusals_come_before_the_upgrade(here: LiveApi) -> None:
    await here.create("asleep")
    await running(here)
    assert await refusal(knock(here, "asleep/shell")) == (409, "not_running")
    assert await refusal(knock(here, "nobody/shell")) == (404, "not_found")
    assert await refusal(knock(here, "nb/shell", by="bob")) == (404, "not_found")
    assert await refusal(knock(here, "nb/shell", by=None)) == (401, "unauthorized")
    assert await refusal(knock(here, "nb/shell", headers={"Authorization": "Bearer torpor_wrong"})) == (401, "unauthorized")
    for bad in ("columns=0", "rows=2001", "columns=wide"):
        assert await refusal(knock(here, f"nb/shell?{bad}")) == (422, "bad_request")


async def test_a_missing_container_is_reported_as_not_running(here: LiveApi) -> None:
    workspace_id = await running(here)
    del here.world.containers[workspace_id]
    assert await refusal(knock(here, "nb/shell")) == (409, "not_running")


async def test_a_token_needs_the_scope(here: LiveApi) -> None:
    await running(here)
    ada = await here.accounts.recognise(here.people["ada"].token)
    _, reads = await here.accounts.make_token(ada, "reads", {Scope.READ}, None)
    assert await refusal(knock(here, "nb/shell", headers={"Authorization": f"Bearer {reads}"})) == (403, "scope_missing")


async def signed_in(here: LiveApi, name: str) -> str:
    """A session of this user, as the browser's cookie."""
    await here.accounts.change_user(here.people["root"].caller, name, UserChange(password="correct horse"))
    return await here.accounts.sign_in(name, "correct horse")


async def test_a_cookie_needs_the_own_origin(here: LiveApi) -> None:
    await running(here)
    cookie = {"Cookie": f"torpor_session={await signed_in(here, 'ada')}"}
    assert await refusal(knock(here, "nb/shell", headers=cookie)) == (403, "cross_site")
    for origin in ("http://nb.localhost:8080", "http://evil.example", "null"):
        assert await refusal(knock(here, "nb/shell", headers=cookie, origin=origin)) == (403, "cross_site")
    async with knock(here, "nb/shell", headers=cookie, origin="http://localhost:8080") as terminal:
        await until_shown(terminal, b"$ ")


# ── end ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_shell_ends_at_once_when_the_token_is_revoked(here: LiveApi) -> None:
    await running(here)
    ada = await here.accounts.recognise(here.people["ada"].token)
    token, secret = await here.accounts.make_token(ada, "shell", EVERY_SCOPE, None)
    revocable = {"Authorization": f"Bearer {secret}"}
    async with knock(here, "nb/shell", headers=revocable) as terminal, knock(here, "nb/shell") as other:
        await until_shown(terminal, b"$ ")
        await here.accounts.revoke(ada, token.id)
        _, code, reason = await until_closed(terminal)
        assert (code, reason) == (1008, "you are no longer signed in")
        await other.send(b"echo still here\r")
        await until_shown(other, b"still here\r\n$ ")


async def test_a_shell_ends_at_once_when_the_user_signs_out(here: LiveApi) -> None:
    await running(here)
    session = await signed_in(here, "ada")
    cookie = {"Cookie": f"torpor_session={session}"}
    async with knock(here, "nb/shell", headers=cookie, origin="http://localhost:8080") as terminal:
        await until_shown(terminal, b"$ ")
        caller = await here.accounts.recognise(session)
        assert caller.how is AuthMethod.SESSION
        await here.accounts.sign_out(caller)
        assert (await until_closed(terminal))[1] == 1008


async def test_a_shell_ends_at_once_when_the_workspace_is_no_longer_shared(here: LiveApi) -> None:
    await running(here)
    await here.sign_up("eve")
    ada = here.people["ada"].caller
    for guest in ("bob", "eve"):
        await here.wishes.sharing.share(ada, "nb", guest, Share.USE)
    async with knock(here, "nb/shell", by="bob") as terminal, knock(here, "nb/shell", by="eve") as other:
        await until_shown(terminal, b"$ ")
        await here.wishes.sharing.unshare(ada, "nb", "bob")
        await here.publisher.do(TERM)
        _, code, reason = await until_closed(terminal)
        assert (code, reason) == (1008, "you may no longer use 'nb'"), "nobody waited until it is looked at again"
        await other.send(b"echo still here\r")
        await until_shown(other, b"still here\r\n$ ")


async def test_a_shell_ends_when_access_is_lost_during_its_start(here: LiveApi) -> None:
    """The user loses access after the permission check, before there is a terminal that could be ended."""
    await running(here)
    ada = here.people["ada"].caller
    await here.wishes.sharing.share(ada, "nb", "bob", Share.USE)

    class Slow(FakeRuntime):
        async def shell(self, workspace_id: str, *, columns: int, rows: int) -> Shell:
            await here.wishes.sharing.unshare(ada, "nb", "bob")
            await here.publisher.do(TERM)
            await here.until_handed_out()
            return await super().shell(workspace_id, columns=columns, rows=rows)

    async with elsewhere(here, Slow(here.world)) as path, knock(here, "nb/shell", by="bob", path=path) as terminal:
        assert (await until_closed(terminal))[1] == 1008


async def test_a_shell_ends_when_a_recheck_finds_no_access(here: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.accounts.access_watch.RECHECK_S", 0.05)
    await running(here)
    await here.db.execute("UPDATE workspaces SET shares = '{\"bob\": \"use\"}' WHERE name = 'nb'")
    async with knock(here, "nb/shell", by="bob") as terminal:
        await terminal.send(b"echo hello\r")
        await until_shown(terminal, b"hello\r\n$ ")
        await asyncio.sleep(0.2)  # access is checked again and again, and the terminal stays open
        await terminal.send(b"echo again\r")
        await until_shown(terminal, b"again\r\n$ ")
        await here.db.execute("UPDATE workspaces SET shares = '{}' WHERE name = 'nb'")
        _, code, reason = await until_closed(terminal)
    assert (code, reason) == (1008, "you may no longer use 'nb'")


async def test_a_shell_ends_with_its_container(here: LiveApi) -> None:
    workspace_id = await running(here)
    async with knock(here, "nb/shell") as terminal:
        await until_shown(terminal, b"$ ")
        del here.world.containers[workspace_id]
        said, code, _ = await until_closed(terminal)
    assert (said, code) == ([], 1001)


async def test_a_disconnect_ends_the_shell(here: LiveApi) -> None:
    """The shell ends, however the client disconnects."""
    workspace_id = await running(here)
    held = here.world.containers[workspace_id]
    for politely in (True, False):
        async with knock(here, "nb/shell") as terminal:
            await terminal.send(b"yes\r")
            await until_shown(terminal, b"y\r\n" * 1000)
            assert conversations() == 5
            if not politely:
                terminal.transport.abort()
        await until(lambda: not conversations())
    assert here.world.containers[workspace_id] is held


def conversations() -> int:
    """The number of tasks of terminals."""
    return sum("Conversation" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_slow_reader_uses_bounded_memory(here: LiveApi) -> None:
    await running(here)
    slow = socket.socket(socket.AF_UNIX)
    slow.setblocking(False)
    slow.connect(str(here.path))
    token = here.people["ada"].token
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}"
    loop = asyncio.get_running_loop()
    with slow:
        await loop.sock_sendall(slow, f"GET /api/v1/workspaces/nb/shell HTTP/1.1\r\n{head}\r\n".encode())
        assert b" 101 " in await loop.sock_recv(slow, 20)
        typed = b"yes\r"  # masked with zeros
        await loop.sock_sendall(slow, bytes((0x82, 0x80 | len(typed), 0, 0, 0, 0)) + typed)
        await asyncio.sleep(0.3)
        before = resident_bytes()
        # Without flow control this would be hundreds of megabytes.
        await asyncio.sleep(1.5)
        assert resident_bytes() - before < 8 << 20
        read = 0
        async with asyncio.timeout(PATIENCE_S):
            while read < 32 << 20:
                data = await loop.sock_recv(slow, 1 << 20)
                assert data
                read += len(data)
        assert resident_bytes() - before < 16 << 20


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) << 10
