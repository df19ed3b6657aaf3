"""The terminal as a real program with a real pty: it keeps its shell, its flow control and its access check."""

import asyncio
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import websockets
from tests.support.waiting import until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

import torpor

INSIDE = Path(torpor.__file__).parent / "inside"
SITE = Path(websockets.__file__).parent.parent
PATIENCE_S = 10.0

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Running:
    """A terminal program under test."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path

    @property
    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


Start = Callable[..., Running]


@contextmanager
def stopped_at_the_end(home: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*options: str, **environment: str) -> Running:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, str(INSIDE / "terminal.py"), *options],
            stdout=subprocess.PIPE,
            env={
                "HOME": str(home),
                "PATH": os.environ["PATH"],
                "PORT": str(port),
                "PYTHONPATH": str(SITE),
                "SHELL": shutil.which("bash") or "/bin/sh",
                **environment,
            },
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"terminal: listening on http://127.0.0.1:{port}\n".encode()
        return Running(process, port, home)

    try:
        yield begin
    finally:
        for process in started:
            process.terminate()
        for process in started:
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(PATIENCE_S) == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a terminal as the runtime does. All are stopped at the end and must exit with 0."""
    with stopped_at_the_end(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A terminal that many tests share, as many tabs do."""
    with stopped_at_the_end(tmp_path_factory.mktemp("home")) as begin:
        yield begin(TORPOR_WORKSPACE="demo")


def new_session() -> str:
    return secrets.token_hex(16)


class Tab:
    """What the page does, without a browser."""

    def __init__(self, connection: ClientConnection, attached: dict[str, object]) -> None:
        self.connection = connection
        self.attached = attached
        self.shown = b""

    async def type(self, text: str) -> None:
        await self.connection.send(text.encode())

    async def resize(self, columns: int, rows: int) -> None:
        await self.connection.send(json.dumps({"resize": [columns, rows]}))

    async def until(self, text: str) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while text.encode() not in self.shown:
                self.shown += await self.connection.recv(decode=False)
        return self.shown

    async def pids(self, command: str) -> list[int]:
        """The pids in the output of a command, distinguished from the typed text."""
        await self.type(f"{command} | sed 's/^/pi''ds /; s/$/ ./'\r")
        await self.until(" .\r\n")
        return [int(pid) for pid in self.shown.split(b"pids ")[-1].split(b" .")[0].split()]

    async def interrupt(self) -> None:
        """Type Control-C and wait for the prompt: the terminal driver discards keys that are typed before that."""
        self.shown = b""
        await self.type("\x03")
        await self.until("^C")
        self.shown = self.shown.split(b"^C")[-1]
        await self.until("\x1b[?2004h")

    async def close(self) -> None:
        await self.connection.close()


Attempt = Callable[..., Awaitable[ClientConnection]]
OpenTab = Callable[..., Awaitable[Tab]]


@pytest.fixture
async def attempt() -> AsyncIterator[Attempt]:
    """Open a WebSocket to a terminal; all are closed at the end."""
    opened: list[ClientConnection] = []

    async def begin(terminal: Running, query: str = "", origin: str | None = None) -> ClientConnection:
        address = f"ws://127.0.0.1:{terminal.port}/pty?{query}"
        connection = await connect(address, origin=Origin(origin) if origin else None, compression=None, ping_interval=None)
        opened.append(connection)
        return connection

    yield begin
    for connection in opened:
        connection.transport.abort()
        await connection.wait_closed()


@pytest.fixture
def open_tab(attempt: Attempt) -> OpenTab:
    """Open a WebSocket and read what it was attached to."""

    async def begin(terminal: Running, session: str | None = None, origin: str | None = None, **query: int) -> Tab:
        names = [f"session={session}"] if session else []
        connection = await attempt(terminal, "&".join([*names, *(f"{name}={value}" for name, value in query.items())]), origin)
        async with asyncio.timeout(PATIENCE_S):
            first = await connection.recv()
        assert isinstance(first, str)
        return Tab(connection, json.loads(first)["attached"])

    return begin


def lives(pid: int) -> bool:
    """Whether it runs. An ended orphan may wait for the machine's first process to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ── the shell ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_shell_runs_at_home_on_a_real_terminal(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal)
    await tab.type("echo hi-$((6*7)) [$PWD] $(tty) $TERM-\r")
    shown = await tab.until("xterm-256color-")
    assert b"hi-42" in shown
    assert f"[{terminal.home}] /dev/pts/".encode() in shown


async def test_a_login_shell_in_utf_8_does_not_inherit_the_environment_of_torpor(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal)
    await tab.type(
        "shopt -q login_shell && echo log''in; locale charmap; echo [$PYTHONPATH$PORT]$TORPOR_WORKSPACE; echo gr''üße\r"
    )
    shown = await tab.until("grüße")
    assert b"login\r\n" in shown
    assert b"UTF-8\r\n" in shown
    assert b"[]demo\r\n" in shown


async def test_signals_are_as_a_shell_expects_them(start: Start, open_tab: OpenTab) -> None:
    """Python ignores SIGPIPE, and an ignored signal is inherited: `yes` would print an error instead of ending silently."""
    tab = await open_tab(start())
    # Control-C must come when the program has the terminal; before that, bash would wait for the program.
    await tab.type("yes | head -1; echo ${PIPESTATUS[0]}; sh -c 'echo as''leep; exec sleep 60'\r")
    await tab.until("asleep\r\n")
    assert b"141\r\n" in tab.shown
    await tab.interrupt()
    await tab.type("echo code-$?\r")
    await tab.until("code-130")


async def test_sh_is_used_without_bash(start: Start, tmp_path: Path, open_tab: OpenTab) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "echo"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    tab = await open_tab(start(SHELL="/no/such/shell", PATH=str(tmp_path / "bin")))
    await tab.type("echo $SHELL-$((6*7))\r")
    await tab.until(f"{tmp_path}/bin/sh-42")


async def test_the_window_has_its_size_from_the_beginning_and_after_each_change(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal, cols=101, rows=31)
    await tab.type("stty size\r")
    await tab.until("31 101")
    await tab.resize(132, 43)
    await tab.type("stty size\r")
    await tab.until("43 132")


async def test_a_large_paste_arrives_completely(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal)
    await tab.type("wc -c > size; echo rea''dy $(cat size)\r")
    await until((terminal.home / "size").exists)
    lines, line = 20_000, "x" * 49 + "\n"
    for _ in range(20):
        await tab.connection.send((line * (lines // 20)).encode())
    await tab.type("\x04")
    await tab.until(f"ready {lines * len(line)}")


async def test_an_ended_shell_is_reported_and_starts_again_on_enter(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal, new_session())
    await tab.type("echo las''t words; exit 3\r")
    shown = await tab.until("[process ended, press Enter to start again]")
    assert b"last words\r\n" in shown
    await tab.type("x")
    await tab.type("\r")
    await tab.type("echo agai''n-$?\r")
    await tab.until("again-0")


async def test_a_shell_has_ended_even_if_a_background_job_uses_the_terminal(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal)
    await tab.type("(trap '' HUP; while echo noise; do :; done) & disown; exit\r")
    await tab.until("[process ended, press Enter to start again]")


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reload_finds_the_same_shell_and_its_output(terminal: Running, open_tab: OpenTab) -> None:
    session = new_session()
    tab = await open_tab(terminal, session)
    assert tab.attached == {"new": True, "offset": 0, "until": 0}
    await tab.type("kept=yes; echo be''fore\r")
    await tab.until("before\r\n")
    await tab.close()
    tab = await open_tab(terminal, session)
    assert tab.attached["new"] is False
    assert tab.attached["offset"] == 0
    await tab.until("before\r\n")
    await tab.type("echo kept-$kept\r")
    await tab.until("kept-yes")


async def test_a_reconnect_continues_where_the_connection_broke(terminal: Running, open_tab: OpenTab) -> None:
    session = new_session()
    tab = await open_tab(terminal, session)
    await tab.type("PS1='$ '; echo be''fore; sleep 0.3; echo mis''sed\r")
    await tab.until("before\r\n")
    seen = len(tab.shown)
    tab.connection.transport.abort()
    await asyncio.sleep(0.5)
    tab = await open_tab(terminal, session, seen=seen)
    assert tab.attached["offset"] == seen
    assert (await tab.until("missed\r\n")).startswith(b"missed\r\n")


async def test_the_kept_output_is_limited_and_begins_with_a_complete_line(start: Start, open_tab: OpenTab) -> None:
    session, terminal = new_session(), start("--scrollback-bytes", "8192")
    tab = await open_tab(terminal, session)
    await tab.type("seq -f line-%06g 5000; echo do''ne\r")
    await tab.until("done\r\n")
    await tab.close()
    tab = await open_tab(terminal, session)
    shown = await tab.until("done\r\n")
    assert len(shown) <= 8192
    assert shown.startswith(b"line-")
    assert shown.index(b"\r\n") == len("line-000001")


async def test_a_command_continues_without_a_connection(terminal: Running, open_tab: OpenTab) -> None:
    session = new_session()
    tab = await open_tab(terminal, session)
    await tab.type("sleep 0.2; seq 500000; touch finished\r")
    await tab.until("seq")
    await tab.close()
    await until((terminal.home / "finished").exists)


async def test_a_second_tab_takes_over_the_session(terminal: Running, open_tab: OpenTab) -> None:
    session = new_session()
    first = await open_tab(terminal, session)
    second = await open_tab(terminal, session)
    with pytest.raises(ConnectionClosed) as closed:
        await first.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4001
    await second.type("echo min''e\r")
    await second.until("mine")


async def test_sessions_are_limited_and_a_disconnected_one_is_replaced(
    start: Start, open_tab: OpenTab, attempt: Attempt
) -> None:
    terminal = start("--sessions", "2")
    left = await open_tab(terminal, new_session())
    await open_tab(terminal, new_session())
    (pid,) = await left.pids("echo $$")
    refused = await attempt(terminal)
    with pytest.raises(ConnectionClosed) as closed:
        await refused.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4002
    await left.close()
    third = await open_tab(terminal, new_session())
    assert third.attached["new"] is True
    await until(lambda: not lives(pid))


@pytest.mark.parametrize(("session", "options"), [(None, ()), (new_session(), ("--detached-s", "0.2"))], ids=["none", "left"])
async def test_a_session_without_a_reconnect_is_ended(
    start: Start, session: str | None, options: tuple[str, ...], open_tab: OpenTab
) -> None:
    tab = await open_tab(start(*options), session)
    pids = await tab.pids("sleep 1000 & echo $$ $!")
    assert all(lives(pid) for pid in pids)
    await tab.close()
    await until(lambda: not any(lives(pid) for pid in pids))


async def test_stopping_the_terminal_ends_its_shells(start: Start, open_tab: OpenTab) -> None:
    terminal = start()
    tab = await open_tab(terminal, new_session())
    (pid,) = await tab.pids("trap '' HUP; echo $$")
    terminal.process.send_signal(signal.SIGTERM)
    await until(lambda: terminal.process.poll() is not None)
    assert terminal.process.returncode == 0
    assert not lives(pid)


# ── pace ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_unread_output_uses_bounded_memory(start: Start, open_tab: OpenTab) -> None:
    terminal = start()
    tab = await open_tab(terminal, new_session())
    await tab.type("yes $(printf %01000d 7)\r")
    await tab.until("0000007\r\n")
    before = terminal.memory_bytes
    await asyncio.sleep(1.5)
    assert terminal.memory_bytes - before < 8 * 1024 * 1024


async def test_output_is_sent_at_most_one_window_ahead_of_the_page(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal, new_session())
    await tab.connection.send(json.dumps({"seen": 0}))
    await tab.type("yes\r")
    received, window = 0, 128 * 1024

    async def read_what_comes() -> None:
        nonlocal received
        while True:
            async with asyncio.timeout(0.5):
                received += len(await tab.connection.recv(decode=False))

    with pytest.raises(TimeoutError):
        await read_what_comes()
    assert window <= received <= window * 1.5
    stalled_at = received
    await tab.connection.send(json.dumps({"seen": received}))
    with pytest.raises(TimeoutError):
        await read_what_comes()
    assert stalled_at + window <= received <= stalled_at + window * 1.5
    await tab.type("\x03")


async def test_control_c_ends_a_flood_of_output(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal, new_session())
    await tab.type("yes\r")
    for _ in range(50):
        await tab.connection.recv()
    await tab.interrupt()
    await tab.type("echo stop''ped\r")
    await tab.until("stopped\r\n")


# ── the door ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "null"])
async def test_another_origin_cannot_open_a_terminal(terminal: Running, origin: str, open_tab: OpenTab) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await open_tab(terminal, origin=origin)
    assert refused.value.response.status_code == 403


async def test_the_own_origin_can_open_a_terminal(terminal: Running, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal, origin=f"http://127.0.0.1:{terminal.port}")
    await tab.type("exit\r")
    await tab.until("[process ended")


@pytest.mark.parametrize(
    "message",
    [
        "no json",
        "[]",
        "{}",
        '{"resize": 7}',
        '{"resize": [80]}',
        '{"resize": [0, 24]}',
        '{"resize": [80, 99999]}',
        '{"seen": "x"}',
    ],
)
async def test_an_invalid_message_closes_the_connection(terminal: Running, message: str, open_tab: OpenTab) -> None:
    tab = await open_tab(terminal)
    await tab.connection.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        await tab.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    "query", ["session=short", "session=../../../../etc/passwd", "seen=-1", "seen=x", "cols=80", "cols=0&rows=0"]
)
async def test_an_invalid_query_is_refused(terminal: Running, query: str, attempt: Attempt) -> None:
    connection = await attempt(terminal, query)
    with pytest.raises(ConnectionClosed) as closed:
        await connection.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_the_page_has_the_name_of_the_workspace_and_loads_nothing_external(start: Start) -> None:
    terminal = start(TORPOR_WORKSPACE="<demo>&")
    status, headers, body = terminal.get("/")
    assert status == 200
    assert b"<title>&lt;demo&gt;&amp;</title>" in body
    assert b"{workspace}" not in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/assets/terminal.js", "text/javascript; charset=utf-8"),
        ("/assets/terminal.css", "text/css; charset=utf-8"),
        ("/assets/vendor/xterm.js", "text/javascript; charset=utf-8"),
        ("/assets/vendor/xterm.css", "text/css; charset=utf-8"),
        ("/assets/vendor/addon-fit.js", "text/javascript; charset=utf-8"),
    ],
)
def test_the_assets_of_the_page_are_served(terminal: Running, path: str, content_type: str) -> None:
    status, headers, body = terminal.get(path)
    assert (status, headers["Content-Type"]) == (200, content_type)
    assert body == (INSIDE / path.removeprefix("/")).read_bytes()
    status, packed, body = terminal.get(path, Accept_Encoding="gzip")
    assert (status, packed["Content-Encoding"]) == (200, "gzip")
    assert len(body) < int(headers["Content-Length"])
    assert terminal.get(path, If_None_Match=headers["ETag"])[::2] == (304, b"")


@pytest.mark.parametrize(
    "path", ["/x", "/assets/", "/assets/../terminal.py", "/assets/%2e%2e/terminal.py", "/assets/terminal.html", "//"]
)
def test_other_paths_are_not_found(terminal: Running, path: str) -> None:
    assert terminal.get(path)[0] == 404


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_is_answered(terminal: Running, method: str) -> None:
    status, headers, _ = terminal.get("/", method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_a_plain_request_for_the_pty_is_426(terminal: Running) -> None:
    assert terminal.get("/pty")[0] == 426


def test_a_missing_port_is_reported() -> None:
    ended = subprocess.run(
        [sys.executable, str(INSIDE / "terminal.py")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SITE)},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 2
    assert b"PORT" in ended.stderr


def test_only_the_own_user_can_use_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = subprocess.Popen(
        [sys.executable, str(INSIDE / "terminal.py"), "--socket", str(path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SITE), "PORT": "1"},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"terminal: listening on {path}\n".encode()
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(path))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
    finally:
        process.terminate()
        process.stdout.close() if process.stdout else None
        assert process.wait(PATIENCE_S) == 0
