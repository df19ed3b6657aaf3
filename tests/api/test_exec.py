"""`GET /workspaces/{id}/exec`: a command as a stream, over a real server and real sockets."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import pytest
from websockets.asyncio.client import ClientConnection

from tests.api.test_shell import elsewhere, knock, refusal, resident_bytes, running, until_closed
from tests.contracts.runtime_contract import FENCE, ready_volume, unheard
from tests.contracts.test_runtime_contract import OnThisMachine, on_this_machine
from tests.support.live_api import PATIENCE_S, TERM, LiveApi, live_api
from tests.support.waiting import until
from torpor.api.exec_stream import WINDOW
from torpor.domain.access import EVERY_SCOPE, Scope, Share
from torpor.ports import ExecResult, RunningCommand, TerminalSize
from torpor.testing.defaults import process_options
from torpor.testing.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio

RUNS = "phase = 'RUNNING', volume_present = true, container_present = true"
MIB = 1 << 20


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        yield made


@contextlib.asynccontextmanager
async def on_a_machine(here: LiveApi) -> AsyncIterator[OnThisMachine]:
    """A workspace `nb` of the user ada with a real container."""
    async for machine in on_this_machine(process_options(grace_s=2.0)):
        home = await ready_volume(machine)
        await machine.runtime.ensure_running(machine.silent(home), FENCE, unheard)
        await running(here, workspace_id=home.workspace_id)
        yield machine


async def start(line: ClientConnection, *command: str, **more: object) -> None:
    await line.send(json.dumps({"command": command, **more}))


async def until_ended(line: ClientConnection) -> tuple[bytes, bytes, int | None, int]:
    """Standard output, standard error, the exit code, and how it was closed."""
    written = {1: b"", 2: b""}
    exit_code = None
    said, code, _ = await until_closed(line)
    for one in said:
        if isinstance(one, bytes):
            written[one[0]] += one[1:]
        else:
            exit_code = json.loads(one).get("exit", exit_code)
    return written[1], written[2], exit_code, code


async def until_output(line: ClientConnection, wanted: bytes) -> None:
    written = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in written:
            said = await line.recv()
            written += said[1:] if isinstance(said, bytes) else b""


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_output_streams_are_separate_and_the_exit_code_comes_last(here: LiveApi) -> None:
    async with on_a_machine(here) as machine, elsewhere(here, machine.runtime) as path:
        async with knock(here, "nb/exec", path=path) as line:
            await start(line, "sh", "-c", "cat; echo err >&2; exit 7")
            await line.send(b"\0in\xff")
            await line.send(b"\0")
            assert await until_ended(line) == (b"in\xff", b"err\n", 7, 1000)
        async with knock(here, "nb/exec", path=path) as line:
            await start(line, "no-such-program")
            stdout, stderr, code, _ = await until_ended(line)
        assert (stdout, code) == (b"", 127)
        assert b"no-such-program" in stderr


async def test_a_command_may_have_a_terminal(here: LiveApi) -> None:
    await running(here)
    async with knock(here, "nb/exec") as line:
        await start(line, "sleep", terminal=[97, 31])
        await until_output(line, b"31 97")
        await line.send('{"resize": [120, 40]}')
        await until_output(line, b"40 120")
        await line.send('{"signal": "TERM"}')
        assert (await until_ended(line))[2] == 143


async def test_unread_input_does_not_delay_a_signal(here: LiveApi) -> None:
    await running(here)
    async with knock(here, "nb/exec") as line:
        await start(line, "sleep")
        await line.send(b"\0" + bytes(WINDOW))
        await line.send('{"signal": "INT"}')
        assert (await until_ended(line))[2:] == (130, 1000)
    async with knock(here, "nb/exec") as line:
        await start(line, "sleep")
        await line.send(b"\0" + bytes(WINDOW + 1))
        assert (await until_ended(line))[2:] == (None, 1009)


async def test_input_is_acknowledged_when_it_was_read(here: LiveApi) -> None:
    await running(here)
    async with knock(here, "nb/exec") as line:
        await start(line, "cat")
        for _ in range(8):
            await line.send(b"\0" + bytes(WINDOW))
            taken = 0
            async with asyncio.timeout(PATIENCE_S):
                while taken < WINDOW:
                    said = await line.recv()
                    taken += json.loads(said)["taken"] if isinstance(said, str) else 0
        await line.send(b"\0")
        assert (await until_ended(line))[2] == 0


async def test_an_invalid_message_closes_the_connection(here: LiveApi) -> None:
    await running(here)
    for nonsense in ("{", "[1]", '{"command": []}', '{"command": ["a\\u0000"]}', '{"command": "ls"}', b"\0x", "[" * 5000):
        async with knock(here, "nb/exec") as line:
            await line.send(nonsense)
            assert (await until_closed(line))[1] == 1008, nonsense[:40]
    for nonsense in ('{"command": ["true"]}', '{"signal": "DANCE"}', '{"resize": [0, 1]}', b"\1x", "null"):
        async with knock(here, "nb/exec") as line:
            await start(line, "sleep")
            await line.send(nonsense)
            assert (await until_closed(line))[1] == 1008, nonsense[:40]


async def test_a_client_that_names_no_command_is_not_waited_for(here: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.api.exec_stream.START_WITHIN_S", 0.05)
    await running(here)
    async with knock(here, "nb/exec") as line:
        assert (await until_closed(line))[1] == 1008


# ── access ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_refusals_come_before_the_upgrade(here: LiveApi) -> None:
    await here.create("asleep")
    await running(here)
    assert await refusal(knock(here, "asleep/exec")) == (409, "not_running")
    assert await refusal(knock(here, "nb/exec", by="bob")) == (404, "not_found")
    assert await refusal(knock(here, "nb/exec?wake=true", by="bob")) == (404, "not_found")
    assert await refusal(knock(here, "nb/exec", by=None)) == (401, "unauthorized")
    assert await refusal(knock(here, "nb/exec?wake=maybe")) == (422, "bad_request")
    ada = await here.accounts.recognise(here.people["ada"].token)
    _, reads = await here.accounts.make_token(ada, "reads", {Scope.READ}, None)
    assert await refusal(knock(here, "nb/exec", headers={"Authorization": f"Bearer {reads}"})) == (403, "scope_missing")


async def test_user_and_program_are_audited(here: LiveApi) -> None:
    await running(here)
    async with knock(here, "nb/exec") as line:
        await start(line, "echo", "--password=hunter2")
        await until_ended(line)
    said = await here.db.fetch("SELECT username, workspace, detail::text FROM audit WHERE action = 'workspace.exec'")
    assert [tuple(one) for one in said] == [("ada", "nb", '{"program": "echo"}')]


async def test_a_running_command_keeps_awake(here: LiveApi) -> None:
    touched: list[str] = []
    here.wishes.using.touch = lambda workspace_id, _idle_s: touched.append(workspace_id)
    workspace_id = await running(here)
    await here.db.execute("UPDATE workspaces SET standby_ttl_s = 1 WHERE name = 'nb'")
    async with knock(here, "nb/exec") as line:
        await start(line, "sleep")
        await until(lambda: len(touched) >= 3)
    assert set(touched) == {workspace_id}


async def test_a_command_ends_at_once_when_the_token_is_revoked(here: LiveApi) -> None:
    await running(here)
    ada = await here.accounts.recognise(here.people["ada"].token)
    token, secret = await here.accounts.make_token(ada, "exec", EVERY_SCOPE, None)
    async with knock(here, "nb/exec", headers={"Authorization": f"Bearer {secret}"}) as line:
        await start(line, "yes")
        await until_output(line, b"y\n")
        await here.accounts.revoke(ada, token.id)
        assert (await until_closed(line))[1:] == (1008, "you are no longer signed in")


async def test_a_command_ends_at_once_when_the_workspace_is_no_longer_shared(here: LiveApi) -> None:
    await running(here)
    ada = here.people["ada"].caller
    await here.wishes.sharing.share(ada, "nb", "bob", Share.USE)
    async with knock(here, "nb/exec", by="bob") as line:
        await start(line, "yes")
        await until_output(line, b"y\n")
        await here.wishes.sharing.unshare(ada, "nb", "bob")
        await here.publisher.do(TERM)
        assert (await until_closed(line))[1:] == (1008, "you may no longer use 'nb'")


async def test_a_command_ends_with_its_container(here: LiveApi) -> None:
    workspace_id = await running(here)
    async with knock(here, "nb/exec") as line:
        await start(line, "cat")
        await line.send(b"\0x")
        await until_output(line, b"x")
        del here.world.containers[workspace_id]
        assert (await until_ended(line))[2:] == (None, 1001)


async def test_a_disconnect_ends_the_command(here: LiveApi) -> None:
    async with on_a_machine(here) as machine, elsewhere(here, machine.runtime) as path:
        for number in (1, 2):
            async with knock(here, "nb/exec", path=path) as line:
                await start(line, "sh", "-c", f"echo $$ > pid{number}; echo begun; exec sleep 1000")
                await until_output(line, b"begun")
                if number == 2:
                    line.transport.abort()
            workspace_id = next(iter(machine.process._containers))
            gone = ["sh", "-c", f"while kill -0 $(cat pid{number}) 2> /dev/null; do sleep 0.01; done"]
            await asyncio.wait_for(machine.runtime.execute(workspace_id, gone, b""), PATIENCE_S)


# ── wake ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def falls_asleep(here: LiveApi, name: str = "nb") -> str:
    workspace_id = await running(here, name)
    asleep = "phase = 'STANDBY', desired_state = 'STANDBY', container_present = false"
    await here.db.execute(f"UPDATE workspaces SET {asleep} WHERE name = $1", name)
    return workspace_id


async def wakes_up(here: LiveApi, name: str = "nb") -> None:
    """As the controller does after the request."""
    await until(lambda: here.db.fetchval("SELECT desired_state = 'RUNNING' FROM workspaces WHERE name = $1", name))
    await here.db.execute(f"UPDATE workspaces SET {RUNS} WHERE name = $1", name)


async def test_exec_wakes_the_workspace_if_requested(here: LiveApi) -> None:
    await falls_asleep(here)
    async with knock(here, "nb/exec?wake=true") as line:
        await start(line, "cat")
        await line.send(b"\0early")
        await line.send(b"\0")
        told = json.loads(await line.recv())
        assert told == {"phase": "STANDBY", "operation": "NONE", "progress": None}
        await wakes_up(here)
        assert await until_ended(line) == (b"early", b"", 0, 1000)
    async with knock(here, "nb/exec?wake=true") as line:
        await start(line, "echo", "already awake")
        assert (await until_ended(line))[0] == b"already awake\n"


async def test_a_shell_wakes_too(here: LiveApi) -> None:
    await falls_asleep(here)
    async with knock(here, "nb/shell?wake=true") as terminal:
        await terminal.send(b"exit 7\r")
        await wakes_up(here)
        said, code, _ = await until_closed(terminal)
    assert (said[-1], code) == ('{"exit": 7}', 1000)


@pytest.mark.parametrize("what", ["exec", "shell"])
async def test_a_wake_is_refused_above_the_limit(here: LiveApi, what: str) -> None:
    await falls_asleep(here)
    for number in range(9):
        await running(here, f"busy{number}")
    assert await refusal(knock(here, f"nb/{what}?wake=true")) == (429, "limit_reached")
    assert await here.db.fetchval("SELECT desired_state FROM workspaces WHERE name = 'nb'") == "STANDBY"


@pytest.mark.parametrize("what", ["exec", "shell"])
async def test_a_stop_during_a_wake_ends_the_wait(here: LiveApi, what: str) -> None:
    await falls_asleep(here)
    async with knock(here, f"nb/{what}?wake=true") as line:
        await start(line, "echo")
        await line.recv()
        await here.db.execute("UPDATE workspaces SET desired_state = 'STANDBY' WHERE name = 'nb'")
        assert (await until_closed(line))[1:] == (1001, "'nb' was stopped while it was starting")


async def test_a_disconnect_during_a_wake_runs_no_command(here: LiveApi) -> None:
    workspace_id = await falls_asleep(here)
    started: list[str] = []

    class Listed(FakeRuntime):
        async def start_command(
            self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
        ) -> RunningCommand:
            started.append(workspace_id)
            return await super().start_command(workspace_id, command, terminal=terminal)

    async with elsewhere(here, Listed(here.world)) as path:
        async with knock(here, "nb/exec?wake=true", path=path) as line:
            await start(line, "echo", "left")
            await line.recv()
        await wakes_up(here)
        async with knock(here, "nb/exec", path=path) as line:
            await start(line, "echo", "stayed")
            await until_ended(line)
    assert started == [workspace_id]


# ── POST ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_plain_call_has_a_time_limit(here: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.api.workspaces.EXEC_S", 0.05)
    await running(here)
    ended = asyncio.Event()

    class Slow(FakeRuntime):
        async def execute(self, *_: object) -> ExecResult:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError("never")

    async with elsewhere(here, Slow(here.world)) as path:
        here.path, before = path, here.path
        answer = await here.call("POST", "/workspaces/nb/exec", {"command": ["sleep", "1000"]})
        here.path = before
    assert (answer.status_code, answer.json()["code"]) == (422, "took_too_long")
    assert ended.is_set()


async def test_plain_calls_use_bounded_memory_and_refuse_large_output(here: LiveApi) -> None:
    async with on_a_machine(here) as machine, elsewhere(here, machine.runtime) as path:
        here.path, before = path, here.path
        calls = [
            here.call("POST", "/workspaces/nb/exec", {"command": ["sh", "-c", f"head -c {size} /dev/zero"]})
            for size in [MIB] * 5 + [16 * MIB] * 5
        ]
        memory = resident_bytes()
        answers = await asyncio.gather(*calls)
        here.path = before
        assert resident_bytes() - memory < 128 * MIB
    assert [answer.status_code for answer in answers] == [200] * 5 + [422] * 5
    assert base64.b64decode(answers[0].json()["stdout"]) == bytes(MIB)
    assert answers[-1].json()["code"] == "output_too_large"
