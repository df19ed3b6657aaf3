"""A program that resists its stop cannot change the archive of its home."""

import os
import time
from pathlib import Path

import pytest

from tests.support.product import Product, processes_with, product
from torpor.archives.tree import tree_root

pytestmark = pytest.mark.e2e

# Two forks and a new session: no shell and no parent knows it. It ignores every signal that can be ignored.
WRITER = """
import os, signal, sys
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
count = 0
while True:
    count += 1
    with open(f"busy-{count % 50}", "w") as file:
        file.write("x" * (count % 5000))
    if count == 100:
        open("started", "w").close()
"""


# Part of the command line of every writer of this run.
MARK = f"writer-{os.getpid()}-{time.time_ns()}"


def write(here: Product, name: str) -> None:
    here.ok("exec", name, "--", "python3", "-c", WRITER, MARK)


@pytest.mark.long
def test_double_forked_writers_that_ignore_signals_do_not_write_into_an_archive(tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_WORKSPACE_STOP_GRACE="1") as here:
        here.ok("create", "demo", "--wait")
        for _ in range(2):
            write(here, "demo")
        here.ok("exec", "demo", "--", "sh", "-c", "until [ -e started ]; do :; done")
        assert len(processes_with(MARK)) >= 2
        here.ok("stop", "demo", "--wait")
        assert processes_with(MARK) == []
        standing = here.home(here.show("demo"))
        root = tree_root(standing)
        here.ok("start", "demo", "--wait")
        write(here, "demo")
        assert processes_with(MARK) != []
        here.ok("archive", "demo", "--wait")
        assert processes_with(MARK) == []
        here.ok("stop", "demo", "--wait")
        restored = here.home(here.show("demo"))
        after = tree_root(restored)
        assert after != root, "the second writer wrote"
        assert tree_root(restored) == after, "the writer is gone"
        assert len(list(restored.glob("busy-*"))) == 50
        here.ok("archive", "demo", "--wait")
        here.ok("stop", "demo", "--wait")
        assert tree_root(here.home(here.show("demo"))) == after
