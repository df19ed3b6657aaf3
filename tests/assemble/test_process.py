"""The end of a process: whether it was stopped, was refused, or one of its parts ended."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, contextlib, os, signal, sys
from torpor.assemble.process import background, run
from torpor.domain.errors import Refused

async def ends():
    await asyncio.sleep(0.05)

async def breaks():
    await asyncio.sleep(0.05)
    raise ValueError("broken")

async def is_stopped():
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

async def never_begins():
    await asyncio.Event().wait()

async def start(stack):
    await stack.enter_async_context(background(globals()[sys.argv[1]](), "part"))
    if sys.argv[1] == "never_begins":
        raise Refused("bad_setting", "the setting is wrong")
    return "ready"

sys.exit(run(start))
"""


@pytest.mark.parametrize(("fate", "code"), [("ends", 1), ("breaks", 1), ("is_stopped", 0)])
def test_the_exit_code_says_whether_a_part_ended_by_itself(fate: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, fate], capture_output=True, text=True, timeout=60, check=False)
    assert "ready" in done.stdout, done.stderr
    assert done.returncode == code, done.stderr


def test_a_start_that_is_refused_at_once_prints_only_why() -> None:
    command = [sys.executable, "-c", PROGRAM, "never_begins"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "torpor: the setting is wrong\n")
