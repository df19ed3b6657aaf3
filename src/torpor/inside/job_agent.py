"""Wait in a pod for the orders of a job at a home, then run it.

Run by file path with one argument, JSON (`JobPreparation`). The volume is prepared and checked first (`home_volume`). The agent
listens on one TCP port; both ends prove that they know the key of this pod (`proof`). The channel `control` has two requests,
in frames as for any agent (`agent`):

  {"do": "orders", "argv": [...], "stdin": "base64"} starts the job, once: Y, or N with the reason
  {"do": "state"}: Y if there are orders, N if not

The output of the job is that of the container. Its last result or error is also the container's termination message, so that it
is known as long as the pod exists, also without the node. An agent that gets no orders ends.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

ORDERS_WITHIN_S = 900.0
TERMINATION_LOG = Path("/dev/termination-log")
LONGEST_MESSAGE = 4096
"""Kubernetes keeps no more."""
LONGEST_LINE = 16 << 20
NO_ORDERS = 75


class JobPreparation(NamedTuple):
    volume: str
    birth: str
    is_made: bool
    key: str
    """The file with the key and the port, see `first_orders.Greeting`."""

    def argument(self) -> str:
        return json.dumps(self._asdict())


class JobAgent:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._orders: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._job: asyncio.subprocess.Process | None = None

    async def run(self, port: int) -> int:
        from torpor.inside.agent import serve
        from torpor.inside.first_orders import listening

        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        serving = self._loop.create_task(serve(listening(port), self._serve))
        try:
            async with asyncio.timeout(ORDERS_WITHIN_S):
                orders = await self._orders
        except TimeoutError:
            say(f"no orders arrived within {ORDERS_WITHIN_S:g} s")
            return NO_ORDERS
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
        code = await self._run_job(orders)
        serving.cancel()
        return code if code >= 0 else 128 - code

    def _stop(self) -> None:
        if self._job is not None:
            with contextlib.suppress(ProcessLookupError):
                self._job.terminate()
        else:
            self._orders.cancel()

    async def _serve(self, connection: socket.socket) -> None:
        from torpor.inside.agent import control
        from torpor.inside.proven_connection import accept_channel

        wanted = await accept_channel(connection, self._key)
        if wanted == "control":
            await control(connection, self._handle)
        else:
            connection.close()

    async def _handle(self, request: dict[str, Any], _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from torpor.inside.control_frames import NO, YES, frame

        match request:
            case {"do": "state"}:
                writer.write(frame(YES if self._orders.done() else NO))
            case {"do": "orders", "argv": list(), "stdin": str()} if not self._orders.done():
                self._orders.set_result(request)
                writer.write(frame(YES))
            case {"do": "orders"}:
                writer.write(frame(NO, b"this pod already has its orders"))
            case _:
                pass

    async def _run_job(self, orders: dict[str, Any]) -> int:
        pipe = asyncio.subprocess.PIPE
        job = await asyncio.create_subprocess_exec(*orders["argv"], stdin=pipe, stdout=pipe, limit=LONGEST_LINE)
        self._job = job
        feeding = asyncio.ensure_future(feed(job, base64.b64decode(orders["stdin"])))
        assert job.stdout is not None
        while line := await read_line(job.stdout):
            os.write(1, line)
            note_outcome(line)
        await feeding
        return await job.wait()


async def read_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than the limit: the output of a library
        return b"\n"


async def feed(job: asyncio.subprocess.Process, data: bytes) -> None:
    assert job.stdin is not None
    with contextlib.suppress(OSError):  # the job does not read it
        job.stdin.write(data)
        await job.stdin.drain()
    job.stdin.close()


def note_outcome(line: bytes) -> None:
    if line.startswith((b'{"result"', b'{"error"')) and len(line) <= LONGEST_MESSAGE:
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_bytes(line)


def say(message: str) -> None:
    """An error of the agent itself, in the form of a job's."""
    print(json.dumps({"error": {"code": "INTERNAL", "message": message}}), flush=True)


def refuse(message: str) -> int:
    line = json.dumps({"error": {"code": "VOLUME_NOT_READY", "message": message}}).encode() + b"\n"
    os.write(1, line)
    note_outcome(line)
    return 1


def main(argument: str) -> int:
    from torpor.inside.first_orders import read_greeting_file
    from torpor.inside.home_volume import WrongVolume, prepare_volume

    # The first process of a container ignores signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    wanted = JobPreparation(**json.loads(argument))
    try:
        prepare_volume(Path(wanted.volume), wanted.birth, is_made=wanted.is_made)
    except WrongVolume as wrong:
        return refuse(str(wrong))
    except OSError as error:
        return refuse(f"the volume cannot be prepared: {error}")
    greeting = read_greeting_file(wanted.key)

    async def run() -> int:
        return await JobAgent(bytes.fromhex(greeting.key)).run(greeting.port)

    return asyncio.run(run())


if __name__ == "__main__":
    # The folder of `torpor.inside`, after the standard library, so that no module there is replaced.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    sys.exit(main(sys.argv[1]))
