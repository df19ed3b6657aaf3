"""Start the engine: `python -m torpor.testing.fake_engine SOCKET`. Its state is lost when it ends."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torpor.domain.errors import Hopeless
from torpor.testing.fake_engine.engine import serve
from torpor.testing.fake_runtime import FakeWorld


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fake_engine", description="A fake container engine that keeps everything in memory.")
    parser.add_argument("socket", type=Path)
    parser.add_argument("--effects-s", type=float, default=0.0, help="the duration of every effect")
    parser.add_argument("--while-stdin", action="store_true", help="end when standard input is closed (the parent ended)")
    said = parser.parse_args(arguments)
    try:
        asyncio.run(_live(said.socket, FakeWorld(effects_s=said.effects_s), while_stdin=said.while_stdin))
    except Hopeless as error:
        print(f"fake_engine: {error.message}", file=sys.stderr)
        return 1
    return 0


async def _live(path: Path, world: FakeWorld, *, while_stdin: bool) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if while_stdin:
        loop.add_reader(0, lambda: None if os.read(0, 1024) else stop.set())
    await serve(world, path, stop, lambda: print(f"the fake engine is ready at {path}", flush=True))


if __name__ == "__main__":
    sys.exit(main())
