"""Open and close pipes on the event loop while threads write files and read them back; print what went wrong.

Run as `python -m tests.runtimes.descriptor_race LOOP WAY SECONDS`. A descriptor that is closed twice hits a file that a
thread has opened in between: its write fails with EBADF, or its content ends up in another file.
This is a separate program because such an error could affect any file of the process.
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import uvloop

from torpor.runtimes.process import pipes

THREADS = 4
PIPES_AT_ONCE = 16

Connect = Callable[[IO[bytes]], Awaitable[asyncio.BaseTransport]]


@dataclass
class Tally:
    pipes: int = 0
    writes: int = 0
    bad_descriptors: int = 0
    wrong_contents: int = 0


async def by_pipes(pipe: IO[bytes]) -> asyncio.BaseTransport:
    _, transport = await pipes.reader(pipe)
    return transport


async def by_the_loop(pipe: IO[bytes]) -> asyncio.BaseTransport:
    """The loop's own way, which `pipes` avoids."""
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, pipe)
    return transport


WAYS: dict[str, Connect] = {"pipes": by_pipes, "loop": by_the_loop}
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def write_and_read_back(folder: Path, number: int, stop: threading.Event, tally: Tally) -> None:
    turn = 0
    while not stop.is_set():
        turn += 1
        path, content = folder / f"{number}", f"thread {number}, turn {turn}\n".encode()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(descriptor, content)
            os.close(descriptor)
            if path.read_bytes() != content:
                tally.wrong_contents += 1
        except OSError:
            tally.bad_descriptors += 1
        tally.writes += 1


async def open_and_close(connect: Connect, seconds: float, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        ends = [os.pipe() for _ in range(PIPES_AT_ONCE)]
        transports = [await connect(os.fdopen(end, "rb", 0)) for end, _ in ends]
        for transport in transports:
            transport.close()
        await asyncio.sleep(0)
        for _, end in ends:
            os.close(end)
        tally.pipes += PIPES_AT_ONCE


def main(loop: str, way: str, seconds: str) -> None:
    stop, tallies = threading.Event(), [Tally() for _ in range(THREADS + 1)]
    with tempfile.TemporaryDirectory() as folder:
        threads = [
            threading.Thread(target=write_and_read_back, args=(Path(folder), number, stop, tallies[number]))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        try:
            with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                runner.run(open_and_close(WAYS[way], float(seconds), tallies[-1]))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    print(json.dumps({name: sum(getattr(tally, name) for tally in tallies) for name in asdict(tallies[0])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
