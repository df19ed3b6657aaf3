"""A small gate without access checks, and a stage with a proxy server and its upstreams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from torpor.ports import Address
from torpor.proxy.connection_limits import UNLIMITED, ConnectionLimits
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import RequestHead
from torpor.proxy.server import ProxyServer
from torpor.proxy.timeouts import ProxyTimeouts
from torpor.proxy.usage import UNWATCHED, WorkspaceUse

PATIENCE_S = 10.0
LOOPBACK = ("127.0.0.1", "::1")

Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Judging: TypeAlias = Callable[[RequestHead, str], Verdict | Awaitable[Verdict]]

UNKNOWN = Reply(404, RequestOutcome.UNKNOWN, ((b"Content-Type", b"text/plain"),), b"nobody is called so\n")
SORRY = Reply(502, RequestOutcome.NO_ANSWER, (), b"it does not answer\n")
TOO_LATE = Reply(504, RequestOutcome.NO_ANSWER, (), b"it takes too long\n")


def passing(
    address: Address, *, to_workspace: bool = True, use: WorkspaceUse = UNWATCHED, bearer: str | None = None
) -> Forward:
    outcome = RequestOutcome.WORKSPACE if to_workspace else RequestOutcome.PLATFORM
    return Forward(address, outcome, SORRY, TOO_LATE, to_workspace=to_workspace, use=use, bearer=bearer)


@dataclass
class OpenGate:
    """The first label of the host selects the upstream."""

    verdicts: dict[str, Verdict | Judging] = field(default_factory=dict)
    seen: list[tuple[RequestHead, str]] = field(default_factory=list)

    def judge(self, head: RequestHead, client: str) -> Verdict | Awaitable[Verdict]:
        self.seen.append((head, client))
        verdict = self.verdicts.get(head.host.partition(".")[0], UNKNOWN)
        return verdict(head, client) if callable(verdict) else verdict


@dataclass
class Stage:
    """A proxy server with the platform and the workspaces behind it."""

    folder: Path
    gate: OpenGate
    front: ProxyServer
    servers: list[asyncio.Server] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)
    """How many connections each upstream has accepted."""
    handling: "set[asyncio.Task[object]]" = field(default_factory=set)

    @property
    def port(self) -> int:
        return self.front.port

    async def serve(self, name: str, handler: Handler, *, bearer: str | None = None, use: WorkspaceUse = UNWATCHED) -> Address:
        """Serve an upstream on a Unix socket. `localhost` is the platform; any other name is a running workspace."""
        path = self.folder / name
        self.servers.append(await asyncio.start_unix_server(self._minding(name, handler), path))
        address = Address(unix_path=str(path))
        self.gate.verdicts[name] = passing(address, to_workspace=name != "localhost", bearer=bearer, use=use)
        return address

    async def serve_tcp(self, name: str, handler: Handler) -> None:
        server = await asyncio.start_server(self._minding(name, handler), "127.0.0.1", 0)
        self.servers.append(server)
        self.gate.verdicts[name] = passing(Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1]))

    def _minding(self, name: str, handler: Handler) -> Handler:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted[name] = self.accepted.get(name, 0) + 1
            task = asyncio.current_task()
            assert task is not None
            self.handling.add(task)
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
                self.handling.discard(task)

        return handle

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, *lines: str | bytes, body: bytes = b"", target: str = "GET / HTTP/1.1") -> "Answer":
        """Send one request on one connection; return the whole response until the connection ended."""
        return await self.send_raw(made(target, *lines, "Connection: close") + body)

    async def send_raw(self, raw: bytes) -> "Answer":
        reader, writer = await self.open()
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(raw)
                with suppress(ConnectionError):
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


def made(target: str, *lines: str | bytes) -> bytes:
    encoded = (line if isinstance(line, bytes) else line.encode() for line in (target, *lines))
    return b"\r\n".join((*encoded, b"", b""))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one response with a length, on a connection that stays open."""
    async with asyncio.timeout(PATIENCE_S):
        answer = Answer.read(await read_head(reader))
        body = await reader.readexactly(int(answer.headers.get("content-length", "0")))
        return Answer(answer.status, answer.headers, body)


async def echo_heads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with the received head, and keep the connection."""
    while True:
        got = await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(got), got))
        await writer.drain()


# All timeouts are a hundred times shorter, so that tests do not wait.
HASTY = ProxyTimeouts(
    head_s=0.2, idle_s=0.2, body_s=0.2, answer_s=0.2, upgrade_s=0.2, slow_s=0.2, half_closed_s=0.2, linger_s=0.1, look_s=0.02
)


@asynccontextmanager
async def staged(
    folder: Path,
    *,
    patience: ProxyTimeouts = ProxyTimeouts(),
    trusted: tuple[str, ...] = (),
    limits: ConnectionLimits = UNLIMITED,
) -> AsyncIterator[Stage]:
    gate = OpenGate()
    front = ProxyServer(gate, port=0, hosts=LOOPBACK, trusted=trusted, patience=patience, limits=limits)
    await front.start()
    stage = Stage(folder, gate, front)
    try:
        yield stage
    finally:
        await front.stop(grace_s=0)
        for server in stage.servers:
            server.close()
        # Upstream handlers see the end of their connections; those that do not are canceled before the loop closes.
        if stage.handling:
            await asyncio.wait(stage.handling, timeout=0.05)
        for task in stage.handling:
            task.cancel()
        await asyncio.gather(*stage.handling, return_exceptions=True)
        assert not stage.failures
