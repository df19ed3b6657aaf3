"""The fake engine serves many processes, outlives them, and no client delays another."""

# ruff: noqa: ASYNC220 - a test may block its event loop

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support.engine_process import EngineProcess, engine_process, started_twice
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed, Refused, Unavailable
from torpor.domain.records import Marker
from torpor.ports import Address, Container, Fence, Home, Limits, Program
from torpor.testing.fake_engine import EngineControl, RemoteFakeArchives, RemoteFakeRuntime
from torpor.testing.fake_engine.protocol import frame
from torpor.testing.fake_runtime import FakeLogEntry

pytestmark = pytest.mark.anyio

OLDER, NEWER = Fence("op-1", 1), Fence("op-2", 2)


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with engine_process() as engine:
        yield engine


@pytest.fixture
async def fate(engine: EngineProcess) -> AsyncIterator[EngineControl]:
    fate = EngineControl(engine.socket)
    yield fate
    await fate.close()


@contextlib.asynccontextmanager
async def client(engine: EngineProcess) -> AsyncIterator[RemoteFakeRuntime]:
    runtime = RemoteFakeRuntime(engine.socket)
    try:
        yield runtime
    finally:
        await runtime.close()


async def ready_home(runtime: RemoteFakeRuntime, fence: Fence = OLDER) -> Home:
    home = Home(str(uuid.uuid4()), 1)
    await runtime.ensure_volume(home, fence)
    await runtime.mark_volume(home, Marker(home.workspace_id, 1, ""), fence)
    return home


def container(home: Home, revision: int = 1) -> Container:
    return Container(home, revision, Program("test", ("serve",), {"GREETING": "hello"}), Limits(1 << 20, 10))


async def start(runtime: RemoteFakeRuntime, home: Home, fence: Fence = OLDER) -> None:
    await runtime.ensure_running(container(home), fence, lambda *_: None)


# ── sharing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_clients_see_the_effects_of_others(engine: EngineProcess) -> None:
    async with client(engine) as one, client(engine) as two:
        assert await one.world() == await two.world()
        home = await ready_home(one)
        await start(two, home)
        seen = (await one.observe()).of(home.workspace_id)
        assert seen.container is not None
        assert seen.container.ready
        assert await two.observe(frozenset({home.workspace_id})) == await one.observe()


async def test_concurrent_starts_start_one_container(engine: EngineProcess, fate: EngineControl) -> None:
    await fate.set(effects_s=0.05)
    async with client(engine) as one, client(engine) as two:
        home = await ready_home(one)
        await asyncio.gather(start(one, home), start(two, home), start(one, home))
    assert [entry[1:] for entry in (await fate.inspect()).log if entry.verb == "ensure_running"] == [
        ("ensure_running", home.workspace_id, 1, "op-1")
    ]


async def test_a_late_effect_with_an_older_epoch_is_refused(engine: EngineProcess, fate: EngineControl) -> None:
    async with client(engine) as runtime:
        home = await ready_home(runtime)
        await fate.set(effects_s=0.1)
        late = asyncio.create_task(start(runtime, home, OLDER))
        await asyncio.sleep(0)  # its frame is sent before the next one
        await runtime.ensure_no_container(home.workspace_id, NEWER)
        with pytest.raises(Failed) as refusal:
            await late
        assert refusal.value.code is Code.STALE_EPOCH
    seen = await fate.inspect()
    assert seen.containers == {}
    assert [entry[1:] for entry in seen.overtaken] == [("ensure_running", home.workspace_id, 1, "op-1")]


async def test_addresses_are_known_without_a_call(engine: EngineProcess, fate: EngineControl) -> None:
    there = Address(host="127.0.0.1", port=1234)
    async with client(engine) as controller, client(engine) as proxy:
        home = await ready_home(controller)
        await start(controller, home)
        await fate.set(address=there)
        await proxy.start()
        assert proxy.address(home.workspace_id) == there
        assert proxy.address("another") is None
        await controller.ensure_no_container(home.workspace_id, OLDER)
        await until(lambda: proxy.address(home.workspace_id) is None)
        await start(controller, home)
        await until(lambda: proxy.address(home.workspace_id) == there)
        await fate.end_program(home.workspace_id, 1, "goodbye")
        await until(lambda: proxy.address(home.workspace_id) is None)


# ── what answers in a container ───────────────────────────────────────────────────────────────────────────────────────


async def answers(
    runtime: RemoteFakeRuntime, home: Home, port: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = runtime.address(home.workspace_id, port)
    assert address is not None
    reader, writer = await asyncio.open_unix_connection(address.unix_path)
    writer.write(address.preamble)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((line.split()[1] for line in head.splitlines() if line.lower().startswith("content-length")), "0")
    return int(head.split()[1]), await reader.readexactly(int(length))


@pytest.fixture
async def proxy(engine: EngineProcess) -> AsyncIterator[RemoteFakeRuntime]:
    """A client that follows which containers run."""
    async with client(engine) as proxy:
        await proxy.start()
        yield proxy


async def up(engine: EngineProcess, proxy: RemoteFakeRuntime) -> Home:
    """Started by a client that has ended."""
    async with client(engine) as controller:
        home = await ready_home(controller)
        await start(controller, home)
    await until(lambda: proxy.address(home.workspace_id) is not None)
    return home


async def test_every_port_answers_http_with_its_number(engine: EngineProcess, proxy: RemoteFakeRuntime) -> None:
    home = await up(engine, proxy)
    for port in (None, 8000):
        reader, writer = await answers(proxy, home, port)
        for target in ("/a?b=c", "/again"):
            writer.write(f"GET {target} HTTP/1.1\r\nHost: a\r\nX-Twice: 1\r\nX-Twice: 2\r\n\r\n".encode())
            status, body = await answer(reader)
            told = json.loads(body)
            assert (status, told["workspace"], told["port"]) == (200, home.workspace_id, str(port or "program"))
            assert (told["method"], told["target"]) == ("GET", target)
            assert [value for name, value in told["headers"] if name == "X-Twice"] == ["1", "2"]
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await answer(reader) == (100, b"")
        writer.write(b"4\r\nping\r\n0\r\n\r\n")
        assert await answer(reader) == (200, b"ping")
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""
        writer.close()


async def test_a_websocket_outlives_the_client_that_started_its_container(
    engine: EngineProcess, proxy: RemoteFakeRuntime
) -> None:
    home = await up(engine, proxy)
    address = proxy.address(home.workspace_id, 3000)
    assert address is not None
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(address.unix_path))
        line.sendall(address.preamble)
        line.setblocking(False)
        async with connect("ws://localhost/", sock=line, compression=None) as websocket:
            for said in ("text", b"bytes", b"x" * 100_000):
                await websocket.send(said)
                assert await websocket.recv() == said
            await websocket.send(["in ", "parts"])
            assert await websocket.recv() == "in parts"
            await (await websocket.ping())
            # Two more controllers, as after a restart.
            for _ in range(2):
                async with client(engine) as controller:
                    await start(controller, home)
            await websocket.send("still here")
            assert await websocket.recv() == "still here"
            async with client(engine) as controller:
                await controller.ensure_no_container(home.workspace_id, OLDER)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(websocket.recv(), 10)


async def test_connections_without_a_listener_are_closed(
    engine: EngineProcess, proxy: RemoteFakeRuntime, fate: EngineControl
) -> None:
    await fate.set(starts_ready=False)
    home = await up(engine, proxy)
    reader, writer = await answers(proxy, home)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    programs = proxy.address(home.workspace_id)
    assert programs is not None
    for nonsense in (b"nobody 80\n", b"\n", b"\xff\n", b"one two three\n", f"{home.workspace_id} shell\nR\0".encode()):
        reader, writer = await asyncio.open_unix_connection(programs.unix_path)
        writer.write(nonsense)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_errors_keep_their_type_and_content(engine: EngineProcess) -> None:
    async with client(engine) as runtime:
        home = await ready_home(runtime, NEWER)
        with pytest.raises(Failed) as failed:
            await start(runtime, home, OLDER)
        assert (failed.value.code, failed.value.context) == (Code.STALE_EPOCH, {"seen": 2})
        with pytest.raises(Refused) as refused:
            await runtime.execute(home.workspace_id, ["true"], b"")
        assert (refused.value.code, refused.value.message) == ("not_running", "the workspace is not running")


async def test_without_an_engine_calls_are_unavailable(tmp_path: Path) -> None:
    runtime, archives = RemoteFakeRuntime(tmp_path / "nobody"), RemoteFakeArchives(tmp_path / "nobody")
    with pytest.raises(Unavailable):
        await runtime.observe()
    with pytest.raises(Unavailable):
        await start(runtime, Home("a", 1))
    assert not await archives.reachable()
    await runtime.start()
    assert runtime.address("a") is None
    await runtime.close()


async def test_a_new_engine_after_a_kill_is_empty_and_clients_reconnect(engine: EngineProcess) -> None:
    async with client(engine) as runtime:
        home = await ready_home(runtime)
        await start(runtime, home)
        await runtime.start()
        before = await runtime.world()
        fate = EngineControl(engine.socket)
        await fate.set(effects_s=60, address=Address(host="127.0.0.1", port=1))
        await until(lambda: runtime.address(home.workspace_id) is not None)
        under_way = asyncio.create_task(runtime.ensure_no_container(home.workspace_id, OLDER))
        await asyncio.sleep(0)
        await fate.inspect()
        engine.kill()
        with pytest.raises(Unavailable):
            await under_way
        with pytest.raises(Unavailable):
            await runtime.observe()
        await until(lambda: runtime.address(home.workspace_id) is None)
        engine.start()
        assert (await runtime.observe()).seen == {}
        assert await runtime.world() != before
        await fate.close()


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("begun", [True, False], ids=["under way", "just sent"])
async def test_a_cancelled_call_is_cancelled_in_the_engine(engine: EngineProcess, fate: EngineControl, begun: bool) -> None:
    async with client(engine) as runtime:
        home = await ready_home(runtime)
        await fate.set(effects_s=60)
        effect = asyncio.create_task(start(runtime, home))
        await asyncio.sleep(0)
        if begun:
            await runtime.observe()
        effect.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(effect, 4)
        await fate.set(effects_s=0)
        await runtime.ensure_no_container(home.workspace_id, OLDER)
    seen = await fate.inspect()
    assert seen.containers == {}
    assert [entry.verb for entry in seen.log] == ["ensure_volume", "mark_volume"]


# ── clients that die or stop ──────────────────────────────────────────────────────────────────────────────────────────

STARTS = """
import asyncio, sys
from pathlib import Path
from torpor.ports import *
from torpor.testing.fake_engine import RemoteFakeRuntime
async def main():
    runtime = RemoteFakeRuntime(Path(sys.argv[1]))
    container = Container(Home(sys.argv[2], 1), 1, Program("", ()), Limits(1, 1))
    effect = asyncio.create_task(runtime.ensure_running(container, Fence("op-1", 1), print))
    await asyncio.sleep(0)
    await runtime.observe()
    print("begun", flush=True)
    await effect
asyncio.run(main())
"""


async def test_an_effect_is_finished_after_its_client_was_killed(engine: EngineProcess, fate: EngineControl) -> None:
    async def is_running() -> bool:
        return bool((await fate.inspect()).containers)

    async with client(engine) as runtime:
        home = await ready_home(runtime)
        await fate.set(effects_s=0.3)
        command = [sys.executable, "-c", STARTS, str(engine.socket), home.workspace_id]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout
            assert await asyncio.to_thread(child.stdout.readline) == b"begun\n"
            assert (await fate.inspect()).containers == {}
            child.kill()
        await until(is_running)
        seen = (await runtime.observe()).of(home.workspace_id).container
        assert seen is not None
        assert seen.ready


async def test_a_stopped_client_does_not_affect_the_others(engine: EngineProcess, fate: EngineControl) -> None:
    async with client(engine) as runtime:
        homes = [Home(str(uuid.uuid4()), 1) for _ in range(500)]
        await asyncio.gather(*(runtime.ensure_volume(home, OLDER) for home in homes))
        with socket.socket(socket.AF_UNIX) as stopped:
            stopped.connect(str(engine.socket))
            before = engine.memory_bytes()
            stopped.send(b"".join(frame([number, "observe", None]) for number in range(2000)))  # and reads no answer
            for _ in range(20):
                assert len((await runtime.observe()).seen) == 500
            await engine_is_idle(engine)
            # One answer has tens of kilobytes, so all requested answers would have more than fifty megabytes.
            assert engine.memory_bytes() - before < 8 << 20
            await ready_home(runtime)


async def engine_is_idle(engine: EngineProcess) -> None:
    async with asyncio.timeout(30):
        used_s = -1.0
        while engine.used_s() != used_s:
            used_s = engine.used_s()
            await asyncio.sleep(0.2)


async def test_an_invalid_message_ends_only_its_connection(engine: EngineProcess) -> None:
    async with client(engine) as runtime:
        home = await ready_home(runtime)
        for nonsense in (b"\xff\xff\xff\xff", (3).to_bytes(4, "big") + b"{]}", frame(["no verb"]), b"\0"):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(engine.socket))
                stranger.send(nonsense)
        assert home.workspace_id in (await runtime.observe()).seen


async def test_an_unknown_verb_is_answered_with_an_error(engine: EngineProcess) -> None:
    reader, writer = await asyncio.open_unix_connection(engine.socket)
    writer.write(frame([7, "dance"]))
    length = int.from_bytes(await reader.readexactly(4), "big")
    number, outcome, kind, code, *_ = json.loads(await reader.readexactly(length))
    assert (number, outcome, kind, code) == (7, "broke", "Failed", "INTERNAL")
    writer.close()


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_its_user_may_connect(engine: EngineProcess) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in engine.socket.parent.iterdir()} == {0o600}


def test_a_stopped_engine_leaves_no_files(engine: EngineProcess) -> None:
    assert engine.stop() == 0
    assert list(engine.socket.parent.iterdir()) == []


def test_the_engine_ends_with_its_parent(engine: EngineProcess) -> None:
    assert engine.process
    assert engine.process.stdin
    engine.process.stdin.close()
    assert engine.process.wait(10) == 0


def test_one_socket_has_one_engine_and_a_socket_of_a_killed_one_is_taken_over(engine: EngineProcess) -> None:
    command = [sys.executable, "-m", "torpor.testing.fake_engine", str(engine.socket)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert second.returncode == 1
    assert "another fake engine" in second.stderr
    engine.kill()
    assert engine.socket.exists()
    engine.start()


async def test_a_stopped_engine_is_unavailable_until_it_continues(engine: EngineProcess) -> None:
    runtime = RemoteFakeRuntime(engine.socket, look_s=0.2)
    home = await ready_home(runtime)
    assert engine.process
    os.kill(engine.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            await runtime.observe()
    finally:
        os.kill(engine.process.pid, signal.SIGCONT)
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(Unavailable):
                assert home.workspace_id in (await runtime.observe()).seen
                break
    await runtime.close()


# ── what the log proves ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_start_would_be_detected() -> None:
    def log(*verbs: str) -> list[FakeLogEntry]:
        return [FakeLogEntry(float(at), verb, "a", 1, "op") for at, verb in enumerate(verbs)]

    assert started_twice(log("ensure_running", "ensure_no_container", "ensure_running", "end_program", "ensure_running")) == []
    assert started_twice(log("ensure_running", "ensure_no_volume", "ensure_running"))[0].at_s == 2
