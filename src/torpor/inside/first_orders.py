"""Wait for the orders of a container and start its program, before the agent is loaded.

This module loads a third of what the agent (`engine_agent`) needs, and the program does not wait for the rest. It serves one
connection at a time, which is enough before there are orders: only controllers connect, and only to ask or to order.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any, NamedTuple, NoReturn

from torpor.inside.control_frames import HEAD_BYTES, NO, OUTPUT, REQUEST, YES, frame, parse_head
from torpor.inside.program import CHUNK, COULD_NOT_START, AgentOptions, StartedProgram, start_program
from torpor.inside.proof import CHANNEL_BYTES, NONCE_BYTES, PROOF_BYTES, ProofFailed, agent_proof, require_client

SERVED_WITHIN_S = 2.0
"""A controller that hangs delays the next one only for this long."""
BACKLOG = 128
LONGEST_GREETING = 4096
SET_DUMPABLE = 4
DISCARD_PORT = 9


class Greeting(NamedTuple):
    """The first line on standard input."""

    key: str
    """In hexadecimal digits."""
    port: int

    def line(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


class TakenOrders(NamedTuple):
    begun: StartedProgram
    output: int
    """The descriptor from which the agent reads the program's output."""
    grace_s: float


class StopRequest:
    """Remembers a SIGTERM that comes after the program has started and before the agent can stop it in order."""

    def __init__(self) -> None:
        self.has_come = False

    def remember(self) -> None:
        signal.signal(signal.SIGTERM, self._remember)

    def _remember(self, *_: object) -> None:
        self.has_come = True


def main() -> NoReturn:
    os.dup2(1, 2)  # one stream, so that the log keeps the order of lines
    # The first process of a container ignores signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    announce_address()
    greeting = read_greeting_file(sys.argv[1]) if len(sys.argv) > 1 else read_greeting()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    server, key, stop = listening(greeting.port), bytes.fromhex(greeting.key), StopRequest()
    hide_memory()
    taken = take_orders(server, key, stop)
    from torpor.inside.engine_agent import run_agent  # slow to load

    os._exit(run_agent(server, key, taken, stop))


# ── before the orders ─────────────────────────────────────────────────────────────────────────────────────────────────


def announce_address() -> None:
    """Send one packet to the gateway, so that it learns whose address this is now.

    Podman gives a new container the address of an earlier one with another hardware address. The machine would send packets
    for the agent to the earlier one for up to half a minute.
    """
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        with open("/proc/net/route") as routes:  # noqa: PTH123 - pathlib is slow to load
            lines = routes.read().splitlines()
        for line in lines[1:]:
            _, destination, gateway, *_ = line.split()
            if int(destination, 16) == 0:
                address = socket.inet_ntoa(int(gateway, 16).to_bytes(4, sys.byteorder))
                sender.sendto(b"", (address, DISCARD_PORT))


def read_greeting() -> Greeting:
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_GREETING:
        data = os.read(0, CHUNK)
        if not data:
            raise SystemExit("the engine did not pass the key of this container on to its agent")
        line += data
    return Greeting(**json.loads(line))


def read_greeting_file(path: str) -> Greeting:
    """The file with this line, which is removed: the program runs as the same user."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to load
        greeting = Greeting(**json.loads(file.read()))
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108
    return greeting


def listening(port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))  # noqa: S104 - the container's own network
    server.listen(BACKLOG)
    return server


def hide_memory() -> None:
    """The program runs as the same user, and must not read the key in the agent's memory."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


# ── the orders ────────────────────────────────────────────────────────────────────────────────────────────────────────


def take_orders(server: socket.socket, key: bytes, stop: StopRequest) -> TakenOrders:
    """Serve controllers until one of them has sent orders and the program has started."""
    taken = None
    while taken is None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            request = read_request(connection, key)
            match request:
                case {"do": "state"}:
                    connection.sendall(frame(NO))
                case {"do": "environment"}:
                    connection.sendall(frame(OUTPUT, json.dumps(dict(os.environ)).encode()))
                case {"do": "stop"}:
                    connection.sendall(frame(OUTPUT))
                    os._exit(128 + signal.SIGTERM)
                case {"do": "orders"} if refusal := wrong_marker(request["marker_file"], request["marker"]):
                    connection.sendall(frame(NO, refusal.encode()))
                case {"do": "orders"}:
                    taken = begin(request, stop)
                    connection.sendall(frame(YES))
    if isinstance(taken, SystemExit):  # its reason was written to standard error
        from torpor.inside import program_end  # slow to load

        os.write(1, program_end.line(COULD_NOT_START))
        os._exit(COULD_NOT_START)
    return taken


def begin(request: dict[str, Any], stop: StopRequest) -> TakenOrders | SystemExit:
    orders = AgentOptions.from_json(request["options"])
    ours, theirs = os.pipe()
    stop.remember()
    try:
        return TakenOrders(start_program(orders, theirs), ours, float(request["grace_s"]))
    except SystemExit as error:
        return error
    finally:
        os.close(theirs)


def read_request(connection: socket.socket, key: bytes) -> dict[str, Any]:
    """The request of a client that knows the key; empty for another channel than `control`."""
    until = time.monotonic() + SERVED_WITHIN_S
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs, own = read_exactly(connection, NONCE_BYTES, until), os.urandom(NONCE_BYTES)
    connection.sendall(own + agent_proof(key, theirs, own))
    require_client(key, theirs, own, read_exactly(connection, PROOF_BYTES, until))
    if read_exactly(connection, CHANNEL_BYTES, until).rstrip() != b"control":
        return {}
    head = parse_head(read_exactly(connection, HEAD_BYTES, until))
    if head is None or head[0] != REQUEST:
        return {}
    request: dict[str, Any] = json.loads(read_exactly(connection, head[1], until))
    return request


def read_exactly(connection: socket.socket, size: int, until: float) -> bytes:
    read = b""
    while len(read) < size:
        connection.settimeout(max(0.001, until - time.monotonic()))
        data = connection.recv(size - len(read))
        if not data:
            raise ProofFailed("the connection was closed before the request was complete")
        read += data
    return read


def wrong_marker(path: str, expected: dict[str, Any]) -> str | None:
    """Why the volume is not the expected home; None if it is."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to load
            found = json.loads(file.read())
    except (OSError, ValueError) as error:
        return f"the marker of the mounted volume cannot be read: {path}: {error}"
    return None if found == expected else f"the mounted volume is another home: {path} says {found}, not {expected}"
