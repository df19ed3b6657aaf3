"""Do bytes go through the front as they should? With real sockets, and on both event loops that the product can run on."""

import asyncio
import resource
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from torpor.domain.errors import Refused, Unavailable
from torpor.domain.states import Operation, Phase
from torpor.ports import Address
from torpor.proxy import front as front_module
from torpor.proxy.front import Front
from torpor.proxy.route import Asleep, Place, Running, Unknown

PATIENCE_S = 10.0
MB = 1 << 20
LARGE_BYTES = 100 * MB

pytestmark = pytest.mark.anyio

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module", params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Stage:
    """A front, with the platform and the workspaces behind it."""

    folder: Path
    front: Front
    places: dict[str, Place | Exception] = field(default_factory=dict)
    servers: list[asyncio.Server] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.front.port

    async def serve(self, name: str, handler: Handler) -> Address:
        """An upstream on a Unix socket. `platform` is the platform; any other name a running workspace."""
        path = self.folder / name
        self.servers.append(await asyncio.start_unix_server(self._closing(handler), path))
        address = Address(unix_path=str(path))
        if name != "platform":
            self.places[name] = Running(name, address)
        return address

    async def serve_tcp(self, name: str, handler: Handler) -> None:
        server = await asyncio.start_server(self._closing(handler), "127.0.0.1", 0)
        self.servers.append(server)
        self.places[name] = Running(name, Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1]))

    def _closing(self, handler: Handler) -> Handler:

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            except Exception as error:
                self.failures.append(error)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        return handle

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, *lines: str | bytes, body: bytes = b"", target: str = "GET / HTTP/1.1") -> "Answer":
        """One request on one connection; the whole of what came back until the connection ended."""
        return await self.send_raw(head(target, *lines) + body)

    async def send_raw(self, raw: bytes) -> "Answer":
        reader, writer = await self.open()
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(raw)
                await writer.drain()
                return Answer.read(await reader.read())
        finally:
            await hang_up(writer)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, raw: bytes) -> "Answer":
        first, _, body = raw.partition(b"\r\n\r\n")
        status, *lines = first.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, body)


def head(target: str, *lines: str | bytes) -> bytes:
    encoded = (line if isinstance(line, bytes) else line.encode() for line in (target, *lines))
    return b"\r\n".join((*encoded, b"", b""))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def echo_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the head that it got."""
    got = await read_head(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(got), got))
    await writer.drain()


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    places: dict[str, Place | Exception] = {}

    async def find(name: str) -> Place:
        place = places.get(name, Unknown(name))
        if isinstance(place, Exception):
            raise place
        return place

    front = Front(platform=Address(unix_path=str(folder / "platform")), find=find, port=0)
    await front.start()
    stage = Stage(folder, front, places)
    try:
        yield stage
    finally:
        await front.stop(grace_s=0)
        for server in stage.servers:
            server.close()
        # Upstream handlers see the end of their connections before the loop goes away.
        await asyncio.sleep(0.05)
        assert not stage.failures


@pytest.fixture
async def stage(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


# ── where a request goes ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_platform_answers_for_itself(stage: Stage) -> None:
    await stage.serve("platform", echo_head)
    for host in ("localhost", f"localhost:{stage.port}", "127.0.0.1:1", "[::1]:1", "LOCALHOST"):
        answer = await stage.ask(f"Host: {host}", "Cookie: torpor_session=abc", "accept: a", "Accept: b")
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert answer.body == head(
            "GET / HTTP/1.1",
            f"Host: {host}",
            "Cookie: torpor_session=abc",
            "accept: a",
            "Accept: b",
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-Proto: http",
            f"X-Forwarded-Host: {host}",
            "Connection: close",
        )


async def test_a_workspace_answers_and_gets_no_secret_of_the_platform(stage: Stage) -> None:
    await stage.serve("ada", echo_head)
    answer = await stage.ask(
        "Host: ada.localhost:8080",
        "Cookie: torpor_session=abc; mine=1",
        "Authorization: Bearer torpor_secret",
        target="GET /a%2Fb//c?d=%zz HTTP/1.1",
    )
    assert b"GET /a%2Fb//c?d=%zz HTTP/1.1\r\n" in answer.body
    assert b"Cookie: mine=1\r\n" in answer.body
    assert b"torpor_" not in answer.body


async def test_a_workspace_behind_a_port(stage: Stage) -> None:
    await stage.serve_tcp("ada", echo_head)
    assert (await stage.ask("Host: ada.localhost")).status == 200


async def test_ipv6_is_listened_on_too(stage: Stage) -> None:
    await stage.serve("platform", echo_head)
    try:
        reader, writer = await asyncio.open_connection("::1", stage.port)
    except OSError:
        pytest.skip("this machine has no ::1")
    writer.write(head("GET / HTTP/1.1", f"Host: [::1]:{stage.port}"))
    assert b"X-Forwarded-For: ::1" in await reader.read()
    await hang_up(writer)


async def test_other_hosts_are_misdirected(stage: Stage) -> None:
    await stage.serve("platform", echo_head)
    for host in ("evil.example", "a.b.localhost", "127.0.0.2"):
        answer = await stage.ask(f"Host: {host}")
        assert answer.status == 421
        assert host in answer.body.decode()
        assert f"http://localhost:{stage.port}" in answer.body.decode()


async def test_an_unknown_workspace(stage: Stage) -> None:
    assert (await stage.ask("Host: bob.localhost")).status == 404
    assert (await stage.ask("Host: no--name.localhost")).status == 404
    page = await stage.ask("Host: bob.localhost", "Accept: text/html,*/*")
    assert page.status == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"


async def test_a_sleeping_workspace(stage: Stage) -> None:
    stage.places["ada"] = Asleep("ada", Phase.ARCHIVED, Operation.RESTORING, 40)
    text = await stage.ask("Host: ada.localhost")
    assert (text.status, text.headers["retry-after"]) == (503, "2")
    assert "its home is being restored from the archive (40\N{NO-BREAK SPACE}%)" in text.body.decode()
    page = await stage.ask("Host: ada.localhost", "Accept: text/html")
    assert '<meta http-equiv="refresh"' in page.body.decode()
    assert "<progress" in page.body.decode()
    nothing = await stage.ask("Host: ada.localhost", target="HEAD / HTTP/1.1")
    assert (nothing.status, nothing.body) == (503, b"")


async def test_when_it_cannot_be_told(stage: Stage) -> None:
    for error in (Unavailable("the database is away"), RuntimeError("a bug")):
        stage.places["ada"] = error
        assert (await stage.ask("Host: ada.localhost")).status == 503


async def test_when_nobody_listens(stage: Stage) -> None:
    stage.places["ada"] = Running("ada", Address(unix_path=str(stage.folder / "nowhere")))
    answer = await stage.ask("Host: ada.localhost")
    assert answer.status == 502
    assert "torpor logs ada" in answer.body.decode()
    assert (await stage.ask("Host: localhost")).status == 502


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b", b"A: b\r\n" * 20_000])
async def test_when_what_comes_back_is_no_answer(stage: Stage, said: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(said)
        await writer.drain()

    await stage.serve("ada", odd)
    assert (await stage.ask("Host: ada.localhost")).status == 502


# ── bad requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

BAD = {
    "LF line ends": (400, b"GET / HTTP/1.1\nHost: localhost\n\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "never ending": (431, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000),
    "one endless line": (431, b"GET /" + b"a" * 200_000),
    "many headers": (431, head("GET / HTTP/1.1", "Host: localhost", *["A: b"] * 100)),
    "both framings": (400, head("POST / HTTP/1.1", "Host: localhost", "Content-Length: 4", "Transfer-Encoding: chunked")),
    "a bad chunk": (400, head("POST / HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked") + b"zz\r\n"),
}


@pytest.mark.parametrize(("status", "raw"), BAD.values(), ids=BAD)
async def test_a_bad_request_is_told_so_at_once(stage: Stage, status: int, raw: bytes) -> None:
    async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    await stage.serve("platform", swallow)
    answer = await stage.send_raw(raw)
    assert answer.status == status
    assert answer.headers["connection"] == "close"


async def test_what_stands_behind_the_request_goes_nowhere(stage: Stage) -> None:
    """A second request on the connection would go on unread: it must not go on at all."""
    received: list[bytes] = []

    async def greedy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while piece := await reader.read(1000):
                    received.append(piece)
        # Whatever it says, this is the last answer here.
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    await stage.serve("ada", greedy)
    second = head("GET /second HTTP/1.1", "Host: ada.localhost", "X-Forwarded-For: 6.6.6.6")
    for framing, body in (
        ("Content-Length: 0", b""),
        ("Content-Length: 4", b"body"),
        ("Transfer-Encoding: chunked", b"4\r\nbody\r\n0\r\n\r\n"),
    ):
        received.clear()
        answer = await stage.ask("Host: ada.localhost", framing, body=body + second, target="POST / HTTP/1.1")
        assert b"".join(received) == body
        assert (answer.body, answer.headers["connection"]) == (b"ok", "close")


async def test_a_slow_head_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "HEAD_PATIENCE_S", 0.2)
    answer = await stage.send_raw(b"GET / HTTP/1.1\r\nHost: loc")
    assert answer.status == 408
    reader, writer = await stage.open()
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"", "a spare connection is closed without a word"
    await hang_up(writer)


async def test_waiting_places_are_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.serve("platform", echo_head)
    monkeypatch.setattr(front_module, "MOST_WAITING", 3)
    waiting = [await stage.open() for _ in range(3)]
    assert (await stage.ask("Host: localhost")).status == 503
    for _, writer in waiting:
        await hang_up(writer)
    for _ in range(100):
        if (await stage.ask("Host: localhost")).status == 200:
            return
        await asyncio.sleep(0.05)
    pytest.fail("places are not given back")


async def test_clients_that_vanish_at_any_point_harm_nobody(stage: Stage) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    await stage.serve("platform", echo_head)
    await stage.serve("ada", endless)
    whole = head("POST / HTTP/1.1", "Host: ada.localhost", "Content-Length: 100")
    for length in range(0, len(whole) + 1, 7):
        client = socket.create_connection(("127.0.0.1", stage.port))
        client.sendall(whole[:length])
        await asyncio.sleep(0.001)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    assert (await stage.ask("Host: localhost")).status == 200
    await _eventually(lambda: not stage.front._connections)


async def _eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def memory_bounded_by(most_bytes: int) -> AsyncIterator[None]:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield
        grown = tracemalloc.get_traced_memory()[1] - before
        assert grown < most_bytes, f"{grown / MB:.1f} MB were held at once"
        # uvloop's own buffers are not traced; the whole process's are.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident < LARGE_BYTES / 2
    finally:
        tracemalloc.stop()


async def test_a_large_upload_is_streamed(stage: Stage) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        total = 0
        while total < LARGE_BYTES:
            total += len(await reader.read(MB))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n%d" % total)
        await writer.drain()

    await stage.serve("ada", count)
    piece = bytes(MB // 4)
    reader, writer = await stage.open()
    async with memory_bounded_by(8 * MB):
        writer.write(head("PUT / HTTP/1.1", "Host: ada.localhost", f"Content-Length: {LARGE_BYTES}"))
        for _ in range(LARGE_BYTES // len(piece)):
            writer.write(piece)
            await writer.drain()
        answer = Answer.read(await reader.read())
    await hang_up(writer)
    assert answer.body == b"%d" % LARGE_BYTES


async def test_a_large_download_is_streamed(stage: Stage) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        piece = bytes(MB // 4)
        for _ in range(LARGE_BYTES // len(piece)):
            writer.write(piece)
            await writer.drain()

    await stage.serve("ada", pour)
    reader, writer = await stage.open()
    total = 0
    async with memory_bounded_by(8 * MB):
        writer.write(head("GET / HTTP/1.1", "Host: ada.localhost"))
        await read_head(reader)
        while piece := await reader.read(MB):
            total += len(piece)
    await hang_up(writer)
    assert total == LARGE_BYTES


async def test_who_does_not_read_is_not_sent_to(stage: Stage) -> None:
    poured = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while poured < LARGE_BYTES:
            writer.write(bytes(MB // 4))
            await writer.drain()
            poured += MB // 4

    await stage.serve("ada", pour)
    client = socket.create_connection(("127.0.0.1", stage.port))
    client.sendall(head("GET / HTTP/1.1", "Host: ada.localhost"))
    await _eventually(lambda: poured > 0)
    await asyncio.sleep(0.5)
    assert poured < LARGE_BYTES / 4, "what fits into the kernel's buffers, and no more"
    client.close()


async def test_expect_continue_is_between_the_client_and_the_other_side(stage: Stage) -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await read_head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        got = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + got)
        await writer.drain()

    await stage.serve("ada", careful)
    reader, writer = await stage.open()
    writer.write(head("POST / HTTP/1.1", "Host: ada.localhost", "Expect: 100-continue", "Content-Length: 4"))
    assert await read_head(reader) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    assert await read_head(reader) == b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    assert await reader.read() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"
    await hang_up(writer)


async def test_an_answer_may_come_before_the_body_has_gone(stage: Stage) -> None:
    async def too_large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()

    await stage.serve("ada", too_large)
    answer = await stage.ask("Host: ada.localhost", f"Content-Length: {4 * MB}", body=bytes(4 * MB), target="PUT / HTTP/1.1")
    assert (answer.status, answer.body) == (413, b"no")


async def test_a_client_that_closed_its_half_still_gets_the_answer(stage: Stage) -> None:
    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await asyncio.sleep(0.2)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nlater")
        await writer.drain()

    await stage.serve("ada", later)
    reader, writer = await stage.open()
    writer.write(head("GET / HTTP/1.1", "Host: ada.localhost"))
    writer.write_eof()
    assert Answer.read(await reader.read()).body == b"later"
    await hang_up(writer)


async def test_a_client_that_closed_its_half_is_not_waited_for_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "HALF_CLOSED_PATIENCE_S", 0.2)
    ended = asyncio.Event()

    async def never(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    await stage.serve("ada", never)
    _, writer = await stage.open()
    writer.write(head("GET / HTTP/1.1", "Host: ada.localhost"))
    await hang_up(writer)
    await asyncio.wait_for(ended.wait(), PATIENCE_S)


async def test_an_answer_ends_where_it_says_even_when_its_connection_does_not(stage: Stage) -> None:
    async def lazy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nmore")
        await reader.read()

    await stage.serve("ada", lazy)
    assert (await stage.ask("Host: ada.localhost")).body == b"2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("framing", [b"", b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_an_answer_that_breaks_off_does_not_look_whole(stage: Stage, framing: bytes) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n64\r\nhalf of wh" % framing)
        await writer.drain()
        await asyncio.sleep(0.1)
        cut = b"\1\0\0\0\0\0\0\0"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, cut)

    await stage.serve_tcp("ada", breaks)
    reader, writer = await stage.open()
    writer.write(head("GET / HTTP/1.1", "Host: ada.localhost"))
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    await hang_up(writer)


# ── upgrades ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_websockets_go_through(stage: Stage) -> None:
    async def echo(connection: ServerConnection) -> None:
        assert "torpor_session" not in connection.request.headers.get("Cookie", "") if connection.request else False
        async for message in connection:
            await connection.send(message)

    path = stage.folder / "ada"
    stage.places["ada"] = Running("ada", Address(unix_path=str(path)))
    async with unix_serve(echo, str(path), max_size=None):
        uri = f"ws://ada.localhost:{stage.port}/a/b?c"
        origin = Origin(f"http://ada.localhost:{stage.port}")
        async with connect(
            uri,
            host="127.0.0.1",
            origin=origin,
            max_size=None,
            compression=None,
            proxy=None,
            additional_headers={"Cookie": "torpor_session=abc"},
        ) as client:
            for message in ("hello", b"\0" * (4 * MB), ""):
                await client.send(message)
                assert await asyncio.wait_for(client.recv(), PATIENCE_S) == message
        async with connect(uri, host="127.0.0.1", proxy=None) as program:
            await program.send("no origin")
            assert await program.recv() == "no origin"
        for other in ("http://evil.example", f"http://localhost:{stage.port}", "http://ada.localhost:1", "null"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(uri, host="127.0.0.1", origin=Origin(other), proxy=None)
            assert refused.value.response.status_code == 403


async def tunnel_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_head(reader)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
    while piece := await reader.read(1000):
        writer.write(piece)
    writer.write(b"<end>")
    await writer.drain()


async def test_a_tunnel_passes_each_half_close_on(stage: Stage) -> None:
    await stage.serve("ada", tunnel_echo)
    reader, writer = await stage.open()
    writer.write(head("GET / HTTP/1.1", "Host: ada.localhost", "Connection: upgrade", "Upgrade: raw") + b"early,")
    assert b"101 Switching" in await read_head(reader)
    writer.write(b"late")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b"early,late<end>"
    await hang_up(writer)


async def test_an_upgrade_that_is_declined_is_a_plain_answer(stage: Stage) -> None:
    await stage.serve("ada", echo_head)
    answer = await stage.ask("Host: ada.localhost", "Connection: upgrade", "Upgrade: websocket")
    assert (answer.status, answer.headers["connection"]) == (200, "close")


# ── beginning and end ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_port_in_use_is_said_so(stage: Stage) -> None:
    async def find(name: str) -> Place:
        return Unknown(name)

    second = Front(platform=Address(unix_path="/nowhere"), find=find, port=stage.port)
    with pytest.raises(Refused) as refused:
        await second.start()
    assert refused.value.code == "port_in_use"
    assert f"port {stage.port} is in use" in refused.value.message
    assert "--port" in refused.value.message


async def test_an_address_that_is_not_here_is_left_out(anyio_backend: object) -> None:
    async def find(name: str) -> Place:
        return Unknown(name)

    front = Front(platform=Address(unix_path="/nowhere"), find=find, port=0, hosts=("127.0.0.1", "2001:db8::1"))
    await front.start()
    await front.stop()


async def test_stopping_lets_a_request_finish_and_takes_no_other(stage: Stage) -> None:
    begun = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        begun.set()
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndone")
        await writer.drain()

    await stage.serve("ada", slow)
    _, idle = await stage.open()
    asking = asyncio.create_task(stage.ask("Host: ada.localhost"))
    await begun.wait()
    stopping = asyncio.create_task(stage.front.stop(grace_s=PATIENCE_S))
    await asyncio.sleep(0.1)
    with pytest.raises(OSError):
        await stage.open()
    assert (await asking).body == b"done"
    await asyncio.wait_for(stopping, 3)
    await hang_up(idle)


async def test_stopping_does_not_wait_for_tunnels_nor_longer_than_its_grace(stage: Stage) -> None:
    begun = asyncio.Event()

    async def never(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        begun.set()
        await reader.read()

    await stage.serve("ada", tunnel_echo)
    await stage.serve("eve", never)
    reader, tunnel = await stage.open()
    tunnel.write(head("GET / HTTP/1.1", "Host: ada.localhost", "Connection: upgrade", "Upgrade: raw"))
    await read_head(reader)
    _, waiting = await stage.open()
    waiting.write(head("GET / HTTP/1.1", "Host: eve.localhost"))
    await begun.wait()
    loop = asyncio.get_running_loop()
    at = loop.time()
    await stage.front.stop(grace_s=0.3)
    assert 0.25 < loop.time() - at < 2
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) in (b"", b"<end>")
    await hang_up(tunnel)
    await hang_up(waiting)
