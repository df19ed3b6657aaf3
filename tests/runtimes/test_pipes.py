"""Every pipe of the event loop is closed exactly once, on both loops."""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import torpor
from tests.runtimes.descriptor_race import LOOPS
from tests.support.strace import failed_closes, strace
from torpor.runtimes.process import pipes

RACE_S = 2.0
DELAY_US = 300
SOURCE = Path(torpor.__file__).parent

both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))


def race(loop: str, way: str, before: tuple[str, ...]) -> dict[str, int]:
    argv = (*before, sys.executable, "-m", "tests.runtimes.descriptor_race", loop, way, str(RACE_S))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout)
    assert counted["pipes"] > 0
    assert counted["writes"] > 0
    return counted


@both_loops
def test_threads_keep_their_files_while_pipes_are_closed(tmp_path: Path, loop: str) -> None:
    counted = race(loop, "pipes", strace(tmp_path / "closes", delay_us=DELAY_US))
    assert (counted["bad_descriptors"], counted["wrong_contents"]) == (0, 0), counted
    assert failed_closes(tmp_path / "closes") == []


def test_uvloop_closes_a_pipe_twice(tmp_path: Path) -> None:
    """The reason for `pipes`. If this test fails, uvloop has changed, and `pipes` must change as well."""
    counted = race("uvloop", "loop", strace(tmp_path / "closes"))
    assert len(failed_closes(tmp_path / "closes")) > counted["pipes"] / 2


def descriptors() -> set[str]:
    gc.collect()
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def read_to_the_end() -> None:
    end, other = os.pipe()
    reader, transport = await pipes.reader(os.fdopen(end, "rb", 0))
    os.write(other, b"said")
    os.close(other)
    assert await reader.read() == b"said"
    transport.close()


async def write_and_close() -> None:
    other, end = os.pipe()
    writer = await pipes.writer(os.fdopen(end, "wb", 0))
    writer.write(b"said")
    writer.close()
    assert await asyncio.to_thread(os.read, other, 10) == b"said"
    assert await asyncio.to_thread(os.read, other, 10) == b""
    os.close(other)


async def be_cancelled_meanwhile() -> None:
    end, other = os.pipe()
    connecting = asyncio.create_task(pipes.reader(os.fdopen(end, "rb", 0)))
    await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    os.close(other)


@both_loops
@pytest.mark.parametrize("use", [read_to_the_end, write_and_close, be_cancelled_meanwhile], ids=lambda use: use.__name__)
def test_no_descriptor_is_left_open(loop: str, use: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def times(number: int) -> set[str]:
        for _ in range(number):
            await use()
        await asyncio.sleep(0)  # asyncio's own loop closes in its next iteration
        return descriptors()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        before = runner.run(times(1))  # the descriptors that a loop keeps open are open now
        assert runner.run(times(5)) == before


def test_only_one_module_connects_pipes_to_the_loop() -> None:
    """Except code that runs inside a workspace: it uses asyncio's own loop and does not import the product."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "connect_read_pipe" in (text := path.read_text(encoding="utf-8")) or "connect_write_pipe" in text
    }
    assert found == {"runtimes/process/pipes.py"}
