"""`torpor shell`: a terminal in a workspace, and the own terminal restored. A real pty, the real command, the real API."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.test_shell import WARNED, running
from tests.cli.real import at_a_port
from tests.support.live_api import PATIENCE_S, TERM, LiveApi, live_api
from tests.support.terminal_user import TerminalUser
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


@pytest.fixture
async def url(here: LiveApi) -> AsyncIterator[str]:
    async with at_a_port(here.path) as address:
        yield address


def environment(here: LiveApi, url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
    return {**kept, "TORPOR_URL": url, "TORPOR_TOKEN": here.people["ada"].token}


async def test_shell_uses_the_local_terminal(here: LiveApi, url: str) -> None:
    await running(here)
    async with TerminalUser(environment(here, url), "shell", "nb") as seat:
        await seat.until(b"$ ")
        assert seat.is_raw
        seat.type(b"stty size\r")
        await seat.until(b"31 97")
        seat.resize(columns=120, rows=40)

        def has_resized() -> bool:
            seat.type(b"stty size\r")
            return b"40 120" in seat.shown

        await until(has_resized, within_s=PATIENCE_S, every_s=0.05)
        seat.type(b"echo and then\r")
        await seat.until(b"\r\nand then")
        # Ctrl-C goes to the program in the workspace, and does not end the command.
        seat.type(b"yes\r")
        await seat.until(b"y\r\ny\r\n")
        seat.type(b"\x03")
        await seat.until(b"$ ")
        seat.type(b"exit 7\r")
        assert await seat.ended() == 7
        assert seat.is_as_before


async def test_a_warning_is_a_separate_line(here: LiveApi, url: str) -> None:
    workspace_id = await running(here)
    async with TerminalUser(environment(here, url), "shell", "nb") as seat:
        await seat.until(b"$ ")
        await here.db.fetchval(WARNED, uuid.UUID(workspace_id), 100)
        await here.publisher.do(TERM)
        await seat.until(b"\r\n[torpor] nb goes to sleep at ")
        await seat.until(b"because it is not in use; type to keep it awake\r\n")
        seat.type(b"exit 7\r")
        assert await seat.ended() == 7


async def test_a_tilde_and_a_dot_end_the_shell(here: LiveApi, url: str) -> None:
    await running(here)
    async with TerminalUser(environment(here, url), "shell", "nb") as seat:
        await seat.until(b"$ ")
        seat.type(b"echo a~.b\r")
        await seat.until(b"a~.b\r\n")
        await seat.until(b"a~.b")
        seat.type(b"~.")
        assert await seat.ended() == 130
        await seat.until(b"left nb")
        assert seat.is_as_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_restores_the_terminal(here: LiveApi, url: str, number: int) -> None:
    await running(here)
    async with TerminalUser(environment(here, url), "shell", "nb") as seat:
        await seat.until(b"$ ")
        assert seat.is_raw
        seat.process.send_signal(number)
        assert await seat.ended() == 128 + number
        assert seat.is_as_before


async def test_a_revoked_token_ends_the_shell_with_a_message_and_restores_the_terminal(here: LiveApi, url: str) -> None:
    await running(here)
    ada = here.people["ada"]
    [token] = await here.accounts.tokens(ada.caller)
    async with TerminalUser(environment(here, url), "shell", "nb") as seat:
        await seat.until(b"$ ")
        await here.accounts.revoke(ada.caller, token.id)
        assert await seat.ended() == 6
        await seat.until(b"the terminal in nb was closed: you are no longer signed in")
        assert seat.is_as_before


async def test_a_lost_server_restores_the_terminal(here: LiveApi) -> None:
    await running(here)
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(at_a_port(here.path))
        async with TerminalUser(environment(here, url), "shell", "nb") as seat:
            await seat.until(b"$ ")
            await stack.aclose()
            assert await seat.ended() == 6
            await seat.until(b"the terminal in nb was closed")
            assert seat.is_as_before


async def test_the_shell_continues_after_sigstop_and_sigcont(here: LiveApi, url: str) -> None:
    await running(here)
    async with TerminalUser(environment(here, url), "shell", "nb") as seat:
        await seat.until(b"$ ")
        seat.process.send_signal(signal.SIGSTOP)
        # As the shell does that stopped the command.
        termios.tcsetattr(seat.theirs, termios.TCSANOW, seat.before)
        seat.process.send_signal(signal.SIGCONT)
        await until(lambda: seat.is_raw, within_s=PATIENCE_S)
        seat.type(b"exit\r")
        assert await seat.ended() == 0


@pytest.mark.parametrize(
    ("said", "code"), [(b"echo one\necho two\nexit 3", 3), (b"echo one\necho two\n", 0), (b"echo one\necho two", 0)]
)
async def test_piped_input_is_typed_and_its_end_ends_the_shell(
    here: LiveApi, url: str, said: bytes, code: int, tmp_path: Path
) -> None:
    await running(here)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torpor", "shell", "nb"),
        env=environment(here, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate(said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err) == (code, b"")
    assert out.index(b"\none") < out.index(b"\ntwo")


async def test_a_workspace_that_is_not_running_gives_the_start_command(here: LiveApi, url: str) -> None:
    await here.create("asleep")
    async with TerminalUser(environment(here, url), "shell", "asleep", "--no-wake") as seat:
        assert await seat.ended() == 1
        await seat.until(b"`torpor start asleep --wait` starts it")
        assert seat.is_as_before
