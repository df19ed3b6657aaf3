"""Serve the ports of the fake engine's containers.

Every port of every running container answers. A connection begins with a line: the workspace's id, a space, and a port,
`program` or `agent`. It ends with its container.

- HTTP/1.1: the response to a request with a body is that body; otherwise it is the request as JSON.
- A WebSocket echoes its messages.
- The agent starts a `FakeShell` or a `FakeCommand`, in the frames of `torpor.inside.agent`.
"""

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.utils import accept_key

from torpor.domain.errors import TorporError
from torpor.inside.agent import read_frame
from torpor.inside.control_frames import ERRORS, EXIT, INPUT, OUTPUT, REQUEST, SIGNAL, SIZE, TAKEN, frame
from torpor.ports import RunningCommand, Shell, Stream, TerminalSize
from torpor.testing.fake_command import FakeCommand
from torpor.testing.fake_runtime import FakeContainer, FakeRuntime, FakeWorld

PROGRAM, AGENT = "program", "agent"
HANGS_UP_S = 10.0
"""How long a client may take to close the connection after it got the exit code."""
NAMED_WITHIN_S = 10.0
LOOK_S = 0.05
"""How long a connection may remain after its container has ended."""
CHUNK = 1 << 16
BACKLOG = 4096


def programs_path(engine: Path) -> Path:
    """Beside the engine's own socket."""
    return engine.with_name(f"{engine.name}.programs")


def preamble(workspace_id: str, what: int | str) -> bytes:
    return f"{workspace_id} {what}\n".encode()


class FakePrograms:
    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._runtime = FakeRuntime(world)
        self._open: dict[asyncio.Task[None], tuple[str, FakeContainer]] = {}

    async def serve(self, path: Path) -> asyncio.Server:
        return await asyncio.start_unix_server(self._connected, path, backlog=BACKLOG)

    async def cut_off(self) -> None:
        """Close connections to containers that have ended, until cancelled."""
        try:
            while True:
                for conversation, (workspace_id, held) in list(self._open.items()):
                    if self._running(workspace_id) is not held:
                        conversation.cancel()
                await asyncio.sleep(LOOK_S)
        finally:
            for conversation in self._open:
                conversation.cancel()

    def _running(self, workspace_id: str) -> FakeContainer | None:
        held = self._world.containers.get(workspace_id)
        return held if held is not None and held.ended is None else None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A separate task, so that cancelling it ends only this connection.
        conversation = asyncio.ensure_future(self._converse(reader, writer))
        with contextlib.suppress(asyncio.CancelledError):
            await conversation

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(NAMED_WITHIN_S):
                workspace_id, what = (await reader.readline()).decode().split()
            held = self._running(workspace_id)
            if held is None or (what != AGENT and not held.ready):
                return
            self._open[task] = workspace_id, held
            if what == AGENT:
                await _agent(self._runtime, workspace_id, reader, writer)
            else:
                await _http(workspace_id, what, reader, writer)
        except (OSError, ValueError, EOFError, TorporError, HttpParserError):
            pass  # the client has ended, or does not use this protocol
        finally:
            self._open.pop(task, None)
            writer.close()


# ── HTTP and WebSockets ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Request:
    """The callbacks of the HTTP parser, for one request."""

    target: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    expects_continue: bool = False
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.expects_continue = (self.header("expect") or "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True

    def header(self, wanted: str) -> str | None:
        return next((value for name, value in self.headers if name.lower() == wanted), None)


async def _http(workspace_id: str, port: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request after the other."""
    while True:
        request = _Request()
        parser = HttpRequestParser(request)
        while not request.is_complete:
            data = await reader.read(CHUNK)
            if not data:
                return
            try:
                parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                await _echo(request, data[upgrade.args[0] :], reader, writer)
                return
            if request.expects_continue:
                request.expects_continue = False
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        method = parser.get_method().decode()
        asked = {"workspace": workspace_id, "port": port, "method": method, "target": request.target.decode("latin-1")}
        body = bytes(request.body) or json.dumps({**asked, "headers": request.headers}).encode()
        kind = "application/octet-stream" if request.body else "application/json"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        ending = "\r\n" if parser.should_keep_alive() else "Connection: close\r\n\r\n"
        writer.write((head + ending).encode() + (b"" if method == "HEAD" else body))
        await writer.drain()
        if not parser.should_keep_alive():
            return


async def _echo(request: _Request, early: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    key = request.header("sec-websocket-key")
    if key is None:
        raise ValueError("an upgrade to another protocol than WebSocket")
    accept = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept_key(key)}\r\n"
    writer.write(f"HTTP/1.1 101 Switching Protocols\r\n{accept}\r\n".encode())
    protocol = Protocol(Side.SERVER, state=State.OPEN)
    protocol.receive_data(early)
    while True:
        for event in protocol.events_received():
            if isinstance(event, Frame):
                _send_back(protocol, event)
        writer.write(b"".join(protocol.data_to_send()))
        await writer.drain()
        if protocol.close_expected():
            return
        if data := await reader.read(CHUNK):
            protocol.receive_data(data)
        else:
            protocol.receive_eof()


def _send_back(protocol: Protocol, received: Frame) -> None:
    """Echo data frames; the protocol answers pings and close frames itself."""
    if received.opcode is Opcode.TEXT:
        protocol.send_text(received.data, received.fin)
    elif received.opcode is Opcode.BINARY:
        protocol.send_binary(received.data, received.fin)
    elif received.opcode is Opcode.CONT:
        protocol.send_continuation(received.data, received.fin)


# ── shells and commands ───────────────────────────────────────────────────────────────────────────────────────────────


async def _agent(runtime: FakeRuntime, workspace_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    kind, payload = await read_frame(reader)
    asked = json.loads(payload) if kind == REQUEST else {}
    size = TerminalSize(*asked["terminal"]) if "terminal" in asked else None
    if asked.get("do") == "execute":
        command = await runtime.start_command(workspace_id, asked["argv"], terminal=size)
        await _converse(command, _show_command(command, writer), reader, writer)
    else:
        assert size is not None
        shell = await runtime.shell(workspace_id, columns=size.columns, rows=size.rows)
        await _converse(shell, _show_shell(shell, writer), reader, writer)


async def _show_shell(shell: Shell, writer: asyncio.StreamWriter) -> None:
    while shown := await shell.read():
        writer.write(frame(OUTPUT, shown))
        await writer.drain()


async def _show_command(command: RunningCommand, writer: asyncio.StreamWriter) -> None:
    while (output := await command.read()) is not None:
        writer.write(frame(OUTPUT if output.stream is Stream.STDOUT else ERRORS, output.data))
        await writer.drain()


async def _converse(
    held: Shell | RunningCommand,
    showing_it: Coroutine[None, None, None],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    inputs: asyncio.Queue[bytes] = asyncio.Queue()

    async def show() -> None:
        await showing_it
        writer.write(frame(EXIT, str(await held.exit_code()).encode()))
        await writer.drain()

    async def feed() -> None:
        while True:
            data = await inputs.get()
            if data:
                await held.write(data)
                writer.write(frame(TAKEN, str(len(data)).encode()))
            elif isinstance(held, FakeCommand):
                await held.end_input()

    async def listen() -> None:
        while True:
            kind, data = await read_frame(reader)
            if kind == INPUT:
                inputs.put_nowait(data)
            elif kind == SIGNAL and isinstance(held, FakeCommand):
                await held.send_signal(data.decode())
            elif kind == SIZE:
                columns, rows = data.split()
                await held.resize(columns=int(columns), rows=int(rows))

    showing, feeding, listening = (asyncio.ensure_future(one()) for one in (show, feed, listen))
    try:
        await asyncio.wait([showing, listening], return_when=asyncio.FIRST_COMPLETED)
        # Closing while the client still writes would discard answers that it has not read.
        await asyncio.wait([listening], timeout=HANGS_UP_S)
    finally:
        await held.close()
        for task in (showing, feeding, listening):
            task.cancel()
        await asyncio.gather(showing, feeding, listening, return_exceptions=True)
