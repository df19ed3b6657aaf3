"""Send requests to the agent inside a container. `torpor.inside.agent` describes the frames."""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence

from torpor.domain.errors import Refused
from torpor.inside.agent import read_frame
from torpor.inside.control_frames import REQUEST, YES, frame
from torpor.inside.proven_connection import connect_with_proof
from torpor.ports import Address, ExecResult, RunningCommand, Shell, Stream, TerminalSize
from torpor.runtimes.framed_command import FramedCommand, FramedShell

CONNECT_S = 10.0
EXECUTE_OUTPUT_BYTES = 1 << 20
"""The limit of each stream of `execute`, which keeps the output in memory. A command that writes more is ended."""


async def open_agent(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to an agent, after both ends have proved who they are, and with the preamble of the address."""
    if address.unix_path is not None:
        reader, writer = await asyncio.open_unix_connection(address.unix_path)
    else:
        assert address.host is not None
        assert address.port is not None
        connected = await connect_with_proof(address.host, address.port, address.key)
        reader, writer = await asyncio.open_connection(sock=connected)
    if address.preamble:
        writer.write(address.preamble)
    return reader, writer


async def port_answers(control: Address, within_s: float, *, waits_s: float = 0) -> bool:
    """Whether the program's port answers within `waits_s`; the request may take `within_s` more. False on any error."""
    with contextlib.suppress(OSError, RuntimeError):
        kind, _ = await ask(control, {"do": "probe", "within_s": waits_s}, waits_s + within_s)
        return kind == YES
    return False


async def ask(control: Address, request: Mapping[str, object], within_s: float) -> tuple[bytes, bytes]:
    """The kind and payload of the answer to one request. OSError if the agent cannot be reached or does not answer."""
    async with asyncio.timeout(within_s):
        reader, writer = await open_agent(control)
        try:
            writer.write(_request(request))
            return await read_frame(reader)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the agent closed the connection without an answer") from error
        finally:
            writer.close()


async def log(control: Address, tail: int, within_s: float) -> bytes:
    """The last lines of the program's output. OSError as for `ask`."""
    _, lines = await ask(control, {"do": "log", "tail": tail}, within_s)
    return lines


async def execute(
    control: Address, command: Sequence[str], stdin: bytes, *, most_bytes: int = EXECUTE_OUTPUT_BYTES
) -> ExecResult:
    """Run a command and collect its output. Closing the connection ends it, also if the call is cancelled."""
    running = await start_command(control, command)
    feeding = asyncio.ensure_future(_feed(running, stdin))
    said = {stream: bytearray() for stream in Stream}
    try:
        while (output := await running.read()) is not None:
            said[output.stream] += output.data
            if len(said[output.stream]) > most_bytes:
                raise Refused("output_too_large", f"the command wrote more than {most_bytes} bytes; it was ended")
        return ExecResult(await running.exit_code(), bytes(said[Stream.STDOUT]), bytes(said[Stream.STDERR]))
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await running.close()


async def start_command(control: Address, command: Sequence[str], *, terminal: TerminalSize | None = None) -> RunningCommand:
    return FramedCommand(*await _connect(control), command, terminal=terminal)


async def shell(control: Address, *, columns: int, rows: int) -> Shell:
    return FramedShell(*await _connect(control), columns=columns, rows=rows)


async def _connect(control: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await open_agent(control)
    except OSError as error:
        raise Refused("not_running", "the workspace's container is not running") from error


async def _feed(running: RunningCommand, stdin: bytes) -> None:
    await running.write(stdin)
    await running.end_input()


def _request(what: Mapping[str, object]) -> bytes:
    return frame(REQUEST, json.dumps(what).encode())
