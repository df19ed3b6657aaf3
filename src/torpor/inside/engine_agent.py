"""Wait inside a container of an engine for orders, then supervise the workspace's program.

The container starts this agent and nothing else, so a container that was created too late runs no program of a user. The
first line on standard input is the container's key (`Greeting`): the configuration of the container contains no secret. If the
agent is started with an argument, that is a file with this line, which the agent removes. It listens on one TCP port. On each
connection both ends prove that they know the key (`proof`), and the client names a channel:

- `control`: one request in frames, as for any agent (`agent`), and seven more:
  {"do": "orders", ...} starts the program, once: Y, or N with the reason
  {"do": "state"}: Y if there are orders, N if not
  {"do": "log", "tail": 10}: one frame O with the last lines of the program's output
  {"do": "append_log", "lines": "..."}: adds lines to it, then Y
  {"do": "measure"}: one frame O with JSON: CPU seconds, memory, and the foreground commands of terminals
  {"do": "environment"}: one frame O with JSON: the variables of the container, those of its image among them
  {"do": "stop"}: end everything as on SIGTERM, then one frame O with the last output
- `program`: bytes for the program, or a port: bytes for this port of the container's loopback.

Before there are orders, every other request is refused by closing the connection.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

from torpor.inside import out_of_memory, process_activity
from torpor.inside.agent import (
    NO,
    OUTPUT,
    YES,
    ChildProcesses,
    control,
    end_everything,
    frame,
    handle_request,
    serve,
    splice,
)
from torpor.inside.bridge import Bridge
from torpor.inside.program import CHUNK, COULD_NOT_START, AgentOptions, StartedProgram, start_program
from torpor.inside.program_log import ProgramLog
from torpor.inside.proof import CHANNEL_BYTES, ProofFailed, prove_as_agent, read_exactly

PROVED_WITHIN_S = 10.0
BACKLOG = 128
LONGEST_GREETING = 4096
SET_DUMPABLE = 4
DISCARD_PORT = 9
LAST_LINES = 1000
FAREWELL_S = 2.0


class Greeting(NamedTuple):
    """The first line on standard input."""

    key: str
    """In hexadecimal digits."""
    port: int

    def line(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


def read_greeting() -> Greeting:
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_GREETING:
        data = os.read(0, CHUNK)
        if not data:
            raise SystemExit("the engine did not pass the key of this container on to its agent")
        line += data
    return Greeting(**json.loads(line))


def read_greeting_file(file: Path) -> Greeting:
    return Greeting(**json.loads(file.read_bytes()))


class EngineAgent:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._log = ProgramLog()
        self._bridge = Bridge()
        self._bridge.listen()
        self._begun: StartedProgram | None = None
        self._children: ChildProcesses | None = None
        self._grace_s = 0.0
        self._program: asyncio.Future[int] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[bytes] = self._loop.create_future()
        """The last output, after everything has ended."""
        self._answering = 0

    async def run(self, port: int) -> int:
        """Serve until the program ends, or SIGTERM. Return the exit code."""
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        serving = self._loop.create_task(serve(listening(port), self._serve))
        over: list[asyncio.Future[Any]] = [self._program, self._stopped]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if self._children is not None:
            await end_everything(self._children, self._program, self._grace_s if self._stopped.done() else 0.0)
        exit_code = self._program.result() if self._program.done() else 128 + signal.SIGTERM
        self._log.finish()
        if exit_code == 128 + signal.SIGKILL and out_of_memory.processes_ended():
            self._log.append(out_of_memory.SENTENCE.encode())
            self._log.finish()
        await self._say_farewell()
        return exit_code

    async def _say_farewell(self) -> None:
        """Send the last output to the clients that asked for the stop."""
        self._ended.set_result(self._log.tail(LAST_LINES))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self._answering:
                    await asyncio.sleep(0.005)

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(PROVED_WITHIN_S):
                await prove_as_agent(connection, self._key)
                wanted = (await read_exactly(connection, CHANNEL_BYTES)).rstrip().decode()
        except (OSError, ValueError, ProofFailed):
            connection.close()
            return
        orders = self._begun.orders if self._begun is not None else None
        if wanted == "control":
            await control(connection, self._handle)
        elif orders is not None and wanted == "program":
            await splice(connection, self._bridge, orders.socket or orders.port)
        elif orders is not None and wanted.isdecimal() and 0 < int(wanted) < 1 << 16:
            await splice(connection, self._bridge, int(wanted))
        else:
            connection.close()

    async def _handle(self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match request:
            case {"do": "orders"}:
                refusal = self._begin(request)
                writer.write(frame(YES) if refusal is None else frame(NO, refusal.encode()))
            case {"do": "state"}:
                writer.write(frame(NO if self._begun is None else YES))
            case {"do": "log", "tail": int(lines)}:
                writer.write(frame(OUTPUT, self._log.tail(lines)))
            case {"do": "append_log", "lines": str(lines)}:
                self._log.append(lines.encode("utf-8", "surrogateescape"))
                writer.write(frame(YES))
            case {"do": "measure"}:
                writer.write(frame(OUTPUT, json.dumps(measure()).encode()))
            case {"do": "environment"}:
                writer.write(frame(OUTPUT, json.dumps(dict(os.environ)).encode()))
            case {"do": "stop"}:
                self._answering += 1
                try:
                    self._stop()
                    writer.write(frame(OUTPUT, await asyncio.shield(self._ended)))
                    await writer.drain()
                finally:
                    self._answering -= 1
            case _ if self._begun is not None and self._children is not None:
                await handle_request(self._begun.orders, self._children, request, reader, writer)
            case _:
                pass

    def _begin(self, request: dict[str, Any]) -> str | None:
        """Start the program; return why it is refused, or None."""
        if self._begun is not None or self._program.done():
            return "this container already has its orders"
        if refusal := wrong_marker(request["marker_file"], request["marker"]):
            return refusal
        orders = AgentOptions.from_json(request["options"])
        self._grace_s = float(request["grace_s"])
        try:
            self._begun = begun = start_program(orders, self._log.theirs)
        except SystemExit:  # its reason was written to standard error
            self._program.set_result(COULD_NOT_START)
            return None
        finally:
            self._log.close_theirs()
        self._children = children = ChildProcesses(begun)
        raise_open_files()
        self._loop.add_signal_handler(signal.SIGCHLD, children.reap)
        children.adopt(begun.program).add_done_callback(lambda ended: self._program.set_result(ended.result()))
        children.reap()  # the program may have ended before the signal handler existed
        return None


def wrong_marker(path: str, expected: dict[str, Any]) -> str | None:
    """Why the volume is not the expected home; None if it is."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        return f"the marker of the mounted volume cannot be read: {path}: {error}"
    return None if found == expected else f"the mounted volume is another home: {path} says {found}, not {expected}"


def measure() -> dict[str, Any]:
    """Of all processes of this container. The agent's CPU time includes that of all processes that have ended."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    cpu_s, foregrounds = process_activity.cpu_and_foregrounds(pids)
    return {"cpu_s": cpu_s, "memory_bytes": process_activity.resident_bytes(pids), "foregrounds": foregrounds}


def raise_open_files() -> None:
    """The bridge has two open files for each connection."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listening(port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))  # noqa: S104 - the container's own network
    server.listen(BACKLOG)
    return server


def announce_address() -> None:
    """Send one packet to the gateway, so that it learns whose address this is now.

    Podman gives a new container the address of an earlier one with another hardware address. The machine would send packets
    for the agent to the earlier one for up to half a minute.
    """
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            _, destination, gateway, *_ = line.split()
            if int(destination, 16) == 0:
                address = socket.inet_ntoa(int(gateway, 16).to_bytes(4, sys.byteorder))
                sender.sendto(b"", (address, DISCARD_PORT))


def hide_memory() -> None:
    """The program runs as the same user, and must not read the key in the agent's memory."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


async def run_agent(greeting: Greeting) -> int:
    return await EngineAgent(bytes.fromhex(greeting.key)).run(greeting.port)


def main() -> None:
    os.dup2(1, 2)  # one stream, so that the log keeps the order of lines
    # The first process of a container ignores signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    announce_address()
    if len(sys.argv) > 1:
        file = Path(sys.argv[1])
        greeting = read_greeting_file(file)
        file.unlink()
    else:
        greeting = read_greeting()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    hide_memory()
    os._exit(asyncio.run(run_agent(greeting)))
