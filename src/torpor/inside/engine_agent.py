"""Supervise a workspace's program inside a container of an engine, after it has started.

The container starts an agent and nothing else, so a container that was created too late runs no program of a user. The
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

Before there are orders (`first_orders`), only `orders`, `state`, `environment` and `stop` are answered. While the container
ends, only requests about its state and its log are. Every other request is refused by closing the connection.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
from typing import Any

from torpor.inside import out_of_memory, process_activity, program_end
from torpor.inside.agent import ChildProcesses, control, end_everything, handle_request, serve, splice
from torpor.inside.bridge import Bridge
from torpor.inside.control_frames import NO, OUTPUT, YES, frame
from torpor.inside.first_orders import StopRequest, TakenOrders
from torpor.inside.program_log import ProgramLog
from torpor.inside.proven_connection import accept_channel

LAST_LINES = 1000
FAREWELL_S = 2.0


class EngineAgent:
    def __init__(self, key: bytes, taken: TakenOrders) -> None:
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._log = ProgramLog(taken.output)
        self._bridge = Bridge()
        self._bridge.listen()
        self._orders = taken.begun.orders
        self._grace_s = taken.grace_s
        self._is_ending = False
        self._program: asyncio.Future[int] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[bytes] = self._loop.create_future()
        """The last output, after everything has ended."""
        self._answering = 0
        self._children = ChildProcesses(taken.begun)
        self._loop.add_signal_handler(signal.SIGCHLD, self._children.reap)
        self._children.adopt(taken.begun.program).add_done_callback(lambda ended: self._program.set_result(ended.result()))
        self._children.reap()  # the program may have ended before the signal handler existed

    async def run(self, server: socket.socket, stop: StopRequest) -> int:
        """Serve until the program ends, or SIGTERM. Return the exit code."""
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        if stop.has_come:
            self._stop()
        serving = self._loop.create_task(serve(server, self._serve))
        over: list[asyncio.Future[Any]] = [self._program, self._stopped]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        # Controllers still ask for its state: a container that does not answer would be removed before its program has saved.
        self._is_ending = True
        has_ended = self._program.done()
        await end_everything(self._children, self._program, 0.0 if has_ended else self._grace_s)
        exit_code = self._program.result() if has_ended else 128 + signal.SIGTERM
        self._log.finish()
        if exit_code == 128 + signal.SIGKILL and out_of_memory.processes_ended():
            self._log.append(out_of_memory.SENTENCE.encode())
            self._log.finish()
        last_output = self._log.tail(LAST_LINES)
        if has_ended:
            self._log.append(program_end.line(exit_code))
            self._log.finish()
        await self._say_farewell(last_output)
        serving.cancel()
        return exit_code

    async def _say_farewell(self, last_output: bytes) -> None:
        """Send the last output to the clients that asked for the stop."""
        self._ended.set_result(last_output)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self._answering:
                    await asyncio.sleep(0.005)

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wanted = await accept_channel(connection, self._key)
        if wanted is None:
            return
        if wanted == "control":
            await control(connection, self._handle)
        elif self._is_ending:
            connection.close()
        elif wanted == "program":
            await splice(connection, self._bridge, self._orders.socket or self._orders.port)
        elif wanted.isdecimal() and 0 < int(wanted) < 1 << 16:
            await splice(connection, self._bridge, int(wanted))
        else:
            connection.close()

    async def _handle(self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match request:
            case {"do": "orders"}:
                writer.write(frame(NO, b"this container already has its orders"))
            case {"do": "state"}:
                writer.write(frame(YES))
            case {"do": "log", "tail": int(lines)}:
                writer.write(frame(OUTPUT, self._log.tail(lines)))
            case {"do": "append_log", "lines": str(lines)}:
                self._log.append(lines.encode("utf-8", "surrogateescape"))
                writer.write(frame(YES))
            case {"do": "probe"} if self._is_ending and self._stopped.done():
                writer.write(frame(YES))  # being stopped is no fault of the program: it counts as ready until it has ended
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
            case _ if not self._is_ending:
                await handle_request(self._orders, self._children, request, reader, writer)
            case _:
                pass


def measure() -> dict[str, Any]:
    """Of all processes of this container. The agent's CPU time includes that of all processes that have ended."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    cpu_s, foregrounds = process_activity.cpu_and_foregrounds(pids)
    return {"cpu_s": cpu_s, "memory_bytes": process_activity.resident_bytes(pids), "foregrounds": foregrounds}


def raise_open_files() -> None:
    """The bridge has two open files for each connection."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_agent(server: socket.socket, key: bytes, taken: TakenOrders, stop: StopRequest) -> int:
    raise_open_files()

    async def run() -> int:
        return await EngineAgent(key, taken).run(server, stop)

    return asyncio.run(run())
