"""A test that waits for ever is ended, wherever it waits, and the others still run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import timeouts

ROOT = Path(timeouts.__file__).parents[2]
CONFTEST = """
import pytest

pytest_plugins = ["tests.support.timeouts"]

def pytest_configure():
    from tests.support import timeouts
    timeouts.ORDINARY_S, timeouts.REPEAT_S, timeouts.DEAF_S, timeouts.EXIT_S = 1.0, 1.0, 4.0, 2.0

@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
"""
SYNC = """
import threading

def test_waits():
    threading.Event().wait()

def test_retries():
    while True:
        try:
            threading.Event().wait()
        except Exception:
            pass

def test_is_well():
    pass
"""
ASYNC = """
import asyncio
import pytest
pytestmark = pytest.mark.anyio

async def endless():
    await asyncio.Event().wait()

@pytest.fixture(scope="session")
async def shared(anyio_backend):
    yield 1

@pytest.fixture(scope="module")
async def never_ready(anyio_backend):
    await endless()
    yield

@pytest.fixture
async def never_stopped(anyio_backend):
    yield
    await endless()

async def test_waits(shared):
    await asyncio.gather(endless(), endless())

async def test_waits_in_its_own_clean_up(shared):
    try:
        await endless()
    finally:
        await endless()

async def test_set_up_waits(shared, never_ready):
    pass

async def test_teardown_waits(shared, never_stopped):
    pass

async def test_is_well(shared):
    await asyncio.sleep(0)
"""
LEFT_BEHIND = """
import threading

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""
DEAF = """
import signal, threading

def test_hears_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    threading.Event().wait()
"""
OUTCOMES = {
    ("FAILED", "test_sync.py::test_waits"),
    ("FAILED", "test_sync.py::test_retries"),
    ("PASSED", "test_sync.py::test_is_well"),
    ("FAILED", "test_async.py::test_waits"),
    ("FAILED", "test_async.py::test_waits_in_its_own_clean_up"),
    ("ERROR", "test_async.py::test_set_up_waits"),
    ("PASSED", "test_async.py::test_teardown_waits"),
    ("ERROR", "test_async.py::test_teardown_waits"),
    ("PASSED", "test_async.py::test_is_well"),
}


def run(folder: Path, files: dict[str, str], *options: str) -> tuple[int, set[tuple[str, str]], str]:
    """Exit code, outcomes and output of these tests in a pytest of their own."""
    for name, text in {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\n", **files}.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "anyio", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, set(re.findall(r"(?m)^(PASSED|FAILED|ERROR) (\S+)", done.stdout)), done.stdout


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    files = {"test_async.py": ASYNC, "test_sync.py": SYNC, "test_thread.py": LEFT_BEHIND}
    code, outcomes, said = run(tmp_path, files)
    assert (code, outcomes) == (1, OUTCOMES | {("PASSED", "test_thread.py::test_leaves_a_thread")}), said
    for phase, count in {"call": 4, "set-up": 1, "teardown": 1}.items():
        assert said.count(f"timeout: the {phase} of this test took longer than 1 s") >= count, said
    for place in ("threading.Event().wait()", "in endless", "in never_ready", "in never_stopped"):
        assert place in said, said
    assert "Timeout (" in said, "a thread that a test left behind would keep pytest alive"


def test_with_xdist_a_worker_that_ignores_signals_is_replaced(tmp_path: Path) -> None:
    files = {"test_async.py": ASYNC, "test_deaf.py": DEAF, "test_sync.py": SYNC}
    code, outcomes, said = run(tmp_path, files, "-p", "xdist", "-n", "1")
    assert (code, outcomes) == (1, OUTCOMES | {("FAILED", "test_deaf.py::test_hears_no_signal")}), said
    assert "crashed while running 'test_deaf.py::test_hears_no_signal'" in said
    assert "Timeout (" in said, "the stacks of the worker's threads are shown"


def test_the_largest_limit_of_the_markers_counts() -> None:
    def item(*names: str) -> Any:
        return SimpleNamespace(iter_markers=lambda: [SimpleNamespace(name=name) for name in names])

    assert timeouts.limit_of(item("anyio")) == timeouts.ORDINARY_S
    assert timeouts.limit_of(item("e2e", "long")) == timeouts.LIMIT_S["long"]
