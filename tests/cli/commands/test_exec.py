"""`torpor exec` with the real API, and with a real machine where that matters."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.api.test_exec import falls_asleep, on_a_machine, wakes_up
from tests.api.test_shell import elsewhere, running
from tests.cli.commands.test_shell import environment
from tests.cli.real import at_a_port
from tests.support.live_api import PATIENCE_S, LiveApi, live_api
from tests.support.terminal_user import TerminalUser

pytestmark = pytest.mark.anyio

PIPE = subprocess.PIPE


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


@pytest.fixture
async def url(here: LiveApi) -> AsyncIterator[str]:
    async with at_a_port(here.path) as address:
        yield address


@contextlib.asynccontextmanager
async def started(here: LiveApi, url: str, *words: str) -> AsyncIterator["asyncio.subprocess.Process"]:
    argv = (sys.executable, "-m", "torpor", "exec", *words)
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(here, url))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def ended(here: LiveApi, url: str, *words: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
    async with started(here, url, *words) as process, asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate(stdin)
    return process.returncode, out, err


async def line_of(process: "asyncio.subprocess.Process") -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return await process.stdout.readline()


async def test_exec_passes_bytes_and_the_exit_code(here: LiveApi) -> None:
    async with (
        on_a_machine(here) as machine,
        elsewhere(here, machine.runtime) as path,
        at_a_port(path) as url,
    ):
        script = "cat; printf 'err\\376' >&2; exit 42"
        assert await ended(here, url, "nb", "--", "sh", "-c", script, stdin=b"in\xff\0\r\n") == (
            42,
            b"in\xff\0\r\n",
            b"err\xfe",
        )
        assert await ended(here, url, "nb", "-n", "--", "cat", "--", "-", stdin=b"in") == (0, b"", b"")
        code, out, err = await ended(here, url, "nb", "--", "no-such-program", "--wait")
        assert (code, out) == (127, b"")
        assert b"no-such-program" in err
        code, out, _ = await ended(here, url, "nb", "--json", "--", "sh", "-c", "echo hi; echo ho >&2; exit 3")
        assert (code, json.loads(out)) == (3, {"exit_code": 3, "stdout": "aGkK", "stderr": "aG8K"})


async def test_ctrl_c_is_passed_on(here: LiveApi, url: str) -> None:
    await running(here)
    async with started(here, url, "nb", "--", "cat") as process:
        assert process.stdin is not None
        process.stdin.write(b"begun\n")
        assert await line_of(process) == b"begun\n"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 130


async def test_a_closed_output_ends_exec(here: LiveApi, url: str) -> None:
    await running(here)
    async with started(here, url, "nb", "--", "yes") as process:
        assert await line_of(process) == b"y\n"
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 128 + signal.SIGPIPE


async def test_exec_wakes_the_workspace_unless_no_wake_is_given(here: LiveApi, url: str) -> None:
    await falls_asleep(here)
    code, _, err = await ended(here, url, "nb", "--no-wake", "--", "echo")
    assert (code, b"`torpor start nb --wait` starts it" in err) == (1, True)
    async with started(here, url, "nb", "--", "echo", "awake") as process:
        await wakes_up(here)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
    assert (process.returncode, out) == (0, b"awake\n")
    assert b"torpor: waking nb" in err


async def test_the_end_of_the_container_is_reported(here: LiveApi, url: str) -> None:
    workspace_id = await running(here)
    async with started(here, url, "nb", "--", "yes") as process:
        assert await line_of(process) == b"y\n"
        del here.world.containers[workspace_id]
        async with asyncio.timeout(PATIENCE_S):
            _, err = await process.communicate()
    assert process.returncode == 6
    assert b"the command in nb was interrupted: the command ended because the workspace's container ended" in err


async def test_exec_with_tty_uses_the_local_terminal(here: LiveApi) -> None:
    async with on_a_machine(here) as machine, elsewhere(here, machine.runtime) as path, at_a_port(path) as url:
        script = "stty size; trap 'stty size' WINCH; trap 'exit 5' INT; echo be''gun; while :; do sleep 0.05; done"
        async with TerminalUser(environment(here, url), "exec", "nb", "--tty", "--", "sh", "-c", script) as seat:
            await seat.until(b"31 97")
            await seat.until(b"begun")
            assert seat.is_raw
            seat.resize(columns=120, rows=40)
            await seat.until(b"40 120")
            seat.type(b"\x03")
            assert await seat.ended() == 5
            assert seat.is_as_before
