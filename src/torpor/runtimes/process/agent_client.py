"""How does Torpor speak with the agent inside a container? The frames are described in `torpor.inside.agent`."""

import asyncio
import contextlib
import json
from collections.abc import Sequence

from torpor.domain.errors import Code, Failed, Refused
from torpor.inside.agent import ERRORS, EXIT, INPUT, OUTPUT, REQUEST, YES, frame, read_frame
from torpor.ports import Executed, Shell
from torpor.runtimes.framed_shell import FramedShell

CHUNK = 1 << 16


async def port_answers(control: str, within_s: float, *, waits_s: float = 0) -> bool:
    """Now, or within `waits_s`; asking takes at most `within_s` besides. Whatever goes wrong, it does not answer."""
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


async def execute(control: str, command: Sequence[str], stdin: bytes, *, most_bytes: int) -> Executed:
    """Hanging up ends the command, so a cancelled call leaves nothing running."""
    try:
        reader, writer = await asyncio.open_unix_connection(control)
    except OSError as error:
        raise Refused("not_running", "the workspace's container is not running") from error
    feeding = asyncio.ensure_future(_feed(writer, list(command), stdin))
    said = {OUTPUT: bytearray(), ERRORS: bytearray()}
    try:
        while True:
            kind, payload = await read_frame(reader)
            if kind == EXIT:
                return Executed(_exit_code(payload), bytes(said[OUTPUT]), bytes(said[ERRORS]))
            if kind in said:
                said[kind] += payload
                if len(said[kind]) > most_bytes:
                    raise Refused("output_too_large", f"the command wrote more than {most_bytes} bytes; it was ended")
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Refused("not_running", "the workspace's container ended before the command did") from error
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        writer.close()


async def shell(control: str, *, columns: int, rows: int) -> Shell:
    try:
        reader, writer = await asyncio.open_unix_connection(control)
    except OSError as error:
        raise Refused("not_running", "the workspace's container is not running") from error
    return FramedShell(reader, writer, columns=columns, rows=rows)


def _exit_code(payload: bytes) -> int:
    try:
        return int(payload)
    except ValueError as error:  # whoever answers there runs inside, and may have become something else than our agent
        raise Failed(Code.INTERNAL, f"the workspace's agent told no exit code but {payload[:40]!r}") from error


async def _feed(writer: asyncio.StreamWriter, command: list[str], stdin: bytes) -> None:
    writer.write(_request({"do": "execute", "argv": command}))
    for start in range(0, len(stdin), CHUNK):
        writer.write(frame(INPUT, stdin[start : start + CHUNK]))
        await writer.drain()
    writer.write(frame(INPUT))
    await writer.drain()


def _request(what: dict[str, object]) -> bytes:
    return frame(REQUEST, json.dumps(what).encode())
