"""Send requests to the agent inside a container. `torpor.inside.agent` describes the frames."""

import asyncio
import contextlib
import json
from collections.abc import Sequence

from torpor.domain.errors import Refused
from torpor.inside.agent import REQUEST, YES, frame, read_frame
from torpor.ports import ExecResult, RunningCommand, Shell, Stream, TerminalSize
from torpor.runtimes.framed_command import FramedCommand, FramedShell


async def port_answers(control: str, within_s: float, *, waits_s: float = 0) -> bool:
    """Whether the program's port answers within `waits_s`; the request may take `within_s` more. False on any error."""
    with contextlib.suppress(OSError, RuntimeError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        return await asyncio.wait_for(_probe(control, waits_s), waits_s + within_s)
    return False


async def _probe(control: str, waits_s: float) -> bool:
    reader, writer = await asyncio.open_unix_connection(control)
    try:
        writer.write(_request({"do": "probe", "within_s": waits_s}))
        kind, _ = await read_frame(reader)
    finally:
        writer.close()
    return kind == YES


async def execute(control: str, command: Sequence[str], stdin: bytes, *, most_bytes: int) -> ExecResult:
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


async def start_command(control: str, command: Sequence[str], *, terminal: TerminalSize | None = None) -> RunningCommand:
    return FramedCommand(*await _connect(control), command, terminal=terminal)


async def shell(control: str, *, columns: int, rows: int) -> Shell:
    return FramedShell(*await _connect(control), columns=columns, rows=rows)


async def _connect(control: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(control)
    except OSError as error:
        raise Refused("not_running", "the workspace's container is not running") from error


async def _feed(running: RunningCommand, stdin: bytes) -> None:
    await running.write(stdin)
    await running.end_input()


def _request(what: dict[str, object]) -> bytes:
    return frame(REQUEST, json.dumps(what).encode())
